"""The requests of a wave as bytes, made before the gun, one piece per tick of the event loop."""

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from sidecar.adapters.engine import Engine
from sidecar.adapters.wire import Request
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Drafts, Endpoint
from sidecar.core.wire.prompts import SAFE_IDS, ChatFitter, TemplateSense, id_pieces, seed_of

_ANSWER_BASE_BYTES = 256 << 10
_ANSWER_TOKEN_BYTES = 8 << 10
"""A token with 20 logprobs takes about 3 kB in a chat stream, without them 0.3 kB."""

_FITTED_AT_ONCE = 4
"""Counting is work for the engine's API server, which has only one thread for it."""

_KEPT_TEXT_CHARS = 32 << 20
"""Fitted chat messages that are kept for later waves: eight of 131,072 tokens take about 6 MB."""


class Bodies:
    """Makes requests for one engine. `nonce` must differ from boot to boot."""

    def __init__(self, engine: Engine, facts: EngineFacts, nonce: str) -> None:
        self._engine = engine
        self._facts = facts
        self._nonce = nonce
        self._ids = facts.token_ids or SAFE_IDS
        self._senses: dict[str, TemplateSense] = {}
        self._texts: OrderedDict[tuple[str, int, bool], list[str]] = OrderedDict()

    async def wave(self, cell: Cell, number: int) -> list[Request]:
        """The requests of wave `number`, in order.

        Raises ConfigError (no prompt of this length) or EngineUnavailable (can't be counted).
        """
        prompts: list[bytes]
        if cell.variant.endpoint is Endpoint.CHAT:
            texts = await self._chat_texts(cell)
            prompts = []
            for text in texts:
                prompts.append(json.dumps([{"role": "user", "content": text}]).encode())
                await asyncio.sleep(0)
        else:
            prompts = [
                await self._id_prompt(
                    cell.prompt_tokens, number, str(i), repetitive=self._is_repetitive(cell)
                )
                for i in range(cell.concurrency)
            ]
        requests = []
        for i, prompt in enumerate(prompts):
            fields = self._fields(cell.variant.endpoint, cell.variant.fields, cell, i)
            name = f"{number}-{i}"
            tokens = cell.output_tokens_of(i)
            requests.append(
                self._request(cell.variant.endpoint, fields, prompt, name, tokens, cell.rank)
            )
            await asyncio.sleep(0)
        return requests

    async def plug(self, tokens: int, number: int, rank: int | None = None) -> Request:
        """The prompt behind which a held wave waits: random ids, one token of output."""
        endpoint = Endpoint.COMPLETIONS
        prompt = await self._id_prompt(tokens, number, "plug", repetitive=False)
        fields = self._own_fields(endpoint, 1)
        return self._request(endpoint, fields, prompt, f"{number}-plug", 1, rank)

    def _is_repetitive(self, cell: Cell) -> bool:
        """Whether its prompts are a text whose drafts are accepted. Where the cell leaves it open,
        that is what an engine that speculates is asked: its draft paths run then too."""
        if cell.drafts is None:
            return bool(self._facts.speculation)
        return cell.drafts is Drafts.ACCEPTED

    async def _id_prompt(self, tokens: int, number: int, name: str, *, repetitive: bool) -> bytes:
        seed = seed_of(self._nonce, number, name)
        pieces = []
        for ids in id_pieces(tokens, self._ids, seed, repetitive=repetitive):
            pieces.append(",".join(map(str, ids)).encode())
            await asyncio.sleep(0)
        return b"[" + b",".join(pieces) + b"]"

    def _fields(
        self, endpoint: Endpoint, given: Mapping[str, Any], cell: Cell, index: int
    ) -> dict[str, Any]:
        """The variant's fields, and ours over them: a wave must be what its cell declares."""
        return {**given, **self._own_fields(endpoint, cell.output_tokens_of(index))}

    def _own_fields(self, endpoint: Endpoint, output_tokens: int) -> dict[str, Any]:
        return {
            "model": self._facts.model,
            self._limit_field(endpoint): output_tokens,
            "ignore_eos": True,
            "cache_salt": f"warmup-{self._nonce}-{secrets.token_hex(8)}",
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _limit_field(self, endpoint: Endpoint) -> str:
        """`max_tokens` is deprecated for chat, but a front end may know nothing else."""
        if endpoint is Endpoint.COMPLETIONS:
            return "max_tokens"
        known = (self._facts.request_fields or {}).get(endpoint)
        modern = known is None or "max_completion_tokens" in known
        return "max_completion_tokens" if modern else "max_tokens"

    def _request(
        self,
        endpoint: Endpoint,
        fields: Mapping[str, Any],
        prompt: bytes,
        name: str,
        tokens: int,
        rank: int | None,
    ) -> Request:
        key = b"messages" if endpoint is Endpoint.CHAT else b"prompt"
        rest = json.dumps(fields).encode()
        body = b'{"' + key + b'": ' + prompt + b", " + rest[1:]
        target = self._engine.target
        lines = [
            f"POST {target.path}{endpoint.path} HTTP/1.1",
            f"Host: {target.authority}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Accept: text/event-stream",
            "Accept-Encoding: identity",
            "Connection: close",
            "User-Agent: vllm-warmup",
            f"X-Request-Id: warmup-{self._nonce}-{name}",
        ]
        if rank is not None:  # vLLM 0.33 entrypoints/generate/base/serving.py
            lines.append(f"X-data-parallel-rank: {rank}")
        if target.authorization is not None:
            lines.append(f"Authorization: {target.authorization}")
        choices = fields.get("n")
        most = _ANSWER_TOKEN_BYTES * tokens * (choices if isinstance(choices, int) else 1)
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        return Request(head, body, _ANSWER_BASE_BYTES + most)

    async def _chat_texts(self, cell: Cell) -> list[str]:
        """One exact message for each request. Kept: later waves differ by their cache_salt."""
        key = (cell.variant.name, cell.prompt_tokens, self._is_repetitive(cell))
        texts = self._texts.setdefault(key, [])
        self._texts.move_to_end(key)
        lacking = range(len(texts), cell.concurrency)
        if lacking:
            # The first one alone: it teaches the template's overhead to the others.
            found = [await self._fit(cell, lacking[0])]
            gate = asyncio.Semaphore(_FITTED_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._fit_behind(gate, cell, i)) for i in lacking[1:]]
            texts += [*found, *(task.result() for task in tasks)]
            self._forget()
        return texts[: cell.concurrency]

    async def _fit_behind(self, gate: asyncio.Semaphore, cell: Cell, index: int) -> str:
        async with gate:
            return await self._fit(cell, index)

    async def _fit(self, cell: Cell, index: int) -> str:
        sense = self._senses.setdefault(cell.variant.name, TemplateSense())
        seed = seed_of(self._nonce, cell.variant.name, cell.prompt_tokens, index)
        repetitive = self._is_repetitive(cell)
        fitter = ChatFitter(cell.prompt_tokens, seed, sense, repetitive=repetitive)
        while True:
            text = fitter.text
            count = await self._engine.tokenize_chat(text, cell.variant.fields)
            if fitter.told(count):
                return text

    def _forget(self) -> None:
        while len(self._texts) > 1 and self._kept_chars() > _KEPT_TEXT_CHARS:
            self._texts.popitem(last=False)

    def _kept_chars(self) -> int:
        return sum(len(text) for texts in self._texts.values() for text in texts)

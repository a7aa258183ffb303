"""The requests of a wave as bytes, made before the gun, one piece per tick of the event loop."""

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.adapters.engine import Engine
from sidecar.adapters.wire import Request
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Drafts, Endpoint
from sidecar.core.wire.prompts import SAFE_IDS, ChatFitter, TemplateSense, id_pieces, seed_of

_ANSWER_BASE_BYTES = 256 << 10
_ANSWER_TOKEN_BYTES = 8 << 10
"""A token with 20 logprobs takes about 3 kB in a chat stream, without them 0.3 kB."""

_ANSWER_SCORE_BYTES = 64
"""One logprob of a prompt's token takes about 80 bytes, and the token two or more to send."""

_FITTED_AT_ONCE = 4
"""Counting is work for the engine's API server, which has only one thread for it."""

_KEPT_TEXT_CHARS = 32 << 20
"""Fitted chat messages that are kept for later waves: eight of 131,072 tokens take about 6 MB."""


@dataclass(frozen=True, slots=True)
class Salvo:
    """The requests of one wave, in order, and those that put their prefixes into the cache."""

    requests: list[Request]
    primes: list[Request]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt as JSON, and its start as a list of token ids; empty: nothing is sent before."""

    body: bytes
    prefix: bytes


class Bodies:
    """Makes requests for one engine. `nonce` must differ from boot to boot."""

    def __init__(self, engine: Engine, facts: EngineFacts, nonce: str) -> None:
        self._engine = engine
        self._facts = facts
        self._nonce = nonce
        self._ids = facts.token_ids or SAFE_IDS
        self._senses: dict[str, TemplateSense] = {}
        self._texts: OrderedDict[tuple[str, int, bool], list[str]] = OrderedDict()

    async def wave(self, cell: Cell, number: int, more_tokens: int = 0) -> Salvo:
        """The requests of wave `number`; `more_tokens` are asked of those that decode together,
        beyond what the cell says.

        Raises ConfigError (no prompt of this length) or EngineUnavailable (can't be counted).
        """
        prompts = await self._prompts(cell, number)
        endpoint = cell.variant.endpoint
        requests, primes = [], []
        for i, prompt in enumerate(prompts):
            tokens = cell.output_tokens_of(i) + (more_tokens if i < cell.concurrency else 0)
            own = self._own_fields(endpoint, tokens)
            if not cell.variant.is_streamed:
                own["stream"] = False
                del own["stream_options"]
            # The variant's fields, and ours over them: a wave must be what its cell declares.
            fields = {**cell.variant.fields, **own}
            name = f"{number}-{i}"
            requests.append(self._request(endpoint, fields, prompt.body, name, tokens, cell.rank))
            if prompt.prefix:
                fields = self._own_fields(Endpoint.COMPLETIONS, 1, own["cache_salt"])
                body, name = prompt.prefix, f"{number}-prime-{i}"
                primes.append(self._request(Endpoint.COMPLETIONS, fields, body, name, 1, cell.rank))
            await asyncio.sleep(0)
        return Salvo(requests, primes)

    async def _prompts(self, cell: Cell, number: int) -> list[_Prompt]:
        if cell.variant.endpoint is Endpoint.CHAT:
            return await self._chat_prompts(cell)
        repetitive = self._is_repetitive(cell)
        prompts = []
        for i in range(cell.requests):
            tokens = cell.prompt_tokens_of(i)
            pieces = await self._id_pieces(tokens, number, str(i), repetitive=repetitive)
            prefix = b""
            if cell.prefix_tokens:
                prefix = await _id_list(pieces, cell.prefix_tokens)
            prompts.append(_Prompt(await _id_list(pieces, tokens), prefix))
        return prompts

    async def _chat_prompts(self, cell: Cell) -> list[_Prompt]:
        texts = await self._chat_texts(cell, cell.prompt_tokens, cell.concurrency)
        if cell.arriving_tokens:
            texts += await self._chat_texts(cell, cell.arriving_tokens, 1)
        prompts = []
        for text in texts:
            prefix = b""
            if cell.prefix_tokens:
                # The cache knows ids and the salt, and not which endpoint they came from: so the
                # start of a chat prompt can be put there to the exact token.
                ids = await self._engine.chat_ids(text, cell.variant.fields)
                prefix = json.dumps(ids[: cell.prefix_tokens]).encode()
            body = json.dumps([{"role": "user", "content": text}]).encode()
            prompts.append(_Prompt(body, prefix))
            await asyncio.sleep(0)
        return prompts

    async def plug(self, tokens: int, number: int, rank: int | None = None) -> Request:
        """The prompt behind which a held wave waits: random ids, one token of output."""
        endpoint = Endpoint.COMPLETIONS
        pieces = await self._id_pieces(tokens, number, "plug", repetitive=False)
        fields, prompt = self._own_fields(endpoint, 1), await _id_list(pieces, tokens)
        return self._request(endpoint, fields, prompt, f"{number}-plug", 1, rank)

    def _is_repetitive(self, cell: Cell) -> bool:
        """Whether its prompts are a text whose drafts are accepted. Where the cell leaves it open,
        that is what an engine that speculates is asked: its draft paths run then too."""
        if cell.drafts is None:
            return bool(self._facts.speculation)
        return cell.drafts is Drafts.ACCEPTED

    async def _id_pieces(
        self, tokens: int, number: int, name: str, *, repetitive: bool
    ) -> list[list[int]]:
        seed = seed_of(self._nonce, number, name)
        pieces = []
        for ids in id_pieces(tokens, self._ids, seed, repetitive=repetitive):
            pieces.append(ids)
            await asyncio.sleep(0)
        return pieces

    def _own_fields(self, endpoint: Endpoint, output_tokens: int, salt: str = "") -> dict[str, Any]:
        return {
            "model": self._facts.model,
            self._limit_field(endpoint): output_tokens,
            "ignore_eos": True,
            "cache_salt": salt or f"warmup-{self._nonce}-{secrets.token_hex(8)}",
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
        scored = fields.get("prompt_logprobs")
        # Ids of the prompt come back with return_token_ids, no longer than they were sent.
        most = _ANSWER_TOKEN_BYTES * tokens + 4 * len(prompt)
        if isinstance(scored, int):
            most += _ANSWER_SCORE_BYTES * (scored + 2) * len(prompt)
        most *= choices if isinstance(choices, int) else 1
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        streamed = bool(fields["stream"])
        return Request(head, body, _ANSWER_BASE_BYTES + most, streamed=streamed)

    async def _chat_texts(self, cell: Cell, tokens: int, count: int) -> list[str]:
        """Messages for prompts of exactly `tokens`. Kept: later waves differ by their
        cache_salt."""
        key = (cell.variant.name, tokens, self._is_repetitive(cell))
        texts = self._texts.setdefault(key, [])
        self._texts.move_to_end(key)
        lacking = range(len(texts), count)
        if lacking:
            # The first one alone: it teaches the template's overhead to the others.
            found = [await self._fit(cell, tokens, lacking[0])]
            gate = asyncio.Semaphore(_FITTED_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._fit_behind(gate, cell, tokens, i)) for i in lacking[1:]
                ]
            texts += [*found, *(task.result() for task in tasks)]
            self._forget()
        return texts[:count]

    async def _fit_behind(
        self, gate: asyncio.Semaphore, cell: Cell, tokens: int, index: int
    ) -> str:
        async with gate:
            return await self._fit(cell, tokens, index)

    async def _fit(self, cell: Cell, tokens: int, index: int) -> str:
        sense = self._senses.setdefault(cell.variant.name, TemplateSense())
        seed = seed_of(self._nonce, cell.variant.name, tokens, index)
        repetitive = self._is_repetitive(cell)
        fitter = ChatFitter(tokens, seed, sense, repetitive=repetitive)
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


async def _id_list(pieces: Iterable[list[int]], tokens: int) -> bytes:
    """The first `tokens` ids as JSON."""
    parts = []
    for ids in pieces:
        parts.append(",".join(map(str, ids[:tokens])).encode())
        tokens -= len(ids)
        await asyncio.sleep(0)
        if tokens <= 0:
            break
    return b"[" + b",".join(parts) + b"]"

"""A request's body → what the engine is asked, or the refusal that vLLM 0.32 would give."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any
from zlib import crc32

from sidecar.simulator import tokenizer
from sidecar.simulator.bodies import (
    Refusal,
    block_hashes,
    chat_ids,
    features,
    invalid,
    prompts_of,
    whole_number,
)
from sidecar.simulator.checks import check_fields
from sidecar.simulator.model import SimRequest
from sidecar.simulator.profile import Profile
from sidecar.simulator.ruled import ruled_ids

MAX_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Choice:
    """One completion that is asked for."""

    index: int
    request: SimRequest
    prompt_ids: list[int]
    output_seed: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A whole request. `usage` counts a prompt once, however many choices it has."""

    id: str
    is_chat: bool
    choices: tuple[Choice, ...]
    prompt_tokens: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool
    logprobs: int | None
    prompt_logprobs: int | None
    is_thinking: bool
    ruled: tuple[int, ...] = ()
    """The tokens that a constraint makes the answer begin with, once its thought is over."""


class Asker:
    """Reads bodies for one process life; request ids never repeat within it."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._numbers = count()

    def completion(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
        """Raises Refusal."""
        check_fields(body, self.profile, is_chat=False)
        prompts = prompts_of(body.get("prompt"))
        return self._asked(body, headers, prompts, is_chat=False, is_thinking=False)

    def chat(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> Asked:
        """Raises Refusal."""
        if "messages" not in body:
            invalid(
                "body.messages",
                {
                    "type": "missing",
                    "loc": "body.messages",
                    "msg": "Field required",
                    "input": f"<dict of {len(body)} items>",
                },
            )
        check_fields(body, self.profile, is_chat=True)
        ids, is_thinking = chat_ids(body)
        is_thinking = is_thinking and self.profile.is_reasoning
        return self._asked(body, headers, [ids], is_chat=True, is_thinking=is_thinking)

    def _asked(
        self,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
        prompts: list[list[int]],
        *,
        is_chat: bool,
        is_thinking: bool,
    ) -> Asked:
        number = next(self._numbers)
        stem = headers.get("x-request-id") or body.get("request_id") or f"{number:016x}"
        id_ = f"{'chatcmpl' if is_chat else 'cmpl'}-{stem}"
        copies = whole_number(body, "n") or 1
        logprobs = self._logprobs(body, is_chat)
        options = body.get("stream_options") or {}
        choices: list[Choice] = []
        for ids in prompts:
            most = self._max_tokens(body, len(ids), is_chat)
            for _ in range(copies):
                index = len(choices)
                request = self._request(f"{id_}-{index}-{number:x}", ids, most, body, headers)
                # Greedy sampling repeats itself, other sampling does not.
                fixed = body.get("temperature") == 0
                seed = (hash(tuple(ids)) & 0xFFFFFFFF) ^ (0 if fixed else number * 7919 + index)
                choices.append(Choice(index, request, ids, seed))
        return Asked(
            id=id_,
            is_chat=is_chat,
            choices=tuple(choices),
            prompt_tokens=sum(map(len, prompts)),
            stream=bool(body.get("stream")),
            include_usage=bool(options.get("include_usage")),
            continuous_usage=bool(options.get("continuous_usage_stats")),
            return_token_ids=bool(body.get("return_token_ids")),
            logprobs=logprobs,
            prompt_logprobs=whole_number(body, "prompt_logprobs"),
            is_thinking=is_thinking,
            ruled=self._ruled(body, is_chat),
        )

    def _ruled(self, body: Mapping[str, Any], is_chat: bool) -> tuple[int, ...]:
        """With a reasoning parser nothing is constrained before a thought has ended, and a
        completion has none (seen on 0.32)."""
        ids = ruled_ids(body)
        return tuple(ids) if is_chat or not self.profile.is_reasoning else ()

    def _max_tokens(self, body: Mapping[str, Any], prompt_tokens: int, is_chat: bool) -> int:
        """What is asked, cut to fit ([33] serve/utils/api_utils.py)."""
        longest = self.profile.engine.max_model_len
        if prompt_tokens > longest:
            raise Refusal(
                400,
                f"This model's maximum context length is {longest} tokens. However, your prompt "
                f"contains {prompt_tokens} input tokens, which exceeds this limit even without "
                "any output tokens. Please reduce the length of the input prompt. "
                f"(parameter=input_tokens, value={prompt_tokens})",
                param="input_tokens",
            )
        asked = whole_number(body, "max_completion_tokens") if is_chat else None
        if asked is None:
            asked = whole_number(body, "max_tokens")
        if asked is None:
            asked = longest if is_chat else 16
        elif asked > longest:
            raise Refusal(
                400,
                f"max_tokens={asked} cannot be greater than max_model_len={longest}. Please "
                f"request fewer output tokens. (parameter=max_tokens, value={asked})",
                param="max_tokens",
            )
        most = min(asked, longest - prompt_tokens)
        if most < 1:
            raise Refusal(
                400,
                f"max_tokens must be at least 1, got {most}. (parameter=max_tokens, value={most})",
                param="max_tokens",
            )
        least = whole_number(body, "min_tokens") or 0
        if least > most:
            raise Refusal(
                400, f"min_tokens must be less than or equal to max_tokens={most}, got {least}."
            )
        return most

    def _logprobs(self, body: Mapping[str, Any], is_chat: bool) -> int | None:
        if is_chat:
            asked = whole_number(body, "top_logprobs") or 0 if body.get("logprobs") else None
        else:
            asked = whole_number(body, "logprobs")
        if asked is not None and asked > MAX_LOGPROBS:
            raise Refusal(
                400,
                f"Requested sample logprobs of {asked}, which is greater than max allowed: "
                f"{MAX_LOGPROBS} (parameter=logprobs, value={asked})",
                param="logprobs",
            )
        return asked

    def _request(
        self,
        id_: str,
        ids: list[int],
        max_tokens: int,
        body: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> SimRequest:
        engine = self.profile.engine
        largest = max(ids, default=0)
        if largest >= tokenizer.VOCAB_SIZE:
            raise Refusal(400, f"Token id {largest} is out of vocabulary", late=True)
        asked_rank = headers.get("x-data-parallel-rank", "").strip()
        # What is no whole number is ignored ([33] generate/base/serving.py).
        rank = int(asked_rank) if asked_rank.removeprefix("-").isdecimal() else None
        if rank is not None and not 0 <= rank < engine.ranks:
            raise Refusal(
                400, f"data_parallel_rank {rank} is out of range [0, {engine.ranks}).", late=True
            )
        tail = ids[-64:]
        least = whole_number(body, "min_tokens") or 0
        return SimRequest(
            id_,
            len(ids),
            max_tokens,
            blocks=block_hashes(ids, body.get("cache_salt"), engine.block_size)
            if engine.prefix_caching
            else None,
            features=features(body),
            rank=rank,
            drafts_accepted=len(tail) >= 8 and len(set(tail)) <= len(tail) // 2,
            eos_at=None if body.get("ignore_eos") else max(least, 1 + crc32(id_.encode()) % 200),
        )

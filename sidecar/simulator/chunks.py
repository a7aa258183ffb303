"""The JSON of answers, whole and streamed, in the shapes of vLLM 0.32."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sidecar.simulator import tokenizer
from sidecar.simulator.asking import Asked, Choice
from sidecar.simulator.logprobs import chat_logprobs, prompt_logprobs, text_logprobs

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Said:
    """What one choice has said so far."""

    choice: Choice
    max_tokens: int
    is_thinking: bool
    ruled: tuple[int, ...] = ()
    ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    finish_reason: str | None = None

    def say(self, tokens: int) -> list[int]:
        """Add that many tokens; returns their ids."""
        fresh = [self._token(len(self.ids) + i) for i in range(tokens)]
        self.ids += fresh
        return fresh

    def _token(self, index: int) -> int:
        """With a thought: `<think>`, the first half, `</think>`, the answer."""
        if self.is_thinking and index == 0:
            return tokenizer.THINK
        if self.is_thinking and index == self._thought_ends:
            return tokenizer.THINK_END
        said = index - self._thought_ends - 1 if self.is_thinking else index
        if 0 <= said < len(self.ruled):
            return self.ruled[said]
        draw = (self.choice.output_seed * 2654435761 + index * 40503) & 0xFFFFFFFF
        return tokenizer.FIRST_PIECE + (draw >> 7) % len(tokenizer.PIECES)

    @property
    def _thought_ends(self) -> int:
        return max(1, self.max_tokens // 2)

    def split(self, start: int, ids: Sequence[int]) -> tuple[str, str]:
        """(reasoning, content) of the tokens that begin at position `start`."""
        if not self.is_thinking:
            return "", tokenizer.decode(ids)
        ends = self._thought_ends
        thought = [t for i, t in enumerate(ids, start) if 0 < i < ends]
        answer = [t for i, t in enumerate(ids, start) if i > ends]
        return tokenizer.decode(thought), tokenizer.decode(answer)


@dataclass(frozen=True, slots=True)
class Frame:
    """What all parts of one answer share."""

    asked: Asked
    model: str
    fingerprint: str
    cached_details: bool
    """--enable-prompt-tokens-details"""
    usage_offset: int = 0
    """A fault: usage that is wrong by so many prompt tokens."""
    created: int = field(default_factory=lambda: int(time.time()))


def usage(frame: Frame, said: Sequence[Said], *, streamed: bool) -> dict[str, Any]:
    prompt = frame.asked.prompt_tokens + frame.usage_offset
    completion = sum(len(one.ids) for one in said)
    counted: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    details = None
    if frame.cached_details:
        details = {
            # Of the first answer: the other choices find what it has just begun to compute.
            "cached_tokens": said[0].cached_tokens if said else 0,
            "created_cache_tokens": None,
            "multimodal_tokens": None,
        }
    if details is not None or not streamed:
        counted["prompt_tokens_details"] = details
    if not streamed:
        counted["completion_tokens_details"] = None
    return counted


def role_chunk(frame: Frame, one: Said) -> bytes:
    """Comes together with the first token, and carries none."""
    choice = {
        "index": one.choice.index,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    ids = one.choice.prompt_ids if frame.asked.return_token_ids else None
    extra: dict[str, Any] = {}
    if frame.asked.continuous_usage and frame.asked.include_usage:
        extra["usage"] = usage(frame, [one], streamed=True) | {
            "total_tokens": frame.asked.prompt_tokens,
            "completion_tokens": 0,
        }
    return _event(_chunk(frame, [choice]) | extra | {"prompt_token_ids": ids, "prompt_text": None})


def token_chunk(frame: Frame, said: Sequence[Said], one: Said, fresh: list[int]) -> bytes | None:
    """One choice's new tokens; None where the reasoning parser swallows them."""
    start = len(one.ids) - len(fresh)
    reasoning, content = one.split(start, fresh)
    ended = one.finish_reason is not None
    ids = fresh if frame.asked.return_token_ids else None
    if frame.asked.is_chat:
        if not (reasoning or content or ended):
            return None
        delta: dict[str, Any] = {}
        if reasoning:
            delta["reasoning"] = reasoning
        if content or not reasoning:
            delta["content"] = content
        choice: dict[str, Any] = {"index": one.choice.index, "delta": delta}
        choice |= {
            "logprobs": chat_logprobs(frame.asked.logprobs, fresh),
            "finish_reason": one.finish_reason,
        }
        choice |= {"stop_reason": None} if ended else {}
        choice |= {"token_ids": ids}
    else:
        prompt_ids = one.choice.prompt_ids if frame.asked.return_token_ids and not start else None
        choice = {
            "index": one.choice.index,
            "text": content,
            "logprobs": text_logprobs(frame.asked.logprobs, fresh),
            "finish_reason": one.finish_reason,
            "stop_reason": None,
            "prompt_token_ids": prompt_ids,
            "token_ids": ids,
        }
    chunk = _chunk(frame, [choice])
    if frame.asked.include_usage and frame.asked.continuous_usage:
        chunk["usage"] = usage(frame, [one], streamed=True)
    all_ended = all(other.finish_reason is not None for other in said)
    if all_ended and not frame.asked.include_usage:
        chunk["system_fingerprint"] = frame.fingerprint
    return _event(chunk)


def usage_chunk(frame: Frame, said: Sequence[Said]) -> bytes:
    chunk = _chunk(frame, []) | {"usage": usage(frame, said, streamed=True)}
    return _event(chunk | {"system_fingerprint": frame.fingerprint})


def error_event(error: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps({"error": error}).encode() + b"\n\n"


def whole_answer(frame: Frame, said: Sequence[Said]) -> dict[str, Any]:
    """The answer of a request without `stream`."""
    asked = frame.asked
    answer: dict[str, Any] = {
        "id": asked.id,
        "object": "chat.completion" if asked.is_chat else "text_completion",
        "created": frame.created,
        "model": frame.model,
        "choices": [_whole_choice(frame, one) for one in said],
        "service_tier": None,
        "system_fingerprint": frame.fingerprint,
        "usage": usage(frame, said, streamed=False),
    }
    if asked.is_chat:
        told = _prompt_logprobs(asked, said[0])
        answer |= {"prompt_logprobs": told, "prompt_token_ids": None, "prompt_text": None}
    return answer | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _whole_choice(frame: Frame, one: Said) -> dict[str, Any]:
    asked = frame.asked
    reasoning, content = one.split(0, one.ids)
    ids = one.ids if asked.return_token_ids else None
    ending = {"finish_reason": one.finish_reason, "stop_reason": None, "token_ids": ids}
    if asked.is_chat:
        message = {
            "role": "assistant",
            "content": content,
            **dict.fromkeys(("refusal", "annotations", "audio", "function_call")),
            "reasoning": reasoning or None,
        }
        return {
            "index": one.choice.index,
            "message": message,
            "logprobs": chat_logprobs(frame.asked.logprobs, one.ids),
            **ending,
            "routed_experts": None,
        }
    return {
        "index": one.choice.index,
        "text": content,
        "logprobs": text_logprobs(frame.asked.logprobs, one.ids),
        **ending,
        "prompt_logprobs": _prompt_logprobs(asked, one),
        "prompt_token_ids": one.choice.prompt_ids if asked.return_token_ids else None,
        "routed_experts": None,
    }


def _prompt_logprobs(asked: Asked, one: Said) -> list[dict[str, Any] | None] | None:
    if asked.prompt_logprobs is None:
        return None
    return prompt_logprobs(asked.prompt_logprobs, one.choice.prompt_ids)


def _chunk(frame: Frame, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": frame.asked.id,
        "object": "chat.completion.chunk" if frame.asked.is_chat else "text_completion",
        "created": frame.created,
        "model": frame.model,
        "choices": choices,
    }


def _event(chunk: dict[str, Any]) -> bytes:
    text = json.dumps(chunk, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"

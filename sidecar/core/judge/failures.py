"""A request that failed → one sentence: which cell, what came back, what to change."""

import re
from dataclasses import dataclass

from sidecar.core.grid.cells import Cell
from sidecar.core.results import Outcome, Result, WaveResult

EXECUTE_MODEL_TIMEOUT_S = 300.0
"""`VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS`: a step that takes longer kills an engine of several ranks
(vLLM 0.33 envs.py:252, v1/executor/multiproc_executor.py:405-445)."""

_NEAR_S = 0.95
_MESSAGE_LENGTH = 240

_TOO_LONG = ("context length", "max_model_len", "max-model-len", "input length", "too long")
_NO_FILES = "too many open files"
"""EMFILE, in the words of errno."""
_NO_MEMORY = re.compile(r"out ?of ?memory|\boom\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a wave."""

    sentence: str
    is_refusal: bool
    """The engine admits nobody just now (503, 429): back off and ask again, nothing is broken."""


def failure(wave: WaveResult) -> Failure | None:
    """The worst failure in the wave, refusals last; None if every request of it went well."""
    failed = [r for r in wave.results if r.outcome is not Outcome.OK]
    if not failed:
        return None
    told = min(failed, key=_is_refusal)
    remedy = _remedy(told, wave.took_s)
    sentence = f"{wave.look.cell.id}: {_what(told, len(failed), wave.look.cell)}; {remedy}"
    return Failure(sentence, is_refusal=_is_refusal(told))


def _is_refusal(result: Result) -> bool:
    """vLLM 0.29+ answers 503 at `--max-num-queued-reqs`; proxies in front of it 429."""
    return result.outcome is Outcome.HTTP_ERROR and result.status in (429, 503)


def plain(message: str) -> str:
    """A message of the engine on one line, bounded."""
    line = " ".join(message.split())
    return line if len(line) <= _MESSAGE_LENGTH else line[: _MESSAGE_LENGTH - 1] + "…"


def _what(result: Result, failed: int, cell: Cell) -> str:
    said = f" ({plain(result.message)})" if result.message.strip() else ""
    of = f"{failed} of {cell.requests} requests" if cell.requests > 1 else "its request"
    match result.outcome:
        case Outcome.HTTP_ERROR:
            return f"{of} got HTTP {result.status}{said}"
        case Outcome.STREAM_ERROR:
            return f"{of} ended with an error inside the stream{said}"
        case Outcome.TIMEOUT:
            return f"{of} had no answer within the request timeout{said}"
        case _ if result.misread:
            return f"{of} got an answer that vLLM doesn't give{said}"
        case _:
            return f"{of} lost the connection{said}"


def _remedy(result: Result, took_s: float) -> str:
    """What to change. The longest branch of this file: one line per known cause."""
    message = result.message.lower()
    near_limit = took_s >= _NEAR_S * EXECUTE_MODEL_TIMEOUT_S
    if _NO_MEMORY.search(message):
        return (
            "lower --gpu-memory-utilization or --max-num-batched-tokens, so that room is left for "
            "what is allocated at the first such request"
        )
    if near_limit and result.outcome is not Outcome.OK:
        return (
            "raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS on the engine (default 300: a compile that "
            "takes longer kills it) and budget.request_timeout_s in the shapes file"
        )
    if result.outcome is Outcome.TIMEOUT:
        return "raise budget.request_timeout_s in the shapes file, or see in the engine's log why"
    if _NO_FILES in message:
        return (
            "raise the sidecar's own limit of open files (ulimit -n, LimitNOFILE=), for each "
            "request of a wave is one, or lower concurrency"
        )
    if result.misread:
        return (
            "see that WARMUP_ENGINE_URL is vLLM's, and that no proxy in between changes its answers"
        )
    if result.outcome is Outcome.BROKEN:
        return "look for the end of the engine in its log: it may have died on this cell"
    if any(word in message for word in _TOO_LONG):
        return "raise --max-model-len or lower prompt_tokens and output_tokens in the shapes file"
    if "data_parallel_rank" in message:
        return "correct ranks in the shapes file: the engine doesn't have this one"
    return _REMEDY_BY_STATUS.get(result.status or 0, "see the engine's log for the cause")


_REMEDY_BY_STATUS = {
    400: "change the cell or its variant in the shapes file: the engine does not take it",
    401: "set WARMUP_API_KEY to the engine's --api-key",
    403: "set WARMUP_API_KEY to a key that may use this model",
    404: "set WARMUP_MODEL to a name that the engine lists under /v1/models",
    413: "raise the body limit of the proxy in front of the engine, or lower prompt_tokens",
    429: "raise the limit of the proxy in front of the engine; it is asked again after a pause",
    503: "raise --max-num-queued-reqs if it is set; the engine is asked again after a pause",
    504: "raise the timeout of the proxy in front of the engine",
}

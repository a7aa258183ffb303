"""Messages of a starting vLLM 0.21-0.33 → what each tells."""

from sidecar.core.logs.events import Phase, Started
from sidecar.core.logs.facts import StartFacts, from_arguments, from_config
from sidecar.core.logs.head import Message

_ARGUMENTS = "non-default args: "
_CONFIG = "Initializing a V1 LLM engine "
_BUDGET = "Chunked prefill is enabled with max_num_batched_tokens="
_LENGTH = "Using max model len "
_KV = " KV cache size: "
_EAGER = ("Cudagraph is disabled under eager mode", "Enforce eager set, disabling ")
_RESERVED = "Initial free memory "


def starting(message: Message) -> Started | None:
    """What a line of vLLM's logger tells of the start, or None."""
    text = message.text
    if text.startswith(_ARGUMENTS):
        facts = from_arguments(text[len(_ARGUMENTS) :])
        return Started(message.origin, Phase.ARGUMENTS, facts)
    told = from_config(text[len(_CONFIG) :]) if text.startswith(_CONFIG) else _told(text)
    return None if told is None else Started(message.origin, Phase.STARTING, told)


def _told(text: str) -> StartFacts | None:
    if text.startswith(_BUDGET):
        return StartFacts(max_num_batched_tokens=_count(text[len(_BUDGET) :]))
    if text.startswith(_LENGTH):
        return StartFacts(max_model_len=_count(text[len(_LENGTH) :]))
    if text.startswith(_EAGER):
        off = False if "JIT kernel warmup" in text[:120] else None
        return StartFacts(enforce_eager=True, jit_warmup=off)
    if text.startswith(_RESERVED) and "kv_cache_memory_bytes" in text[:300]:
        return StartFacts(memory_profiled=False)
    at = text.find(_KV, 0, 40)
    if at > 0 and text[:at].isalnum():  # `GPU`, `CPU`, another device's name
        return StartFacts(kv_cache_tokens=_count(text[at + len(_KV) :]))
    return None


def _count(text: str) -> int | None:
    digits = text.partition(" ")[0].rstrip(".,").replace(",", "")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None

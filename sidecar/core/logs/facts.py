"""What the start lines of vLLM 0.21-0.33 tell of its configuration."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from sidecar.core.facts import EngineFacts, costly, learned

_MARKS = re.compile(r"['\"\\()\[\]{},]")
"""One class: nothing to backtrack into."""

_MAX_SIZES = 4096


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Of one boot; None where no line told it. It is what tells two boots' settings apart."""

    version: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    """Only told where it was set: its default depends on the GPU and is written nowhere."""
    max_num_batched_tokens: int | None = None
    kv_cache_tokens: int | None = None
    """Of one data-parallel engine, the smallest."""
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context_parallel: int | None = None
    """Of prefill; that of decode shares the tensor-parallel ranks."""
    data_parallel: int | None = None
    draft_tokens: int | None = None
    """0: no speculation."""
    enforce_eager: bool | None = None
    cudagraph_mode: str | None = None
    capture_sizes: tuple[int, ...] | None = None
    jit_monitor_mode: str | None = None
    jit_monitor_verbose: bool | None = None
    jit_warmup: bool | None = None
    """False: the monitor is off too (0.31+, with --enforce-eager)."""
    prefix_caching: bool | None = None
    kv_cache_memory_bytes: int | None = None
    memory_profiled: bool | None = None
    """False: skipped, because the KV cache's size was given."""
    device: str | None = None
    """`cuda`, `cpu` …"""

    @property
    def ranks(self) -> int | None:
        """Worker processes: as many monitors must have said that they listen."""
        if self.tensor_parallel is None or self.pipeline_parallel is None:
            return None
        engine = self.tensor_parallel * self.pipeline_parallel * (self.context_parallel or 1)
        return engine * (self.data_parallel or 1)

    def with_(self, told: "StartFacts") -> "StartFacts":
        """These facts and what one more line told, which wins."""
        known = {
            f.name: value for f in fields(told) if (value := getattr(told, f.name)) is not None
        }
        for name, choose in (("kv_cache_tokens", min), ("data_parallel", max)):
            # Each data-parallel engine of a dense model calls itself one of one.
            before = getattr(self, name)
            if name in known and before is not None:
                known[name] = choose(before, known[name])
        return replace(self, **known)

    @property
    def cudagraphs_off(self) -> bool | None:
        """None where no line told."""
        if self.enforce_eager or (self.cudagraph_mode == "NONE" and self.device == "cuda"):
            return True
        return None if self.enforce_eager is None else False

    def warnings(self) -> tuple[str, ...]:
        """The two settings that cost most, each as a sentence."""
        return costly(from_log(EngineFacts(), self))


def from_log(facts: EngineFacts, start: StartFacts) -> EngineFacts:
    """`facts` with what the log told of that which nothing else did: the engine's own answers
    are of today, and nobody else can have written them."""
    told = {
        "version": start.version,
        "max_model_len": start.max_model_len,
        "max_num_seqs": start.max_num_seqs,
        "max_num_batched_tokens": start.max_num_batched_tokens,
        "kv_cache_tokens": start.kv_cache_tokens,
        "prefix_caching": start.prefix_caching,
        "ranks": start.data_parallel,
        "speculation": None if start.draft_tokens is None else start.draft_tokens > 0,
        "draft_tokens": start.draft_tokens,
        "capture_sizes": start.capture_sizes,
        "cudagraphs_off": start.cudagraphs_off,
        "kv_cache_memory_bytes": start.kv_cache_memory_bytes,
        "memory_profiled": start.memory_profiled,
    }
    lacking = {name: value for name, value in told.items() if getattr(facts, name) is None}
    return learned(facts, "log", **lacking)


def from_arguments(text: str) -> StartFacts:
    """From the repr of a dict: `non-default args` (vLLM 0.33 entrypoints/common/startup.py).

    Only these keys are looked at: up to 0.28 an API key stands there as it is.
    """
    args = {key.strip("'\""): value for key, value in _items(text.removeprefix("{"), ": ")}
    return StartFacts(
        max_model_len=_integer(args.get("max_model_len")),
        max_num_seqs=_integer(args.get("max_num_seqs")),
        max_num_batched_tokens=_integer(args.get("max_num_batched_tokens")),
        tensor_parallel=_integer(args.get("tensor_parallel_size")),
        pipeline_parallel=_integer(args.get("pipeline_parallel_size")),
        context_parallel=_integer(args.get("prefill_context_parallel_size")),
        data_parallel=_integer(args.get("data_parallel_size")),
        enforce_eager=_boolean(args.get("enforce_eager")),
        jit_monitor_mode=_word(args.get("jit_monitor_mode")),
        jit_monitor_verbose=_boolean(args.get("jit_monitor_verbose")),
        prefix_caching=_boolean(args.get("enable_prefix_caching")),
        kv_cache_memory_bytes=_integer(args.get("kv_cache_memory_bytes")),
        draft_tokens=_nested(args.get("speculative_config"), "'num_speculative_tokens'", ": "),
    )


def from_config(text: str) -> StartFacts:
    """From `(v0.33.0) with config: model=…, …` (vLLM 0.33 config/vllm.py, VllmConfig.__str__)."""
    version, _, rest = text.removeprefix("(v").partition(") with config: ")
    config = dict(_items(rest, "="))
    compilation = dict(_items(config.get("compilation_config", "").removeprefix("{"), ": "))
    observability = dict(_arguments(config.get("observability_config")))
    speculative = config.get("speculative_config")
    return StartFacts(
        version=version if rest and len(version) <= 80 else None,
        max_model_len=_integer(config.get("max_seq_len")),
        tensor_parallel=_integer(config.get("tensor_parallel_size")),
        pipeline_parallel=_integer(config.get("pipeline_parallel_size")),
        context_parallel=_integer(config.get("prefill_context_parallel_size")),
        data_parallel=_integer(config.get("data_parallel_size")),
        draft_tokens=0
        if speculative == "None"
        else _integer(dict(_arguments(speculative)).get("num_spec_tokens")),
        enforce_eager=_boolean(config.get("enforce_eager")),
        cudagraph_mode=_mode(compilation.get("'cudagraph_mode'")),
        capture_sizes=_integers(compilation.get("'cudagraph_capture_sizes'")),
        jit_monitor_mode=_word(observability.get("jit_monitor_mode")),
        jit_monitor_verbose=_boolean(observability.get("jit_monitor_verbose")),
        jit_warmup=_boolean(dict(_arguments(config.get("kernel_config"))).get("enable_jit_warmup")),
        prefix_caching=_boolean(config.get("enable_prefix_caching")),
        device=_word(config.get("device_config")),
    )


def _items(text: str, between: str) -> Iterator[tuple[str, str]]:
    """Key and raw value of each item at the top level, up to the closing bracket or the end."""
    depth = start = 0
    end = len(text)
    for at, mark in _unquoted(text):
        if mark in "([{":
            depth += 1
        elif mark == ",":
            if not depth:
                yield _pair(text[start:at], between)
                start = at + 1
        elif not depth:
            end = at
            break
        else:
            depth -= 1
    yield _pair(text[start:end], between)


def _unquoted(text: str) -> Iterator[tuple[int, str]]:
    """Brackets and commas that stand in no string, and where."""
    quote, escaped = "", -1
    for found in _MARKS.finditer(text):
        at, mark = found.start(), found.group()
        if quote:
            if mark == "\\" and at != escaped:
                escaped = at + 1
            elif mark == quote and at != escaped:
                quote = ""
        elif mark in "'\"":
            quote = mark
        elif mark != "\\":
            yield at, mark


def _pair(item: str, between: str) -> tuple[str, str]:
    key, _, value = item.partition(between)
    return key.strip(), value.strip()


def _arguments(value: str | None) -> Iterator[tuple[str, str]]:
    """Of `Name(a=1, b=2)`."""
    return _items(value.partition("(")[2], "=") if value else iter(())


def _nested(value: str | None, key: str, between: str) -> int | None:
    return _integer(dict(_items(value.removeprefix("{"), between)).get(key)) if value else None


def _integer(value: str | None) -> int | None:
    if value is None or len(value) > 18 or not (value.isascii() and value.isdigit()):
        return None
    return int(value) or None


def _integers(value: str | None) -> tuple[int, ...] | None:
    if value is None or not value.startswith("["):
        return None
    sizes = [_integer(size.strip()) for size in value.strip("[]").split(",")[:_MAX_SIZES]]
    return tuple(size for size in sizes if size is not None)


def _boolean(value: str | None) -> bool | None:
    return {"True": True, "False": False}.get(value or "")


def _word(value: str | None) -> str | None:
    word = (value or "").strip("'\"")
    return word if word.isalnum() and len(word) <= 40 else None


def _mode(value: str | None) -> str | None:
    """FULL_AND_PIECEWISE of `<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>`."""
    mode = (value or "").partition("CUDAGraphMode.")[2].partition(":")[0]
    return mode if mode.replace("_", "a").isalnum() and len(mode) <= 40 else None

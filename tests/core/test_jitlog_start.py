"""What the start lines tell, and when a boot begins."""

from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.logs.bootlog import BootLog
from sidecar.core.logs.facts import StartFacts, from_arguments, from_config, from_log
from sidecar.core.logs.lines import Lines
from sidecar.core.logs.parse import parse

LOGS = Path(__file__).parent.parent / "data" / "logs"
API = "(APIServer pid={}) INFO 11-29 15:49:33 [api_utils.py:286] "
CORE = "(EngineCore pid=9) INFO 11-29 15:49:33 [core.py:133] "
ACTIVE = (
    "({}) INFO 11-29 15:49:33 [jit_monitor.py:79] Kernel JIT monitor activated; monitored JIT "
    "compilations during inference will use mode=warn."
)
ANSWER = 'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'


def boot_of(*lines: str) -> BootLog:
    boot = BootLog()
    for line in lines:
        event = parse(line)
        if event is not None:
            boot.feed(event)
    return boot


def boot_of_file(name: str) -> BootLog:
    return boot_of(*Lines().feed((LOGS / name).read_bytes()))


def test_a_real_gpu_server() -> None:
    """vLLM 0.26.0 on one H200, verbose and with iteration details."""
    boot = boot_of_file("gpu-0.26.0-steps.log")
    sizes = boot.facts.capture_sizes
    assert sizes is not None
    assert (len(sizes), sizes[0], sizes[-1]) == (51, 1, 512)
    assert replace(boot.facts, capture_sizes=None) == StartFacts(
        version="0.26.0",
        max_model_len=40960,
        max_num_batched_tokens=8192,
        kv_cache_tokens=4_359_696,
        tensor_parallel=1,
        pipeline_parallel=1,
        data_parallel=1,
        draft_tokens=0,
        enforce_eager=False,
        cudagraph_mode="FULL_AND_PIECEWISE",
        jit_monitor_mode="warn",
        jit_monitor_verbose=True,
        prefix_caching=True,
        device="cuda",
    )
    assert (boot.facts.ranks, len(boot.listeners), boot.is_serving) == (1, 1, True)
    assert boot.facts.warnings() == ()


def test_a_real_cpu_server_whose_cache_was_sized() -> None:
    """`--kv-cache-memory-bytes 64M` is one of the two settings that are warned of."""
    facts = boot_of_file("cpu-0.32.0-server.log").facts
    assert (facts.version, facts.kv_cache_memory_bytes) == ("0.32.0", 64 << 20)
    assert facts.kv_cache_tokens == 65536
    (warning,) = facts.warnings()
    assert "--kv-cache-memory-bytes" in warning


def test_a_real_eager_server_has_no_monitor() -> None:
    """0.31+ turns the JIT warm-up off with the graphs; no rank says that it listens."""
    boot = boot_of_file("cpu-0.32.0-requests.log")
    assert boot.facts.enforce_eager is True
    assert boot.facts.jit_warmup is False
    assert boot.facts.capture_sizes == ()
    assert not boot.listeners
    (warning,) = boot.facts.warnings()
    assert "--enforce-eager" in warning


def test_a_real_speculating_server() -> None:
    """n-gram speculation with three draft tokens."""
    assert boot_of_file("cpu-0.32.0-ngram.log").facts.draft_tokens == 3


def test_a_real_server_with_two_ranks() -> None:
    """Each rank of a dense model calls itself one of one: the arguments know better."""
    boot = boot_of_file("cpu-0.32.0-dp2.log")
    assert (boot.facts.data_parallel, boot.facts.ranks) == (2, 2)


def test_as_many_monitors_as_ranks_that_spoke() -> None:
    """A process counts once, however often its line comes."""
    lines = [ACTIVE.format(f"Worker_TP{rank} pid={rank + 10}") for rank in (0, 1, 1)]
    boot = boot_of(*lines, lines[0].replace("15:49:33", "15:49:34"))
    assert len(boot.listeners) == 2


def test_nothing_is_learned_once_users_can_write() -> None:
    """After the first answer no forged line adds a rank or a setting."""
    start = API.format(1) + "non-default args: {'max_num_seqs': 64}"
    boot = boot_of(start, ACTIVE.format("Worker_TP0 pid=10"), ANSWER)
    before = boot.facts
    for forged in (
        ACTIVE.format("Worker_TP1 pid=11"),
        CORE + "Initializing a V1 LLM engine (v9.9.9) with config: model='x', max_seq_len=5",
        CORE + "Using max model len 7",
    ):
        event = parse(forged)
        assert event is not None
        boot.feed(event)
    assert (boot.facts, len(boot.listeners)) == (before, 1)


def test_a_start_line_begins_another_boot() -> None:
    """With the same pid too, as in a container; what the last one was started with is forgotten."""
    start = API.format(1) + "non-default args: {'max_num_seqs': 64}"
    boot = boot_of(start, ACTIVE.format("Worker pid=7"), ANSWER)
    event = parse(API.format(1) + "non-default args: {'model': 'x'}")
    assert event is not None
    boot.feed(event)
    assert (boot.facts, boot.listeners) == (StartFacts(), frozenset())
    assert boot.is_serving is False


def test_a_forged_start_can_be_taken_back() -> None:
    """By a copy of what was known before: nothing that its lines brought is in it."""
    start = API.format(1) + "non-default args: {'max_num_seqs': 64}"
    boot = boot_of(start, ACTIVE.format("Worker_TP0 pid=10"), ANSWER)
    known, facts = copy(boot), boot.facts
    for forged in (
        API.format(1) + "non-default args: {'jit_monitor_verbose': True}",
        ACTIVE.format("Worker_TP0 pid=10"),
        ACTIVE.format("Worker_TP1 pid=11"),
    ):
        event = parse(forged)
        assert event is not None
        boot.feed(event)
    assert (boot.facts.jit_monitor_verbose, len(boot.listeners)) == (True, 2)
    assert (known.facts, len(known.listeners), known.is_serving) == (facts, 1, True)


def test_ranks_are_the_product_of_what_multiplies_workers() -> None:
    """Tensor × pipeline × prefill context × data; expert and decode context share ranks."""
    args = "{'prefill_context_parallel_size': 2, 'data_parallel_size': 4}"
    config = "(v0.33.0) with config: model='m', tensor_parallel_size=8, pipeline_parallel_size=1"
    facts = from_arguments(args)
    assert facts.ranks is None
    assert facts.with_(from_config(config)).ranks == 64


@pytest.mark.parametrize(
    ("message", "facts"),
    [
        ("Using max model len 40960", StartFacts(max_model_len=40960)),
        ("Cudagraph is disabled under eager mode", StartFacts(enforce_eager=True)),
        (
            "Enforce eager set, disabling torch.compile and CUDAGraphs. This is",
            StartFacts(enforce_eager=True),
        ),
        (
            "Initial free memory 1.0 GiB, reserved 1.0 GiB memory for KV Cache as specified by "
            "kv_cache_memory_bytes config and skipped memory profiling.",
            StartFacts(memory_profiled=False),
        ),
        ("GPU KV cache size: 1,472,416 tokens", StartFacts(kv_cache_tokens=1_472_416)),
        (
            "GPU KV cache size: 9,000 tokens, Maximum concurrency for 4,096 tokens per request: 2x",
            StartFacts(kv_cache_tokens=9000),
        ),
    ],
)
def test_each_start_line(message: str, facts: StartFacts) -> None:
    """Before and after their wordings changed (0.28, 0.31)."""
    assert boot_of(CORE + message).facts == facts
    assert boot_of(message).facts == StartFacts(), "a bare line is not vLLM's logger"


def test_the_smallest_cache_of_several_engines_counts() -> None:
    """Data-parallel engines may have found different room."""
    lines = [f"{CORE}GPU KV cache size: {size} tokens" for size in ("9,000", "8,000", "9,500")]
    assert boot_of(*lines).facts.kv_cache_tokens == 8000


def test_arguments_are_read_at_the_top_level_only() -> None:
    """What another dict, a string or an object in the arguments says is not the engine's."""
    facts = from_arguments(
        "{'model': \"it's 'max_num_seqs': 3, {\", 'served': ['a, b', 'c'], 'mode': <X.Y: (1, 2)>, "
        "'speculative_config': {'method': 'eagle', 'max_model_len': 7, 'num_speculative_tokens': 5}"
        ", 'path': PosixPath('/m'), 'quote': 'a\\'b', 'max_num_seqs': 64, 'enforce_eager': True}"
    )
    assert facts == StartFacts(max_num_seqs=64, enforce_eager=True, draft_tokens=5)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "}", "{'max_num_seqs': -1}", "{'max_num_seqs': True}", "{'max_num_seqs'"),
        *("{'max_num_seqs': 1e3}", "{'max_num_seqs': '5'}", "{" * 1000, "'" * 1000, "\\" * 99),
        *("{'max_num_seqs': " + "9" * 5000 + "}", "{'max_num_seqs': None}"),
    ],
)
def test_what_cannot_be_read_is_unknown(text: str) -> None:
    """Never zero, never a guess, never an exception."""
    assert from_arguments(text) == StartFacts()
    assert from_config(text) == StartFacts()


def test_no_secret_of_the_arguments_is_kept() -> None:
    """Up to 0.28 an API key stands in the line as it is."""
    event = parse(API.format(5) + "non-default args: {'api_key': 'sk-secret', 'model': 'm'}")
    assert "secret" not in repr(event)


def test_the_log_fills_in_what_the_engine_does_not_say() -> None:
    """Named as the source, and only what was told; what it can't tell stays as it was."""
    start = StartFacts(max_num_seqs=64, data_parallel=2, draft_tokens=0, capture_sizes=(1, 2))
    facts = from_log(EngineFacts(max_model_len=4096), start)
    assert (facts.max_num_seqs, facts.ranks, facts.max_model_len) == (64, 2, 4096)
    assert (facts.speculation, facts.draft_tokens, facts.capture_sizes) == (False, 0, (1, 2))
    assert facts.sources["max_num_seqs"] == "log"
    assert "max_model_len" not in facts.sources


def test_what_the_engine_says_itself_wins_over_its_log() -> None:
    """Its answer is of today, and nobody else wrote it."""
    known = EngineFacts(max_num_batched_tokens=8192, sources={"max_num_batched_tokens": "/x"})
    facts = from_log(known, StartFacts(max_num_batched_tokens=512))
    assert facts.max_num_batched_tokens == 8192
    assert facts.sources == {"max_num_batched_tokens": "/x"}

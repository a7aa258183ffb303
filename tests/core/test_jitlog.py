"""Every wording that tells of a compile, and what only looks like one."""

import json
import random
from pathlib import Path

import pytest

from sidecar.core.logs.events import (
    Access,
    Activated,
    Compile,
    Complaint,
    Finished,
    LogEvent,
    Phase,
    Started,
    Step,
    Trouble,
)
from sidecar.core.logs.lines import Lines
from sidecar.core.logs.parse import fence_target, parse
from sidecar.core.logs.reader import LogReader

LOGS = Path(__file__).parent.parent / "data" / "logs"
TAIL = " This causes a latency spike; consider extending warmup to cover this shape/config."
HEAD = "(EngineCore pid=797) WARNING 11-29 17:16:42 [jit_monitor.py:132] "
K = f"CuTeDSL JIT compilation during inference: K.{TAIL}"
FOREIGN = "(APIServer pid=5) INFO 11-29 17:16:42 [request_logger.py:65] "


def events_of(name: str) -> list[LogEvent]:
    lines, reader = Lines(), LogReader()
    texts = lines.feed((LOGS / name).read_bytes()) + lines.end()
    return [event for text in texts if (event := reader.feed(text)) is not None]


def compile_of(line: str) -> Compile:
    event = parse(line)
    assert isinstance(event, Compile), line
    return event


def test_the_two_lines_that_started_it() -> None:
    """Word for word as reported, on two lines and without a head."""
    first = compile_of("CuTeDSL JIT compilation during inference: W4A16FusedMoeKernel.")
    assert (first.backend, first.event) == ("CuTeDSL", "JIT compilation")
    assert first.kernel == "W4A16FusedMoeKernel"
    assert parse(TAIL.strip()) is None


@pytest.mark.parametrize(
    ("message", "backend", "event", "kernel", "detail"),
    [
        # 0.21-0.24, and 0.25+ without detail
        (
            f"Triton kernel JIT compilation during inference: _causal_conv1d_fwd_kernel.{TAIL}",
            *("Triton", "kernel JIT compilation", "_causal_conv1d_fwd_kernel", ""),
        ),
        # 0.24 verbose: no tail
        (
            "Triton kernel JIT compilation during inference: _fwd (key=('*bf16', 'D')).",
            *("Triton", "kernel JIT compilation", "_fwd", "key=('*bf16', 'D')"),
        ),
        (
            "Triton autotune/warmup candidate JIT compilation during inference: _fwd (key=1).",
            *("Triton", "autotune/warmup candidate JIT compilation", "_fwd", "key=1"),
        ),
        # 0.25+
        (
            "CuTeDSL JIT compilation during inference: FlashAttentionForwardSm100." + TAIL,
            *("CuTeDSL", "JIT compilation", "FlashAttentionForwardSm100", ""),
        ),
        # 0.26+
        (
            "TileLang JIT compilation during inference: mhc_post (cache_key=ab12; "
            f"runtime_shapes={{x=(896, 4, 4096), y=(896,)}}).{TAIL}",
            *("TileLang", "JIT compilation", "mhc_post"),
            "cache_key=ab12; runtime_shapes={x=(896, 4, 4096), y=(896,)}",
        ),
        # a backend that comes later
        (
            f"Helion kernel JIT compilation during inference: k.{TAIL}",
            *("Helion", "kernel JIT compilation", "k", ""),
        ),
    ],
)
def test_every_wording_of_the_monitor(
    message: str, backend: str, event: str, kernel: str, detail: str
) -> None:
    """With vLLM's head, with another process's, and bare: the same event."""
    for line in (HEAD + message, message, f"(EngineCore pid=797) {message}"):
        told = compile_of(line)
        assert (told.backend, told.event, told.kernel, told.detail) == (
            *(backend, event, kernel, detail),
        )


def test_a_tilelang_line_tells_the_steps_shapes() -> None:
    """The first dimension is mostly the token count of the step."""
    told = compile_of(
        f"{HEAD}TileLang JIT compilation during inference: k (cache_key=a; "
        f"runtime_shapes={{x=(896, 4)}}).{TAIL}"
    )
    assert told.shapes == "x=(896, 4)"
    assert told.constexprs is None


def test_a_real_verbose_line_tells_its_constants() -> None:
    """Two specializations of one kernel are told apart by their details (vLLM 0.26.0, H200)."""
    first, second = [
        e for e in events_of("gpu-0.26.0-verbose.log") if isinstance(e, Compile) and e.detail
    ]
    assert first.kernel == second.kernel == "fused_moe_kernel"
    assert first.detail != second.detail
    assert "top_k=8" in (first.constexprs or "")
    assert "top_k=1" in (second.constexprs or "")
    assert first.origin.process == "EngineCore"
    assert first.origin.at == "11-29 16:17:34"


def test_a_real_line_without_verbose_has_the_kernel_only() -> None:
    """vLLM 0.26.0 with its defaults."""
    monitored = [
        e for e in events_of("gpu-0.26.0-first.log") if isinstance(e, Compile) and "JIT" in e.event
    ]
    assert [(e.kernel, e.detail) for e in monitored] == [("fused_moe_kernel", "")]


@pytest.mark.parametrize(
    ("head", "process", "pid", "rank"),
    [
        ("(Worker_DP0_TP1_EP3 pid=12) ", "Worker_DP0_TP1_EP3", 12, "DP0_TP1_EP3"),
        ("(Worker pid=12) ", "Worker", 12, None),
        ("(EngineCore_DP1 pid=3) ", "EngineCore_DP1", 3, "DP1"),
        ("(ApiServer_2 pid=3) ", "ApiServer_2", 3, None),
        ("(EngineCore pid=1) (RayWorkerWrapper pid=2, ip=10.0.0.9) ", "RayWorkerWrapper", 2, None),
        ("", None, None, None),
    ],
)
def test_who_wrote_it(head: str, process: str | None, pid: int | None, rank: str | None) -> None:
    """Process, pid and rank as vLLM names them, behind Ray's own head too."""
    event = compile_of(
        f"{head}WARNING 11-29 17:16:42 [jit_monitor.py:132] "
        f"Triton kernel JIT compilation during inference: k.{TAIL}"
    )
    assert (event.origin.process, event.origin.pid, event.origin.rank) == (process, pid, rank)


def test_ray_says_how_often_a_line_came() -> None:
    """Ray writes a line once for all of its workers."""
    event = compile_of(
        f"{HEAD}Triton kernel JIT compilation during inference: k.{TAIL} "
        "[repeated 7x across cluster]"
    )
    assert (event.kernel, event.repeated) == ("k", 7)


@pytest.mark.parametrize(
    "line",
    [
        f"\x1b[0;36m(EngineCore pid=7)\x1b[0;0m \x1b[33mWARNING\x1b[0m \x1b[90m11-29 17:16:42\x1b"
        f"[0m \x1b[90m[jit_monitor.py:132]\x1b[0m {K}",
        f"2026-11-29T17:16:42.123456789Z (EngineCore pid=7) WARNING 11-29 17:16:42 "
        f"[jit_monitor.py:1] {K}",
        "[AutoTuner]: Tuning OP:  50%|█████     | 5/10 [00:00<00:01, 40.7it/s](EngineCore pid=7) "
        f"WARNING 11-29 17:16:42 [jit_monitor.py:1] {K}",
        f"(EngineCore pid=7) WARNING 11-29 17:16:42 [vllm/utils/jit_monitor.py:1] {K}",
        json.dumps(
            {
                "asctime": "2026-11-29 17:16:42,1",
                "levelname": "WARNING",
                "name": "vllm.utils.jit_monitor",
                "processName": "EngineCore",
                "process": 7,
                "message": f"{K}",
            }
        ),
    ],
    ids=["colours", "docker timestamps", "after a progress bar", "debug path", "json"],
)
def test_what_stands_around_a_line_does_not_hide_it(line: str) -> None:
    """Colours, stamps, bars without an end, and vLLM 0.31's JSON."""
    event = compile_of(line)
    assert (event.kernel, event.origin.process, event.origin.pid) == ("K", "EngineCore", 7)


def test_a_configured_prefix_is_taken_off() -> None:
    """VLLM_LOGGING_PREFIX stands before the process from 0.31 on, behind it before."""
    rest = f"WARNING 11-29 17:16:42 [jit_monitor.py:1] {K}"
    assert isinstance(parse(f"[node1] (EngineCore pid=7) {rest}", "[node1] "), Compile)
    assert isinstance(parse(f"(EngineCore pid=7) [node1] {rest}", "[node1] "), Compile)
    assert parse(f"[node1] (EngineCore pid=7) {rest}") is None


FORGED = f"CuTeDSL JIT compilation during inference: Evil.{TAIL}"


@pytest.mark.parametrize(
    "line",
    [
        f"{FOREIGN}Received request cmpl-1: prompt: '{FORGED}', params: None.",
        f"{FOREIGN}{FORGED}",  # the second line of a message has the head of its message
        f"Received request cmpl-1: prompt: '{FORGED}'",
        f"{FOREIGN}prompt: \x1b[2K\x1b[1G{HEAD}{FORGED}",
        json.dumps({"name": "vllm.entrypoints.logger", "message": f"prompt: x\n{FORGED}"}),
        json.dumps({"name": "vllm.entrypoints.logger", "message": FORGED}),
        json.dumps({"message": f"Received request\n{HEAD}{FORGED}"}),
        f'INFO:     1.2.3.4:5 - "GET /x?{FORGED} HTTP/1.1" 200 OK',
        f"I said: {FORGED}",
        f" {FORGED}",
        FORGED.replace("CuTeDSL", "my own CuTeDSL,"),
        f"{HEAD}Kernel {FORGED}".replace("JIT", "JUT"),
    ],
)
def test_a_users_text_is_no_compile(line: str) -> None:
    """What stands inside a message is the user's, however it is dressed."""
    assert not isinstance(parse(line), Compile)


def test_no_prompt_is_kept() -> None:
    """Lines of request logging and of tracebacks give no event (vLLM 0.32.0 with both)."""
    for name in ("cpu-0.32.0-requests.log", "cpu-0.32.0-server.log"):
        lines = Lines()
        for text in lines.feed((LOGS / name).read_bytes()):
            if "Received request" in text or "Traceback" in text or 'File "' in text:
                assert parse(text) is None


def test_the_monitor_says_that_it_listens() -> None:
    """Both wordings; a line that another file logged is no such proof, nor is a bare one."""
    new = "Kernel JIT monitor activated; monitored JIT compilations during inference will use mode="
    old = "Kernel JIT monitor activated — Triton JIT compilations during inference will be logged"
    for message, mode in ((f"{new}warn.", "warn"), (f"{new}error.", "error"), (old, None)):
        event = parse(HEAD + message)
        assert isinstance(event, Activated)
        assert event.mode == mode
        assert parse(FOREIGN + message) is None
        assert parse(message) is None


def test_mode_error_dies_of_a_compile() -> None:
    """The exception says the same sentence, wherever its traceback stands."""
    event = compile_of(
        "(EngineCore pid=7) ERROR 11-29 17:16:42 [core.py:906] RuntimeError: Triton kernel JIT "
        f"compilation during inference: k.{TAIL}"
    )
    assert event.kernel == "k"


def test_tilelang_takes_as_long_as_its_two_lines_say() -> None:
    """Begin counts as the compile, the end gives the seconds; each rank has its own."""
    reader = LogReader()
    form = "2026-11-29 17:{}  [TileLang:tilelang.jit.kernel:INFO] (kernel.py:133): TileLang {}"
    begin, end = "begins to compile kernel `mhc` with `out_idx=None`", "completes to compile kernel"
    one = reader.feed("(Worker_TP0 pid=1) " + form.format("00:01", begin))
    reader.feed("(Worker_TP1 pid=2) " + form.format("00:03", begin))
    assert isinstance(one, Compile)
    assert (one.backend, one.kernel, one.duration_s) == ("TileLang", "mhc", None)
    second = reader.feed("(Worker_TP1 pid=2) " + form.format("00:14", f"{end} `mhc`"))
    first = reader.feed("(Worker_TP0 pid=1) " + form.format("00:11", f"{end} `mhc`"))
    unknown = reader.feed(form.format("00:11", f"{end} `mhc`"))
    assert isinstance(first, Finished)
    assert isinstance(second, Finished)
    assert isinstance(unknown, Finished)
    assert (first.duration_s, second.duration_s, unknown.duration_s) == (10.0, 11.0, None)
    assert first.origin.rank == "TP0"
    for begun in ("01", "02"):  # 0.31+: two ranks, and neither is named
        reader.feed(form.format(f"01:{begun}", begin))
    took = [reader.feed(form.format(f"01:{at}", f"{end} `mhc`")) for at in ("05", "09")]
    assert [e.duration_s for e in took if isinstance(e, Finished)] == [4.0, 7.0]


def test_an_autotune_block_has_its_seconds() -> None:
    """Four lines up to triton 3.9, of which the first names the kernel and the third the time."""
    reader = LogReader()
    block = [
        "Triton autotuning for function _fwd_kernel,",
        "with key as (64, 128, 'torch.bfloat16'),",
        "finished after 12.34s,",
        "best config selected: BLOCK_M: 64, num_warps: 4;",
    ]
    first, _, third, _ = (reader.feed(f"(EngineCore pid=1) {line}") for line in block)
    assert isinstance(first, Compile)
    assert (first.event, first.kernel, first.duration_s) == ("autotune", "_fwd_kernel", None)
    assert isinstance(third, Finished)
    assert (third.kernel, third.duration_s) == ("_fwd_kernel", 12.34)
    assert reader.feed("finished after 3.00s,") is None, "of nothing that began"


def test_an_older_autotune_line_has_all_in_one() -> None:
    """triton 3.0-3.2, and the line of each candidate."""
    one = compile_of(
        "Triton autotuning for function _fwd finished after 0.48s; best config selected: A: 1;"
    )
    assert (one.kernel, one.duration_s) == ("_fwd", 0.48)
    tried = compile_of("Autotuning kernel _fwd with config BLOCK: 64, num_warps: 4")
    assert (tried.event, tried.kernel) == ("autotune candidate", "_fwd")


@pytest.mark.parametrize(
    ("said", "event", "kernel"),
    [
        (
            "Building JIT module fused_moe_90; this can take several minutes on first use.",
            *("build", "fused_moe_90"),
        ),
        ("Compiling CuTe-DSL kernel gemm_sm100", "CuTe-DSL", "gemm_sm100"),
        ("Loading JIT ops: sampling", "load", "sampling"),
    ],
)
def test_flashinfer_builds(said: str, event: str, kernel: str) -> None:
    """flashinfer 0.2-0.7, with its logger's head and without."""
    head = "2026-11-29 16:20:19,991 - INFO - core.py:12 - flashinfer.jit: "
    for line in (f"(EngineCore pid=1) {head}{said}", head + said, f"flashinfer.jit: {said}"):
        told = compile_of(line)
        assert (told.backend, told.event, told.kernel) == ("FlashInfer", event, kernel)


def test_flashinfers_autotuner_has_milliseconds() -> None:
    """From a real log of vLLM 0.26.0."""
    (finished,) = [e for e in events_of("gpu-0.26.0-steps.log") if isinstance(e, Finished)]
    assert (finished.backend, finished.duration_s) == ("FlashInfer", pytest.approx(0.013))


def test_an_untuned_shape_is_no_compile() -> None:
    """FlashInfer falls back; nothing stalls, and its OOM is none of the engine."""
    head = "2026-11-29 16:20:19,991 - WARNING - autotuner.py:9 - flashinfer.jit: "
    for said in (
        "[AutoTuner]: No tuned config covers gemm input_shapes=((9, 4),); falling back tactic=-1.",
        "[Autotuner]: OOM detected, falling back to default tactic",
    ):
        assert parse(head + said) is None


def test_torch_recompiles() -> None:
    """TORCH_LOGS=recompiles, and a graph that vLLM compiles for a range."""
    line = (
        "V1129 16:20:19.991000 797 torch/_dynamo/guards.py:2812] [0/1] [__recompiles] "
        "Recompiling function forward in /x/qwen.py:12"
    )
    for text in (line, f"[rank1]:{line}", f"(EngineCore pid=797) {line}"):
        told = compile_of(text)
        assert (told.event, told.kernel, told.detail) == ("recompile", "forward", "qwen.py:12")
    assert parse(line.replace("Recompiling function", "    triggered by")) is None
    assert parse("say: [__recompiles] Recompiling function forward in x.py:1") is None
    graph = next(e for e in events_of("gpu-0.26.0-first.log") if isinstance(e, Compile))
    assert (graph.backend, graph.kernel) == ("torch", "compile range (1, 8192)")
    assert graph.duration_s == 15.92


def test_a_real_step_is_read_whole() -> None:
    """`--enable-logging-iteration-details` of vLLM 0.26.0, and 0.33's dummy steps."""
    steps = [e for e in events_of("gpu-0.26.0-steps.log") if isinstance(e, Step)]
    assert (steps[0].number, steps[0].context_requests, steps[0].context_tokens) == (0, 1, 64)
    assert (steps[1].generation_requests, steps[1].generation_tokens) == (1, 1)
    assert steps[0].elapsed_ms == 0.04
    assert not steps[0].is_dummy
    dummy = parse(
        "(APIServer pid=5) INFO 11-29 17:16:31 [loggers.py:200] Engine 003: Iteration(9): "
        "0 context requests, 0 context tokens, 1 generation requests, 4 generation tokens, "
        "iteration elapsed time: 7.20 ms (dummy), GPU KV cache usage: 0.0%"
    )
    assert isinstance(dummy, Step)
    assert (dummy.engine, dummy.generation_tokens, dummy.is_dummy) == (3, 4, True)
    assert (
        parse(f"{FOREIGN}Engine 000: Iteration(0): 1 context requests, 64 context tokens") is None
    )


@pytest.mark.parametrize(
    ("line", "path", "status"),
    [
        ('INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK', "/v1/completions", 200),
        ('INFO:     ::1:1 - "GET /health HTTP/1.1" 503 Service Unavailable', "/health", 503),
        ('INFO:      - "GET /metrics?secret=1 HTTP/1.1" 200 OK', "/metrics", 200),  # --uds
        ('(APIServer pid=5) INFO:     1.2.3.4:5 - "GET /ping HTTP/1.0" 200 OK', "/ping", 200),
        (
            json.dumps(
                {"name": "uvicorn.access", "message": '1.2.3.4:5 - "GET /load HTTP/1.1" 200'}
            ),
            *("/load", 200),
        ),
    ],
)
def test_access_lines(line: str, path: str, status: int) -> None:
    """Text and JSON, TCP and Unix socket; of the query nothing is kept."""
    event = parse(line)
    assert isinstance(event, Access)
    assert (event.path, event.status, event.nonce) == (path, status, None)
    assert "secret" not in repr(event)


def test_only_a_fence_keeps_its_nonce() -> None:
    """The query of /version, behind a root path too, if it is a nonce and nothing longer."""
    form = 'INFO:     1.2.3.4:5 - "GET {} HTTP/1.1" 200 OK'
    for target, nonce in (
        (fence_target("ab12"), "ab12"),
        ("/llm" + fence_target("ab12"), "ab12"),
        (fence_target("a" * 65), None),
        (fence_target("a&b"), None),
        ("/v1/models?warmup_fence=ab12", None),
    ):
        event = parse(form.format(target))
        assert isinstance(event, Access)
        assert event.nonce == nonce


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (
            "No available shared memory broadcast block found in 60 seconds. This typically",
            Complaint.STALLED,
        ),
        ("TimeoutError: RPC call to execute_model timed out.", Complaint.STEP_TIMEOUT),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to", Complaint.OUT_OF_MEMORY),
        ("RuntimeError: Worker failed with error 'CUDA out of memory.", Complaint.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: out of memory", Complaint.OUT_OF_MEMORY),
        ("Worker proc VllmWorker-0 died unexpectedly, shutting down", Complaint.WORKER_DIED),
        ("EngineCore encountered a fatal error.", Complaint.ENGINE_DEAD),
    ],
)
def test_what_an_engine_suffers_from(message: str, complaint: Complaint) -> None:
    """From vLLM's logger and from a bare traceback."""
    for line in (f"(EngineCore pid=7) ERROR 11-29 15:34:14 [core.py:906] {message}", message):
        event = parse(line)
        assert isinstance(event, Trouble)
        assert event.complaint is complaint
    assert parse(f"{FOREIGN}prompt: {message}") is None


def test_a_server_that_is_told_to_end_says_so() -> None:
    """Its signal handler's line, from its own file; a real log of vLLM 0.26.0 has it once."""
    said = "[shutdown] API server: shutdown triggered"
    event = parse(f"(APIServer pid=1) INFO 11-29 15:34:14 [launcher.py:254] {said}")
    assert isinstance(event, Trouble)
    assert event.complaint is Complaint.STOPPING
    for other in ("[serving.py:1]", "[launcher.py:254] prompt:"):
        assert parse(f"(APIServer pid=1) INFO 11-29 15:34:14 {other} {said}") is None
    events = events_of("gpu-0.26.0-first.log")
    told = [e.complaint for e in events if isinstance(e, Trouble)]
    assert told.count(Complaint.STOPPING) == 1


def test_a_server_that_was_stopped_calls_its_engine_dead_too() -> None:
    """A real log of vLLM 0.32.0: what comes after the signal handler's line is no crash."""
    events = events_of("cpu-0.32.0-killed.log")
    told = [e.complaint for e in events if isinstance(e, Trouble)]
    assert told == [Complaint.STOPPING, Complaint.ENGINE_DEAD]


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.glob("*.log")))
def test_a_real_log_serves_after_its_start(name: str) -> None:
    """One start, then `Application startup complete`, then answers."""
    events = events_of(name)
    phases = [e.phase for e in events if isinstance(e, Started)]
    assert phases.count(Phase.ARGUMENTS) == 1
    assert phases[0] is Phase.ARGUMENTS
    assert phases[-1] is Phase.SERVING
    assert any(isinstance(e, Access) for e in events)


def test_garbage_is_no_event_and_raises_nothing() -> None:
    """Real lines cut, doubled and scrambled: whatever comes out, nothing raises."""
    rng = random.Random(7)
    lines = [
        text
        for path in sorted(LOGS.glob("*.log"))
        for text in path.read_text(errors="replace").split("\n")[:120]
    ]
    marks = ["\x1b[", "(", ")", "{", "}", '"', "'", " pid=", "[", "]", "\0", "�", "Iteration("]
    reader = LogReader()
    for _ in range(3000):
        text = rng.choice(lines)[: rng.randrange(400)] + rng.choice(marks) + rng.choice(lines)[:200]
        at = rng.randrange(len(text))
        reader.feed(text[at:] + rng.choice(marks) * rng.randrange(3) + text[:at])


@pytest.mark.parametrize(
    "line",
    [
        "{" * 60_000 + "}",
        '{"message": ' + "[" * 60_000 + "}",
        "(" * 60_000,
        "(A pid=1) " * 6_000,
        "\x1b[" + "0;" * 30_000,
        "\x1b[" * 30_000,
        "INFO " * 12_000,
        f"{HEAD}Triton kernel JIT compilation during inference: " + "k (" * 20_000,
        "(A pid=1) INFO 11-29 17:16:31 [a.py:1] non-default args: {" + "'a': {" * 9_000,
        "Engine 000: Iteration(" * 2_000,
        " during inference: " * 3_000,
    ],
)
@pytest.mark.timeout(5)
def test_a_hostile_line_costs_no_more_than_its_length(line: str) -> None:
    """No pattern backtracks, no parser recurses out."""
    for _ in range(5):
        event = parse(line)
    if isinstance(event, Compile):
        assert len(event.kernel) <= 200
        assert len(event.detail) <= 4000

"""The log beside the waves: windows by fence, start lines adopted, and what proves nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sidecar.adapters import evidence as module
from sidecar.adapters.evidence import Evidence
from sidecar.core.logs.events import Compile, Step
from sidecar.core.logs.evidence import Hearing
from sidecar.core.logs.items import Began, Counts, Ended, Gap, Line
from sidecar.core.logs.seen import Seen
from sidecar.core.logs.window import Completeness, Expected
from tests.service.virtualtime import VirtualLoop

COMPILE = (
    "(EngineCore pid=2) WARNING 11-29 17:14:24 [jit_monitor.py:132] Triton kernel JIT compilation "
    "during inference: {}. This causes a latency spike; consider extending warmup to cover this "
    "shape/config."
)
ACTIVATED = (
    "(EngineCore pid=2) INFO 11-29 17:14:20 [jit_monitor.py:79] Kernel JIT monitor activated; "
    "monitored JIT compilations during inference will use mode=warn."
)
ARGUMENTS = (
    "(APIServer pid=1) INFO 11-29 17:14:10 [api_utils.py:286] non-default args: "
    "{'max_num_batched_tokens': %d, 'jit_monitor_verbose': %s}"
)
CONFIG = (
    "(EngineCore pid=2) INFO 11-29 17:14:12 [core.py:133] Initializing a V1 LLM engine (v0.32.0) "
    "with config: model='tiny', max_seq_len=2048, tensor_parallel_size=1, "
    "pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=False"
)
START = (ARGUMENTS % (512, True), CONFIG, ACTIVATED, "INFO:     Application startup complete.")
POST = 'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK'
EXPECTED = (Expected("/v1/completions", 1),)


class Tape:
    """A source that a test writes; the engine that writes fences into it."""

    def __init__(self, *, lossy: bool = False, origin: str | None = None) -> None:
        self._items: asyncio.Queue = asyncio.Queue()
        self.is_lossy = lossy
        self.trouble: str | None = None
        self.counts = Counts()
        self.origin = origin
        self.writes_fences = True

    async def lines(self):
        while True:
            yield await self._items.get()

    def write(self, *texts: str, old: bool = False, origin: str | None = None) -> None:
        for text in texts:
            self.put(Line(text, time.monotonic(), origin or self.origin, old))

    def put(self, item) -> None:
        self._items.put_nowait(item)

    async def touch(self, path: str) -> None:
        if self.writes_fences:
            self.write(f'INFO:     10.0.0.1:5 - "GET {path} HTTP/1.1" 200 OK')


@asynccontextmanager
async def reading(*tapes: Tape, **options) -> AsyncIterator[Evidence]:
    evidence = Evidence([(f"tape-{n}", tape) for n, tape in enumerate(tapes)], **options)
    task = asyncio.create_task(evidence.run())
    try:
        yield evidence
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Fences that never come are waited for in full, in no time."""
    return "asyncio", {"loop_factory": VirtualLoop}


async def wave_of(evidence: Evidence, tape: Tape, *during: str):
    wave = await evidence.begin(tape.touch, EXPECTED)
    tape.write(POST, *during)
    return await wave.end()


async def test_what_stands_between_the_fences_is_the_waves() -> None:
    """A compile inside is loud, one before is nobody's; the rest is silence that counts."""
    tape = Tape()
    async with reading(tape) as evidence:
        tape.write(*START)
        facts = await evidence.adopt(tape.touch)
        assert (facts.max_num_batched_tokens, facts.ranks) == (512, 1)
        tape.write(COMPILE.format("before"))
        told = await wave_of(evidence, tape, COMPILE.format("inside"), "a prompt of a user")
        assert [c.kernel for c in told.compiles] == ["inside"]
        assert [c.kernel for c in told.earlier] == ["before"]
        assert told.hearing is Hearing.COMPLETE
        quiet = await wave_of(evidence, tape)
        assert (quiet.compiles, quiet.earlier, quiet.words) == ((), (), "complete")


async def test_without_its_nonce_a_log_proves_nothing() -> None:
    """Start lines, monitors and silence of a log in which no fence shows: it may be any log."""
    tape = Tape()
    tape.writes_fences = False
    async with reading(tape) as evidence:
        tape.write(*START)
        facts = await evidence.adopt(tape.touch)
        assert facts.max_num_batched_tokens is None
        told = await wave_of(evidence, tape, 'INFO: 1.2.3.4:5 - "GET /version?warmup_fence=f0" 200')
        assert told.completeness is Completeness.NONE
        assert "no fence was seen" in told.words
        loud = await wave_of(evidence, tape, COMPILE.format("inside"))
        assert [c.kernel for c in loud.compiles] == ["inside"]


async def test_a_fence_that_never_comes_is_waited_for_a_few_times_only() -> None:
    """A wrong log must not make every wave longer."""
    tape = Tape()
    tape.writes_fences = False
    async with reading(tape) as evidence:
        await evidence.adopt(tape.touch)
        for _ in range(4):
            await wave_of(evidence, tape)
        began_s = asyncio.get_running_loop().time()
        for _ in range(20):
            await wave_of(evidence, tape)
        assert asyncio.get_running_loop().time() == began_s


async def test_start_lines_written_while_it_serves_are_believed_by_nobody() -> None:
    """A user promises more monitors and a verbose one: what was adopted at the start stands."""
    tape = Tape()
    async with reading(tape) as evidence:
        tape.write(ARGUMENTS % (512, False), *START[1:])
        await evidence.adopt(tape.touch)
        tape.write(POST, ARGUMENTS % (64, True), ACTIVATED)
        told = await wave_of(evidence, tape)
        assert told.hearing is Hearing.ONCE_ONLY
        inside = await wave_of(evidence, tape, *START)
        assert inside.hearing is Hearing.PARTIAL
        assert "started anew" in inside.words


async def test_start_lines_in_history_after_answers_are_doubtful() -> None:
    """Nobody saw that restart: facts are taken, one quiet wave is not enough."""
    tape = Tape()
    async with reading(tape) as evidence:
        tape.write(*START, POST, *START, old=True)
        facts = await evidence.adopt(tape.touch)
        assert facts.max_num_batched_tokens == 512
        told = await wave_of(evidence, tape)
        assert told.hearing is Hearing.ONCE_ONLY
        assert "users, who may have written them" in told.words


async def test_a_new_boot_is_known_by_its_own_start_lines() -> None:
    """What the life before had promised is forgotten, and so are containers that are gone."""
    tape = Tape(origin="a")
    async with reading(tape) as evidence:
        tape.put(Began(0.0, "a"))
        tape.write(*START)
        await evidence.adopt(tape.touch)
        tape.put(Ended(0.0, "a", "it was removed"))
        tape.origin = "b"
        tape.put(Began(0.0, "b"))
        tape.write(ARGUMENTS % (1024, False), CONFIG, ACTIVATED.replace("pid=2", "pid=3"))
        facts = await evidence.adopt(tape.touch)
        assert facts.max_num_batched_tokens == 1024
        told = await wave_of(evidence, tape)
        assert (told.listening.monitors, told.hearing) == (1, Hearing.ONCE_ONLY)


@pytest.mark.parametrize(
    ("item", "hearing"),
    [
        (Gap(0.0, "it was gone", seconds=3.2), Hearing.PARTIAL),
        (Gap(0.0, "it was gone", lost_bytes=0), Hearing.COMPLETE),
        (Ended(0.0, "a", "it was restarted"), Hearing.PARTIAL),
        (Began(0.0, "a", why="a sender connected"), Hearing.PARTIAL),
        (Began(0.0, "b", why="a sender connected"), Hearing.COMPLETE),
    ],
)
async def test_a_break_in_the_wave_is_no_silence(item, hearing) -> None:
    """Unless nothing was lost, or it is another sender's."""
    tape = Tape(origin="a")
    async with reading(tape) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        wave = await evidence.begin(tape.touch, EXPECTED)
        tape.put(item)
        tape.write(POST)
        assert (await wave.end()).hearing is hearing


async def test_a_lossy_source_is_never_silent() -> None:
    """Both fences came, and still something may be missing between them."""
    tape = Tape(lossy=True)
    async with reading(tape) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        assert (await wave_of(evidence, tape)).hearing is Hearing.NONE


async def test_two_nodes_are_one_engine_whose_second_log_has_no_fence() -> None:
    """Rank 1 listens, and its lines are loud; but nothing says when its silence is whole."""
    first, second = Tape(), Tape()
    async with reading(first, second) as evidence:
        two = CONFIG.replace("tensor_parallel_size=1", "tensor_parallel_size=2")
        first.write(START[0], two, ACTIVATED)
        second.write(START[0], two, ACTIVATED.replace("EngineCore pid=2", "Worker_TP1 pid=9"))
        await evidence.adopt(first.touch)
        told = await wave_of(evidence, first)
        assert (told.listening.monitors, told.listening.ranks) == (2, 2)
        assert told.hearing is Hearing.PARTIAL
        wave = await evidence.begin(first.touch, EXPECTED)
        second.write(COMPILE.format("there"))
        first.write(POST)
        assert [c.kernel for c in (await wave.end()).compiles] == ["there"]


async def test_who_listens_hears_what_happens_and_not_what_happened() -> None:
    """In order, each with whether a wave of ours was running; history is no news."""
    heard: list[Seen] = []
    tape = Tape()
    async with reading(tape, on_seen=heard.append) as evidence:
        tape.write(*START, COMPILE.format("old"), old=True)
        await evidence.adopt(tape.touch)
        await wave_of(evidence, tape, COMPILE.format("ours"))
        tape.put(Gap(0.0, "it was gone", seconds=1.0))
        tape.write(COMPILE.format("escape"), "secret words of a user")
        await evidence.adopt(tape.touch)
    told = [(s.what.kernel if isinstance(s.what, Compile) else "gap", s.in_wave) for s in heard]
    assert told == [("ours", True), ("gap", False), ("escape", False)]
    assert "secret" not in repr(heard)


async def test_a_wave_that_is_cut_off_leaves_nothing_behind() -> None:
    """The next one has windows of its own."""
    tape = Tape()
    async with reading(tape) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        (await evidence.begin(tape.touch, EXPECTED)).drop()
        told = await wave_of(evidence, tape)
        assert (told.words, told.foreign) == ("complete", 0)


async def test_what_a_wave_that_is_cut_off_compiled_stands_before_the_next() -> None:
    """Of no cell, but something was compiled; and once only, though it was read before the cut."""
    tape, was_read = Tape(), asyncio.Event()

    def hear(seen: Seen) -> None:
        if isinstance(seen.what, Compile):
            was_read.set()

    async with reading(tape, on_seen=hear) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        wave = await evidence.begin(tape.touch, EXPECTED)
        tape.write(COMPILE.format("unseen"))
        await was_read.wait()
        wave.drop()
        told = [await wave_of(evidence, tape) for _ in range(2)]
    assert [[c.kernel for c in one.earlier] for one in told] == [["unseen"], []]
    assert [one.compiles for one in told] == [(), ()]


async def test_a_wave_that_is_cut_off_at_its_first_fence_is_over() -> None:
    """What compiles afterwards is an escape, and the next boot is known by its start lines."""
    tape, heard = Tape(), []
    async with reading(tape, on_seen=heard.append) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)

        async def no_answer(path: str) -> None:
            await asyncio.sleep(20)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await evidence.begin(no_answer, EXPECTED)
        tape.write(COMPILE.format("later"))
        assert (await evidence.adopt(tape.touch)).max_num_batched_tokens == 512
    assert [seen.in_wave for seen in heard if isinstance(seen.what, Compile)] == [False]


async def test_senders_beyond_the_bound_are_counted_and_named() -> None:
    """Whoever may send could invent tags without end, and the engine's be the one too many."""
    tape = Tape()
    async with reading(tape) as evidence:
        for n in range(module.MAX_STREAMS + 10):
            tape.write(POST, origin=f"tag-{n}")
        await evidence.adopt(tape.touch)
        (state,) = evidence.states
        assert state.counts.dropped_lines == 11  # the fence's own line too
        (warning,) = evidence.warnings
        assert "more than 64 senders" in warning


async def test_a_source_in_trouble_is_warned_of() -> None:
    """By its name, as long as it lasts."""
    tape = Tape()
    tape.trouble = "/logs/vllm.log is not there yet"
    evidence = Evidence([("file:///logs/vllm.log", tape)])
    assert evidence.warnings == ("log file:///logs/vllm.log: /logs/vllm.log is not there yet",)
    tape.trouble = None
    assert evidence.warnings == ()


async def test_a_bug_in_the_reading_breaks_a_window_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The gate goes on; what the line said, which may be a user's, is not repeated."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)
    tape = Tape()
    async with reading(tape) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        wave = await evidence.begin(tape.touch, EXPECTED)
        tape.put("secret: no item at all")
        tape.write(POST)
        told = await wave.end()
        assert (told.hearing, "a bug" in told.words) == (Hearing.PARTIAL, True)
        assert (await wave_of(evidence, tape)).words == "complete"
    assert "a bug: " in caplog.text
    assert "secret" not in caplog.text


async def test_a_start_that_was_none_is_forgotten() -> None:
    """Whoever wrote it: facts learned later on the same boot are those of its real start."""
    tape = Tape()
    async with reading(tape) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        tape.write(ARGUMENTS % (7, False), ARGUMENTS % (8, False))
        await wave_of(evidence, tape)
        evidence.reject_start()
        assert (await evidence.adopt(tape.touch)).max_num_batched_tokens == 512
        assert (await wave_of(evidence, tape)).hearing is Hearing.COMPLETE


async def test_lines_of_a_wave_that_come_late_are_no_escapes() -> None:
    """Before its last fence they are the wave's, though it has ended; after it they are others'."""
    tape, told = Tape(), []
    async with reading(tape, on_seen=told.append) as evidence:
        tape.write(*START)
        await evidence.adopt(tape.touch)
        late: list[str] = []

        async def slow(path: str) -> None:
            late.append(path)

        wave = await evidence.begin(tape.touch, EXPECTED)
        tape.write(POST)
        wave._send = slow
        assert (await wave.end()).completeness is Completeness.PARTIAL
        tape.write(COMPILE.format("late"))
        await tape.touch(late[0])
        tape.write(COMPILE.format("after"))
        await evidence.adopt(tape.touch)  # its fence comes behind all that
    compiles = [(s.what.kernel, s.in_wave) for s in told if isinstance(s.what, Compile)]
    assert compiles == [("late", True), ("after", False)]


async def test_the_step_after_a_compile_is_told_and_no_other() -> None:
    """A flood of iteration lines is not passed on."""
    tape, told = Tape(), []
    line = (
        "(APIServer pid=1) INFO 11-29 17:14:24 [loggers.py:182] Engine 000: Iteration({}): 1 "
        "context requests, 17 context tokens, 0 generation requests, 0 generation tokens, "
        "iteration elapsed time: 0.04 ms, GPU KV cache usage: 0.1%"
    )
    async with reading(tape, on_seen=told.append) as evidence:
        tape.write(*START, line.format(1), COMPILE.format("k"), line.format(2), line.format(3))
        await evidence.adopt(tape.touch)
    steps = [s.what.number for s in told if isinstance(s.what, Step)]
    assert steps == [2]

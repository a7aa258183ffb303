"""The state folder and the ready file: whole or not at all, and never fatal once it runs."""

import gc
import json
import os
import random
import threading
from dataclasses import replace
from functools import partial

import anyio
import pytest
from anyio import to_thread

from sidecar.adapters import readyfile, statefiles
from sidecar.adapters import state as state_module
from sidecar.adapters.atomic import PART, write_atomically
from sidecar.adapters.readyfile import ReadyFile, shared
from sidecar.adapters.state import (
    DEATHS,
    HISTORY,
    IN_FLIGHT,
    LAST_REPORT,
    MARK,
    VERDICT,
    StateDir,
)
from sidecar.adapters.statefiles import last_report
from sidecar.core.errors import ConfigError
from sidecar.core.grid.cells import Gait
from sidecar.core.report import to_text
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.deaths import InFlight, death_of
from sidecar.core.watch.escapes import Escape
from sidecar.core.watch.kept import Kept
from tests.core.test_report import REPORT
from tests.core.test_report import VERDICT as GRID
from tests.patience import until

KEPT = Kept(
    boot=BootMark(requests=5.0, version="0.33.0"),
    url="http://vllm:8000",
    shapes_digest="d1",
    facts=REPORT.facts,
    verdict=GRID,
    proven=False,
    reasons=("one cell is not proven",),
    nonce="ab12",
    marked_at=1_700_000_000.0,
)


async def test_what_is_kept_is_loaded_by_the_next_life(tmp_path):
    """A verdict survives, to the last field; without one there is None and no trouble."""
    folder = tmp_path / "a" / "state"
    first = await to_thread.run_sync(StateDir, folder)
    assert await first.load() is None
    await first.keep(KEPT)
    del first
    second = await to_thread.run_sync(StateDir, folder)
    assert await second.load() == KEPT
    assert second.troubles == ()


async def test_a_newer_mark_is_loaded_with_the_verdict_it_belongs_to(tmp_path):
    """The boot's counters go on after the gate opened; a mark of another run is left alone."""
    first = await to_thread.run_sync(StateDir, tmp_path)
    await first.keep(KEPT)
    newer = BootMark(requests=900.0, version="0.33.0")
    await first.refresh(newer, 1_700_000_999.0)
    second = await to_thread.run_sync(StateDir, tmp_path)
    loaded = await second.load()
    assert (loaded.boot, loaded.marked_at) == (newer, 1_700_000_999.0)
    await second.keep(replace(KEPT, nonce="other"))
    assert (await (await to_thread.run_sync(StateDir, tmp_path)).load()).boot == KEPT.boot


async def test_a_mark_without_a_verdict_is_not_written(tmp_path):
    """There is nothing that it could belong to."""
    await (await to_thread.run_sync(StateDir, tmp_path)).refresh(BootMark(requests=1.0), 1.0)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"null", b'{"boot": 3}', b"\xff\xfe", b"[" * 100_000, b'{"format": 99}'],
)
async def test_a_damaged_verdict_is_set_aside_and_said(tmp_path, damage):
    """Never fatal, never adopted, kept for whoever wants to look."""
    (tmp_path / VERDICT).write_bytes(damage)
    state = await to_thread.run_sync(StateDir, tmp_path)
    assert await state.load() is None
    (trouble,) = state.troubles
    assert "damaged" in trouble
    assert (tmp_path / f"{VERDICT}.damaged").read_bytes() == damage
    assert not (tmp_path / VERDICT).exists()
    await state.keep(KEPT)
    assert state.troubles == ()


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"nonce": "ab12", "at": 1, "mark": {"requests": "x"}}']
)
async def test_a_damaged_mark_leaves_the_verdict_usable(tmp_path, damage):
    """The older mark still tells its boot."""
    first = await to_thread.run_sync(StateDir, tmp_path)
    await first.keep(KEPT)
    (tmp_path / MARK).write_text(damage)
    second = await to_thread.run_sync(StateDir, tmp_path)
    assert await second.load() == KEPT
    assert "damaged" in second.troubles[0]


async def test_a_verdict_beyond_the_bound_is_not_read(tmp_path, monkeypatch):
    """No file is read into memory that is larger than ours can be."""
    monkeypatch.setattr(state_module, "MAX_FILE_BYTES", 10)
    (tmp_path / VERDICT).write_text("x" * 11)
    state = await to_thread.run_sync(StateDir, tmp_path)
    assert await state.load() is None
    assert "damaged" in state.troubles[0]


async def test_reports_go_to_the_last_and_to_the_history(tmp_path):
    """The last report is whole; the history has a line for each run, without its waves."""
    state = await to_thread.run_sync(StateDir, tmp_path)
    await state.add_report(REPORT)
    await state.add_report(replace(REPORT, nonce="second"))
    assert (await to_thread.run_sync(last_report, tmp_path)).nonce == "second"
    assert (await to_thread.run_sync(last_report, tmp_path)).waves == REPORT.waves
    lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    assert [line["nonce"] for line in lines] == ["ab12cd34", "second"]
    assert lines[0]["waves"] == []


async def test_the_history_is_bounded(tmp_path, monkeypatch):
    """When it is full the older half goes, and the newest stays."""
    monkeypatch.setattr(state_module, "MAX_HISTORY_BYTES", 12_000)
    state = await to_thread.run_sync(StateDir, tmp_path)
    for number in range(20):
        await state.add_report(replace(REPORT, nonce=f"run-{number}"))
    text = (tmp_path / HISTORY).read_text()
    assert len(text) <= 12_000
    assert json.loads(text.splitlines()[-1])["nonce"] == "run-19"
    assert "run-0" not in text


async def test_a_folder_that_vanishes_is_trouble_and_not_death(tmp_path):
    """A full or lost volume is said; the sidecar goes on; trouble that is over is forgotten."""
    folder = tmp_path / "state"
    state = await to_thread.run_sync(StateDir, folder)
    folder.rmdir()
    await state.keep(KEPT)
    await state.add_report(REPORT)
    assert len(state.troubles) == 3
    assert all("can't be written" in trouble for trouble in state.troubles)
    folder.mkdir()
    await state.keep(KEPT)
    await state.add_report(REPORT)
    assert state.troubles == ()


async def test_a_folder_that_two_sidecars_use_is_said(tmp_path):
    """Each would overwrite what the other kept; when the other has ended all is well."""
    first = await to_thread.run_sync(StateDir, tmp_path)
    second = await to_thread.run_sync(StateDir, tmp_path)
    assert first.troubles == ()
    assert "WARMUP_STATE_DIR of its own" in second.troubles[0]
    del first
    await second.keep(KEPT)
    assert second.troubles == ()


async def test_what_has_the_name_and_is_no_file_is_set_aside(tmp_path):
    """Opening a pipe would wait for its writer, for ever."""
    os.mkfifo(tmp_path / VERDICT)
    state = await to_thread.run_sync(StateDir, tmp_path)
    assert await state.load() is None
    await state.keep(KEPT)
    assert await state.load() == KEPT


async def test_a_folder_that_hangs_holds_nothing_up(tmp_path, monkeypatch):
    """A lost network share costs the limit, and is said; it keeps one thread, not one a visit."""
    monkeypatch.setattr(state_module, "LIMIT_S", 0.1)
    state = await to_thread.run_sync(StateDir, tmp_path)
    share_is_back = threading.Event()
    threads = set(threading.enumerate())
    for _ in range(3):
        assert await state._within_limit(lambda: share_is_back.wait(60)) is None
    assert "did not answer within 0.1 s" in state.troubles[0]
    assert len(set(threading.enumerate()) - threads) == 1
    share_is_back.set()


async def test_a_visit_without_a_thread_is_said_and_made_the_next_time(tmp_path):
    """Where the container's threads are used up, the gate goes on without the folder."""
    state = await to_thread.run_sync(StateDir, tmp_path)
    before = threading.stack_size(1 << 47)  # more than there is
    try:
        assert not await state.keep(KEPT)
    finally:
        threading.stack_size(before)
    assert "no thread left" in state.troubles[0]
    assert await state.keep(KEPT)
    assert state.troubles == ()


async def test_no_temporary_file_is_left(tmp_path):
    """After a write there is the file, and nothing else."""
    await (await to_thread.run_sync(StateDir, tmp_path)).keep(KEPT)
    assert [p.name for p in tmp_path.iterdir()] == [VERDICT]


async def test_what_a_killed_sidecar_was_writing_is_removed_by_the_next(tmp_path):
    """But not while another one may be writing it."""
    first = await to_thread.run_sync(StateDir, tmp_path)
    left = tmp_path / f".{VERDICT}.a8b9c0d1{PART}"
    left.write_text("{")
    await to_thread.run_sync(StateDir, tmp_path)
    assert left.exists()
    del first
    gc.collect()
    await to_thread.run_sync(StateDir, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_a_configuration_error(tmp_path):
    """At the start it is strict: one sentence that names the setting."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="WARMUP_STATE_DIR"):
        StateDir(tmp_path / "file" / "state")
    with pytest.raises(ConfigError, match=r"it is no folder.*WARMUP_STATE_DIR"):
        StateDir(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "said"), [(None, "no report in"), ("{", "not a report"), ("x" * 40, "larger than")]
)
def test_a_report_that_is_not_there_is_said_in_a_sentence(tmp_path, monkeypatch, text, said):
    """`report` tells what is wrong and where, without a traceback."""
    if text is not None:
        (tmp_path / LAST_REPORT).write_text(text)
    monkeypatch.setattr(statefiles, "MAX_FILE_BYTES", 30)
    with pytest.raises(ConfigError, match=said) as raised:
        last_report(tmp_path)
    assert str(tmp_path) in str(raised.value)


WAVE = InFlight(
    cell="completions-c8-p64-o16",
    gait=Gait.HELD,
    at=1_700_000_000.0,
    boot=BootMark(process_start_s=5.0),
    url="http://vllm:8000",
    model="tiny",
    version="0.33.0",
)


async def test_a_wave_in_flight_outlives_whoever_is_killed(tmp_path):
    """It is on disk before it is sent, and gone when it has landed."""
    first = await to_thread.run_sync(StateDir, tmp_path)
    assert await first.in_flight() is None
    await first.take_off(WAVE)
    del first
    second = await to_thread.run_sync(StateDir, tmp_path)
    assert await second.in_flight() == WAVE
    await second.land()
    assert await second.in_flight() is None
    assert second.troubles == ()


async def test_deaths_are_remembered_until_they_are_cleared(tmp_path):
    """Over restarts, all of them; the command that shows and clears them reads the same file."""
    state = await to_thread.run_sync(StateDir, tmp_path)
    deaths = tuple(death_of(replace(WAVE, at=float(i))) for i in range(3))
    await state.take_off(WAVE)
    for death in deaths:
        await state.bury(death)
    assert await state.in_flight() is None
    again = await to_thread.run_sync(StateDir, tmp_path)
    assert await again.deaths() == deaths
    assert await to_thread.run_sync(statefiles.remembered, tmp_path) == deaths
    assert await to_thread.run_sync(statefiles.clear, tmp_path)
    assert await again.deaths() == ()
    assert not await to_thread.run_sync(statefiles.clear, tmp_path)


async def test_a_death_that_can_not_be_written_is_held_in_memory(tmp_path, monkeypatch):
    """A full volume must not have the next boot killed by the same cell."""

    def refuse(path, content, mode=None):
        raise OSError(28, "No space left on device")

    state = await to_thread.run_sync(StateDir, tmp_path)
    with monkeypatch.context() as full:
        full.setattr(state_module, "write_atomically", refuse)
        await state.bury(death_of(WAVE))
        assert await state.deaths() == (death_of(WAVE),)
        assert "No space left" in state.troubles[0]
    later = death_of(replace(WAVE, at=9.0))
    await state.bury(later)
    assert await (await to_thread.run_sync(StateDir, tmp_path)).deaths() == (death_of(WAVE), later)


@pytest.mark.parametrize("name", [IN_FLIGHT, DEATHS])
async def test_a_damaged_memory_is_set_aside_and_said(tmp_path, name):
    """Never a traceback, never half of it."""
    (tmp_path / name).write_text('[{"cell": 3}]')
    state = await to_thread.run_sync(StateDir, tmp_path)
    assert (await state.in_flight(), await state.deaths()) == (None, ())
    assert f"{name}.damaged" in state.troubles[0]


async def test_a_verdict_that_was_forgotten_is_not_loaded(tmp_path):
    """The engine slept: a sidecar that is restarted must not adopt what was before."""
    state = await to_thread.run_sync(StateDir, tmp_path)
    await state.keep(KEPT)
    await state.forget()
    assert await (await to_thread.run_sync(StateDir, tmp_path)).load() is None


async def test_escapes_go_into_the_report_of_their_own_run(tmp_path):
    """Each adds up with those before; a report of another run is left alone."""
    state = await to_thread.run_sync(StateDir, tmp_path)
    await state.add_report(REPORT)
    escape = Escape(5.0, "file:///a", "Triton", "JIT", "moe", "", "EngineCore", repeated=2)
    await state.add_escapes(REPORT.nonce, (escape, escape))
    await state.add_escapes(REPORT.nonce, (escape,))
    await state.add_escapes("another", (escape,))
    report = await to_thread.run_sync(last_report, tmp_path)
    assert (report.escapes, report.escapes_total) == ((escape,) * 3, 6)
    assert "compiled while the gate was open, 6 in all" in to_text(report)


async def test_the_ready_file_comes_and_goes(tmp_path):
    """Removed at the start, there after write, gone after remove; removing twice is fine."""
    path = tmp_path / "ready"
    path.write_text("of an earlier life")
    file = await to_thread.run_sync(ReadyFile, path)
    assert not path.exists()
    await file.write()
    assert path.read_text() == "ready\n"
    assert path.stat().st_mode & 0o044, "a probe in another container has another user"
    await file.remove()
    await file.remove()
    assert not path.exists()
    assert file.troubles == ()


@pytest.mark.parametrize("where", ["missing/ready", "folder"])
def test_a_ready_file_that_can_not_be_written_is_a_configuration_error(tmp_path, where):
    """At the start, in one sentence that names the setting."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="WARMUP_READY_FILE"):
        ReadyFile(tmp_path / where)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"], "nothing is left behind"


class SlowFolder:
    """Writes when it is let to; who waits for it sits in a thread."""

    def __init__(self):
        self.is_slow, self.waiting = False, 0
        self.answers = threading.Event()

    def write(self, path, content):
        if self.is_slow:
            self.waiting += 1
            self.answers.wait(60)
        write_atomically(path, content)


async def test_a_write_that_was_held_up_does_not_bring_the_ready_file_back(tmp_path):
    """It was removed meanwhile: whatever a slow folder does late, the last word holds."""
    folder, path = SlowFolder(), tmp_path / "ready"
    file = await to_thread.run_sync(partial(ReadyFile, path, write=folder.write))
    folder.is_slow = True
    await file.write()
    assert "no answer within 1 s" in file.troubles[0]
    await file.remove()
    assert "it lies" in file.troubles[0]
    folder.answers.set()

    async def is_well():
        await file.remove()
        return file.troubles == ()

    await until(is_well)
    assert not path.exists()
    assert folder.waiting == 1, "no second thread was given to a folder that holds one"


async def test_a_ready_file_is_shared_by_the_gates(tmp_path, monkeypatch):
    """There while all want it, in whatever order they come and go at the same time."""
    monkeypatch.setattr(readyfile, "_LIMIT_S", 60.0)
    path = tmp_path / "ready"
    file = await to_thread.run_sync(ReadyFile, path)
    draw = random.Random(7)
    gates = list(shared(file, 3))
    wanted = [False] * 3
    for _ in range(60):
        async with anyio.create_task_group() as group:
            for i in draw.sample(range(3), 2):
                wanted[i] = draw.random() < 0.7
                group.start_soon(gates[i].write if wanted[i] else gates[i].remove)
        assert await to_thread.run_sync(path.exists) == all(wanted)


async def test_a_ready_file_that_can_not_be_written_later_is_said(tmp_path):
    """The gate stays what it is; the trouble is shown until it is over."""
    folder = tmp_path / "volume"
    folder.mkdir()
    file = await to_thread.run_sync(ReadyFile, folder / "ready")
    folder.rmdir()
    await file.write()
    assert "can't be written" in file.troubles[0]
    folder.mkdir()
    await file.write()
    assert file.troubles == ()

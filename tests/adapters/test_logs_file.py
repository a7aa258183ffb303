"""A followed file, whatever is done to it."""

import os
import re
import threading
from pathlib import Path

import anyio
import pytest

from sidecar.adapters.logs import file as module
from sidecar.adapters.logs.file import FileLog
from sidecar.core.logs.source import FileSpec
from tests.adapters.following import following


@pytest.fixture
def path(tmp_path):
    return tmp_path / "vllm.log"


def log_of(path):
    return FileLog(FileSpec(str(path)))


def add(path, text):
    with path.open("a") as file:
        file.write(text)


async def test_what_stood_there_is_old_and_what_comes_is_not(path):
    """The start lines of a server that was there before us are read, and told from new ones."""
    path.write_text("first\nsecond\nun")
    async with following(log_of(path)) as follow:
        await follow.until_texts("first", "second")
        add(path, "finished\nthird\n")
        await follow.until_texts("first", "second", "unfinished", "third")
    assert [item.old for item in follow.items] == [True, True, False, False]


async def test_a_file_that_appears_late_is_read_from_its_beginning(path):
    """It is no gap: nothing was missed. Meanwhile the source says what it waits for."""
    source = log_of(path)
    async with following(source) as follow:
        await follow.until(lambda: source.trouble is not None)
        assert source.trouble == f"{path} is not there yet"
        add(path, "first\n")
        await follow.until_texts("first")
        assert source.trouble is None
    assert [item.old for item in follow.items] == [False]


async def test_rotation_by_a_new_name_loses_nothing(path, monkeypatch):
    """Also what is written into the old file after it was renamed, and before the new file's."""
    monkeypatch.setattr(module, "_LINGER_S", 3600)
    add(path, "a\n")
    async with following(log_of(path)) as follow:
        await follow.until_texts("a")
        old = path.rename(path.with_suffix(".1"))
        add(path, "d\n")
        await follow.until(lambda: handles_of(path))  # it has been seen
        add(old, "b\nc")
        await follow.until_texts("a", "b")
        monkeypatch.setattr(module, "_LINGER_S", 0.1)
        await follow.until_texts("a", "b", "c", "d")
    assert follow.gaps == []


async def test_files_that_are_rotated_in_a_row_are_all_read(path):
    """Each that had the name at some look, in its order."""
    add(path, "0\n")
    async with following(log_of(path)) as follow:
        await follow.until_texts("0")
        for n in range(1, 3):
            path.rename(path.with_suffix(f".{n}"))
            add(path, f"{n}\n")
            await follow.until(lambda: handles_of(path))
        await follow.until_texts("0", "1", "2")
    assert follow.gaps == []


@pytest.mark.parametrize("then", ["c\n", "something longer than all that was there\n"])
async def test_a_truncation_is_a_gap(path, then):
    """Whether the file is shorter at the next look or has grown past the old end again."""
    add(path, "a\nb\nhalf a li")
    async with following(log_of(path)) as follow:
        await follow.until_texts("a", "b")
        path.write_text(then)
        await follow.until(lambda: len(follow.texts) == 4)
    assert [getattr(item, "text", "gap") for item in follow.items] == [
        *("a", "b", "half a li", "gap", then.strip())
    ]
    assert re.match(r"gap of \d+\.\d s: the file was truncated", str(follow.gaps[0]))
    assert follow.gaps[0].lost_bytes is None


async def test_a_writer_that_goes_on_at_its_old_place_leaves_a_hole(path):
    """`vllm … > file` doesn't append: after copytruncate gigabytes of nothing stand before it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.write(handle, b"a\n")
        async with following(log_of(path)) as follow:
            await follow.until_texts("a")
            os.lseek(handle, 5 << 30, os.SEEK_SET)
            os.truncate(path, 0)
            os.write(handle, b"b\n")
            await follow.until_texts("a", "b")
            os.write(handle, b"c\n")
            await follow.until_texts("a", "b", "c")
        assert len(follow.gaps) == 1
    finally:
        os.close(handle)


async def test_a_time_in_which_it_can_t_be_read_is_a_gap(path, tmp_path):
    """Afterwards it is read on where it was left; the source says why meanwhile."""
    add(path, "a\n")
    source = log_of(path)
    async with following(source) as follow:
        await follow.until_texts("a")
        kept = path.rename(tmp_path / "kept")
        path.mkdir()
        told = f"{path} can't be read (it is no regular file): make it readable"
        await follow.until(lambda: source.trouble == told)
        add(kept, "b\n")
        path.rmdir()
        kept.rename(path)
        await follow.until_texts("a", "b")
    assert len(follow.gaps) == source.counts.breaks == 1
    assert follow.gaps[0].seconds > 0


async def test_after_a_read_error_it_goes_on_where_it_was(path):
    """A network file system that was away for a moment: no line twice."""
    add(path, "a\n")
    source = log_of(path)
    async with following(source) as follow:
        await follow.until_texts("a")
        (handle,) = handles_of(path)
        with path.open("a") as unreadable:
            os.dup2(unreadable.fileno(), handle)
        await follow.until(lambda: len(follow.gaps) == 1)
        add(path, "b\n")
        await follow.until_texts("a", "b")
    assert "can't be read (Bad file descriptor)" in follow.gaps[0].why


async def test_a_burst_is_read_whole(path):
    """Twenty thousand lines, written while it looks."""
    source = log_of(path)
    async with following(source) as follow:
        for start in range(0, 20_000, 5_000):
            add(path, "".join(f"line {n} {'x' * 100}\n" for n in range(start, start + 5_000)))
            await anyio.sleep(0.02)
        await follow.until(lambda: len(follow.texts) == 20_000)
    assert [int(text.split()[1]) for text in follow.texts] == list(range(20_000))
    assert follow.gaps == []
    assert source.counts.lines == 20_000


async def test_of_too_much_old_text_the_middle_is_skipped(path):
    """A log of weeks is not worth minutes of reading; what is left out is said in bytes."""
    add(path, "".join(f"{n:09}\n" for n in range(100_000)))
    async with following(FileLog(FileSpec(str(path)), max_old_bytes=400_006)) as follow:
        await follow.until(lambda: follow.texts[-1:] == ["000099999"])
        add(path, "new\n")
        await follow.until(lambda: follow.texts[-1:] == ["new"])
    (gap,) = follow.gaps
    assert gap.why == "the middle of the old text was skipped"
    at = follow.items.index(gap)
    before, after = follow.texts[: at - 1], follow.texts[at:-1]
    assert before == [f"{n:09}" for n in range(len(before))]
    assert after == [f"{n:09}" for n in range(100_000 - len(after), 100_000)]
    assert 0 <= 1_000_000 - 10 * (len(before) + len(after)) - gap.lost_bytes <= 20, "parts of lines"


async def test_a_line_without_end_costs_no_memory(path):
    """Its beginning is given and the rest is counted."""
    source = log_of(path)
    async with following(source) as follow:
        add(path, "x" * 3_000_000 + "\nnext\n")
        await follow.until(lambda: follow.texts[-1:] == ["next"])
    assert source.counts.cut_lines == 1
    assert len(follow.texts[0]) + source.counts.cut_bytes == 3_000_000


class Share:
    """A volume that can be made to hang."""

    def __init__(self):
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def pread(self, *place):
        self.asked += 1
        self.answers.wait(20)
        return os.pread(*place)


async def test_a_share_that_hangs_is_said_and_loses_nothing(path, monkeypatch):
    """It is waited for, and what it gives at last is read, behind a gap."""
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    share = Share()
    source = FileLog(FileSpec(str(path)), pread=share.pread)
    add(path, "before\n")
    async with following(source) as follow:
        await follow.until_texts("before")
        share.answers.clear()
        add(path, "meanwhile\n")
        await follow.until(lambda: source.trouble is not None)
        assert source.trouble == f"{path} does not answer: see to the volume that it is on"
        share.answers.set()
        await follow.until_texts("before", "meanwhile")
        await follow.until(lambda: source.trouble is None)
    # More than one where this machine was slower than the limit.
    assert len(follow.gaps) == source.counts.breaks >= 1


async def test_ending_it_waits_for_no_share(path):
    """A look that hangs is left to itself, and closes what is open when it ends."""
    share = Share()
    source = FileLog(FileSpec(str(path)), pread=share.pread)
    add(path, "before\n")
    async with following(source) as follow:
        await follow.until_texts("before")
        asked = share.asked
        share.answers.clear()
        await follow.until(lambda: share.asked > asked)
    assert len(handles_of(path)) == 1
    share.answers.set()
    await follow.until(lambda: handles_of(path) == [])


def handles_of(path):
    """The open handles of this process on a file."""
    links = Path("/proc/self/fd").iterdir()
    return [int(link.name) for link in links if link.resolve() == path]


async def test_ending_it_closes_the_files(path):
    """Cancelled or closed, no handle stays open."""
    add(path, "a\n")
    async with following(log_of(path)) as follow:
        await follow.until_texts("a")
        assert len(handles_of(path)) == 1
    assert handles_of(path) == []

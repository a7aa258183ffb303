"""The syslog server: what Docker's driver sends, and what others might."""

import asyncio
import gc
import ipaddress
import itertools
import socket
import threading
import time
from contextlib import aclosing

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sidecar.adapters.logs import syslog
from sidecar.adapters.logs.inbox import Inbox
from sidecar.adapters.logs.senders import MAX_CONNECTIONS
from sidecar.adapters.logs.syslog import SyslogLog
from sidecar.core.logs.items import Began, Ended, Gap, Line
from sidecar.core.logs.source import SyslogSpec, Transport
from sidecar.core.logs.syslog import TaggedLine
from tests.adapters.following import following

STREAMS = (Transport.UNIX, Transport.TCP)


def message(text, tag="a017aad6b1ba", priority=30):
    """As Docker Engine 20.10 writes it with `syslog-format: rfc5424micro`."""
    stamp = "2026-11-29T18:20:25.345845Z"
    return f"<{priority}>1 {stamp} vm {tag} 7735 {tag} - {text}\n".encode()


@pytest.fixture
def make(tmp_path):
    """A source by its transport, on a place of the test's own."""

    def made(transport, **options):
        if transport is Transport.UNIX:
            return SyslogLog(SyslogSpec(transport, path=str(tmp_path / "log.sock")))
        return SyslogLog(SyslogSpec(transport, "127.0.0.1", 0, **options))

    return made


async def connect(follow):
    """To the source as soon as it listens."""
    spec = follow.source.spec
    if spec.transport is Transport.UNIX:
        await follow.until(lambda: follow.source.is_listening)
        return await anyio.connect_unix(spec.path)
    await follow.until(lambda: follow.source.is_listening)
    return await anyio.connect_tcp("127.0.0.1", follow.source.port)


def datagram_socket(follow):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect(("127.0.0.1", follow.source.port))
    return sock


@pytest.mark.parametrize("transport", STREAMS)
async def test_a_container_s_run_is_one_connection(make, transport):
    """Its beginning, its lines in order without their headers, its end."""
    async with following(make(transport)) as follow:
        async with await connect(follow) as stream:
            await stream.send(message("one") + message("two", priority=27)[:40])
            await stream.send(message("two", priority=27)[40:] + message("") + message("three"))
            await follow.until_texts("one", "two", "three")
        await follow.until(follow.has_ended)
    first, *lines, last = follow.items
    assert isinstance(first, Began)
    assert {item.origin for item in follow.items} == {"a017aad6b1ba"}
    assert [line.old for line in lines] == [False] * 3
    assert last.why == "its sender closed the connection"


@pytest.mark.parametrize("transport", STREAMS)
async def test_several_containers_are_told_apart(make, transport):
    """Two engines, or two nodes, log to one place."""
    async with (
        following(make(transport)) as follow,
        await connect(follow) as one,
        await connect(follow) as two,
    ):
        for n in range(3):
            await one.send(message(f"one {n}", "rank0"))
            await two.send(message(f"two {n}", "rank1"))
        await follow.until(lambda: len(follow.texts) == 6)
    lines = [item for item in follow.items if isinstance(item, Line)]
    assert [line.text for line in lines if line.origin == "rank0"] == ["one 0", "one 1", "one 2"]
    assert [line.text for line in lines if line.origin == "rank1"] == ["two 0", "two 1", "two 2"]


@pytest.mark.parametrize("transport", STREAMS)
async def test_a_burst_over_a_stream_is_read_whole(make, transport):
    """Twenty thousand lines at once."""
    async with following(make(transport)) as follow:
        async with await connect(follow) as stream:
            await stream.send(b"".join(message(f"{n} {'x' * 100}") for n in range(20_000)))
        await follow.until(follow.has_ended)
    assert [int(text.split()[0]) for text in follow.texts] == list(range(20_000))
    assert follow.gaps == []


async def test_datagrams_become_lines(make):
    """One each; the port is open before the engine is there."""
    source = make(Transport.UDP)
    async with following(source) as follow:
        await follow.until(lambda: source.is_listening)
        with datagram_socket(follow) as sock:
            sock.send(message("one"))
            sock.send(message("two"))
        await follow.until_texts("one", "two")
    assert source.spec.lossy
    assert source.counts.kernel_drops == 0


async def test_what_the_kernel_drops_is_counted(make):
    """More than the buffer holds, sent while the loop is busy: read or counted, none unnoticed."""
    source = make(Transport.UDP)
    sent = 15_000
    async with following(source) as follow:
        await follow.until(lambda: source.is_listening)
        with datagram_socket(follow) as sock:
            for n in range(sent):  # without a turn for the reader
                sock.send(message(f"{n} {'x' * 300}"))
        await follow.until(
            lambda: len(follow.texts) + sum(gap.lost_lines for gap in follow.gaps) == sent
        )
    assert follow.gaps
    assert source.counts.kernel_drops == sum(gap.lost_lines for gap in follow.gaps)
    assert "raise net.core.rmem_max" in str(follow.gaps[0])


@pytest.mark.parametrize("transport", [Transport.TCP, Transport.UDP])
async def test_senders_who_are_not_allowed_are_refused(make, transport):
    """They are counted, and nothing of them is read."""
    source = make(transport, allow=(ipaddress.ip_network("192.0.2.0/24"),))
    async with following(source) as follow:
        await follow.until(lambda: source.is_listening)
        if transport is Transport.UDP:
            with datagram_socket(follow) as sock:
                sock.send(message("one"))
        else:
            async with await connect(follow) as stream:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()
        await follow.until(lambda: source.counts.refused == 1)
    assert follow.items == []


async def test_connections_that_say_nothing_make_room():
    """Whoever only holds places can't keep the engine out, and a sender that speaks stays."""
    source = SyslogLog(SyslogSpec(Transport.TCP, "127.0.0.1", 0), mute_s=0.0)
    async with following(source) as follow, anyio.create_task_group() as tasks:
        speaking = await connect(follow)
        await speaking.send(message("first"))
        await follow.until_texts("first")
        idle = [await connect(follow) for _ in range(MAX_CONNECTIONS)]
        for stream in idle[1:]:
            await stream.send(b"<30>1 never finish")
        await follow.until(lambda: source.counts.refused == 1)
        await speaking.send(message("second"))
        await follow.until_texts("first", "second")
        await idle[-1].send(b"ed\n" + message("third"))
        await follow.until(lambda: follow.texts[-1:] == ["third"])
        for stream in (speaking, *idle):
            tasks.start_soon(stream.aclose)


async def test_when_all_speak_one_more_is_refused(make):
    """The number of connections is bounded; those who are there are served."""
    source = make(Transport.TCP)
    async with following(source) as follow:
        streams = [await connect(follow) for _ in range(MAX_CONNECTIONS + 1)]
        await follow.until(lambda: source.counts.refused == 1)
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await streams[-1].receive()
        for stream in streams:
            await stream.aclose()


async def test_an_endless_message_costs_no_memory(make):
    """Its beginning is a line, the rest is counted, and the next message is read."""
    source = make(Transport.TCP)
    async with following(source) as follow, await connect(follow) as stream:
        for _ in range(50):
            await stream.send(b"x" * 100_000)
        await stream.send(b"\n" + message("next"))
        await follow.until(lambda: follow.texts[-1:] == ["next"])
    assert len(follow.texts) == 2
    assert source.counts.cut_lines == 1
    assert len(follow.texts[0]) + source.counts.cut_bytes == 5_000_000


async def test_the_pieces_of_a_long_line_are_one(make):
    """Docker sends 16 KiB at a time; a last piece that doesn't come is not waited for."""
    async with following(make(Transport.TCP)) as follow, await connect(follow) as stream:
        await stream.send(message("x" * 16384) + message("x" * 16384) + message("end"))
        await follow.until_texts("x" * 32768 + "end")
        await stream.send(message("y" * 16384))
        await follow.until_texts("x" * 32768 + "end", "y" * 16384)


async def test_a_socket_file_that_vanishes_is_made_anew(make, tmp_path):
    """Who is connected stays; the time in which nobody could come is a gap."""
    source = make(Transport.UNIX)
    async with following(source) as follow, await connect(follow) as before:
        (tmp_path / "log.sock").unlink()
        await follow.until(lambda: len(follow.gaps) == 1)
        await before.send(message("one", "old"))
        async with await anyio.connect_unix(tmp_path / "log.sock") as after:
            await after.send(message("two", "new"))
            await follow.until(lambda: sorted(follow.texts) == ["one", "two"])
    assert "was removed or replaced" in follow.gaps[0].why
    assert source.counts.breaks == 1


@pytest.mark.parametrize("left", ["a dead socket", "nothing"])
async def test_the_socket_file_is_there_only_while_somebody_listens(make, tmp_path, left):
    """What a killed sidecar left is replaced; what ours made is removed."""
    path = tmp_path / "log.sock"
    if left == "a dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    source = make(Transport.UNIX)
    async with following(source) as follow, await connect(follow) as stream:
        await stream.send(message("one"))
        await follow.until_texts("one")
    assert list(tmp_path.iterdir()) == []


async def test_ending_it_as_it_begins_leaves_nothing_behind(make, tmp_path):
    """However far it has come: no socket, and no file that holds up the next container."""

    async def read():
        async with aclosing(make(Transport.UNIX).lines()) as lines:
            async for _ in lines:
                pass

    for turns in range(8):
        reading = asyncio.create_task(read())
        for _ in range(turns):
            await checkpoint()
        reading.cancel()
        await asyncio.wait([reading])
        gc.collect()
        assert list(tmp_path.iterdir()) == []


async def test_a_folder_that_hangs_does_not_hold_up_the_end(make, monkeypatch):
    """Its socket stays behind, and nobody waits for what never answers."""
    monkeypatch.setattr(syslog, "_CLOSE_LIMIT_S", 0.1)
    source, is_back = make(Transport.UNIX), threading.Event()
    try:
        async with following(source) as follow, await connect(follow) as stream:
            await stream.send(message("one"))
            await follow.until_texts("one")
            hung = asyncio.create_task(source._thread.run(lambda: is_back.wait(20)))
        assert not hung.done()
    finally:
        is_back.set()
    await hung


@pytest.mark.parametrize("taken", ["another listens", "another is busy", "a file"])
async def test_a_place_that_is_taken_is_waited_for(make, tmp_path, taken):
    """It is said, retried, and the time without it is a gap; nothing of others is removed."""
    path = tmp_path / "log.sock"
    other = socket.socket(socket.AF_UNIX)
    if taken == "a file":
        path.write_text("")
    else:
        other.bind(str(path))
        other.listen(0)
    waits = socket.socket(socket.AF_UNIX)
    if taken == "another is busy":
        waits.connect(str(path))
    source = make(Transport.UNIX)
    async with following(source) as follow:
        await follow.until(lambda: source.trouble is not None)
        remedy = "remove it" if taken == "a file" else "end it"
        assert source.trouble.startswith(f"syslog+unix://{path} can't be listened at (")
        assert remedy in source.trouble
        assert path.exists()
        other.close()
        waits.close()
        path.unlink()
        await follow.until(lambda: source.trouble is None)
        await follow.until(lambda: len(follow.gaps) == 1)
    assert 0 < follow.gaps[0].seconds < 60


async def test_a_place_that_stays_taken_is_logged_once(make, tmp_path, monkeypatch, caplog):
    """It is tried for as long as the sidecar runs; what is new about it is said."""
    monkeypatch.setattr(syslog, "pauses_s", lambda: itertools.repeat(0.001))
    (tmp_path / "log.sock").write_text("")
    source = make(Transport.UNIX)
    async with following(source) as follow:
        await follow.until(lambda: source.trouble is not None)
        await anyio.sleep(0.1)
    assert len([r for r in caplog.records if "unavailable" in r.message]) == 1


async def test_what_nobody_takes_is_dropped_and_counted():
    """A sender is never made to wait: behind it stands the engine's own output."""
    inbox = Inbox(max_bytes=1000)
    for n in range(20):
        inbox.put_lines([TaggedLine("a", f"{n} {'x' * 98}")], at_s=1.0)
    items = await inbox.take(1.0)
    lines = [item for item in items if isinstance(item, Line)]
    assert [int(line.text.split()[0]) for line in lines] == list(range(len(lines)))
    assert 1 <= len(lines) < 10
    assert isinstance(items[-1], Gap)
    assert items[-1].lost_lines == inbox.dropped_lines == 20 - len(lines)
    inbox.put_lines([TaggedLine("a", "next")], at_s=2.0)
    assert [item.text for item in await inbox.take(1.0)] == ["next"]
    assert await inbox.take(0.01) == []


async def test_a_hole_stands_where_it_was():
    """What came before it comes before it, and the gap says how many."""
    inbox = Inbox(max_bytes=150)
    inbox.put_lines([TaggedLine("a", "one"), TaggedLine("a", "two")], at_s=time.monotonic())
    inbox.put(Ended(time.monotonic(), "a", "its sender closed the connection"))
    kinds = [type(item).__name__ for item in await inbox.take(1.0)]
    assert kinds == ["Line", "Gap", "Ended"]


async def test_whoever_connects_again_and_again_fills_no_memory():
    """Beginnings and ends are bounded as lines are."""
    inbox = Inbox(max_bytes=1000)
    for _ in range(1000):
        inbox.put(Ended(1.0, "a", "its sender closed the connection"))
    items = await inbox.take(1.0)
    assert len(items) < 20
    assert items[-1].lost_lines == 1001 - len(items)

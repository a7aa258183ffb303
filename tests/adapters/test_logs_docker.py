"""A container's log through the Engine API, whatever happens to container and daemon."""

import asyncio
import time

import pytest

from sidecar.adapters.logs.docker import DockerLog
from sidecar.core.logs.items import Began, Gap, Line
from sidecar.core.logs.source import DockerSpec
from tests.adapters.fakedocker import SECOND, FakeDocker
from tests.adapters.following import following


@pytest.fixture
async def docker(tmp_path):
    loop = asyncio.get_running_loop()
    handle = loop.get_exception_handler()

    def without_overtaken(loop, context):
        # Where a reader is cancelled in the turn of the loop in which bytes come, anyio (4.16,
        # UNIXSocketStream) tells its future, which is done: no loss, but it would fail the test.
        if not isinstance(context.get("exception"), asyncio.InvalidStateError):
            handle(loop, context)

    loop.set_exception_handler(without_overtaken)
    async with FakeDocker(tmp_path / "docker.sock") as docker:
        yield docker
    loop.set_exception_handler(handle)


def follow_log(docker, **options):
    return following(DockerLog(DockerSpec("vllm", docker.path), **options))


def told(follow):
    """The items in short."""
    names = {Line: lambda i: i.text, Began: lambda i: f"began: {i.why}", Gap: lambda i: "gap"}
    return [names.get(type(item), lambda i: f"ended: {i.why}")(item) for item in follow.items]


async def until_told(follow, *expected):
    await follow.until(lambda: len(follow.items) >= len(expected))
    assert told(follow) == list(expected)


async def test_the_log_of_a_run_is_read_from_its_beginning(docker):
    """The start lines too, not those of the run before, and old ones are told from new ones."""
    vllm = docker.add("vllm", started_ns=100 * SECOND, finished_ns=90 * SECOND)
    vllm.print("of the run before", 80 * SECOND)
    vllm.print("before Docker noted the start", 99 * SECOND)
    vllm.print("start", 101 * SECOND, stream=2)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "before Docker noted the start", "start")
        vllm.print("now", time.time_ns() + SECOND)
        await until_told(
            follow, *("began: seen first", "before Docker noted the start", "start", "now")
        )
        assert follow.source.trouble is None
    began, *lines = follow.items
    assert [line.old for line in lines] == [True, True, False]
    assert began.started_at == "1970-01-01T00:01:40.000000000Z"
    assert began.restart_count == 0
    assert {item.origin for item in follow.items} == {vllm.id[:12]}


async def test_a_container_that_comes_late_is_waited_for(docker):
    """The source says what it waits for, and misses nothing of it."""
    async with follow_log(docker) as follow:
        await follow.until(lambda: follow.source.trouble is not None)
        assert follow.source.trouble == "there is no container and no compose service vllm"
        docker.add("vllm").print("start", 101 * SECOND)
        await until_told(follow, "began: seen first", "start")


async def test_a_restart_is_told_and_loses_nothing(docker):
    """The end with its exit code, then the new beginning with its count."""
    vllm = docker.add("vllm")
    vllm.print("one", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "one")
        vllm.print("CUDA out of memory", 110 * SECOND)
        vllm.end(110 * SECOND, exit_code=137)
        await follow.until(follow.has_ended)
        assert (
            follow.source.trouble == "the container vllm has ended (exit code 137, out of memory)"
        )
        vllm.print("two", 120 * SECOND)
        vllm.start(120 * SECOND)
        await until_told(
            follow,
            *("began: seen first", "one", "CUDA out of memory"),
            *("ended: exit code 137, out of memory", "began: restarted", "two"),
        )
    ended, began = follow.items[3:5]
    assert (ended.exit_code, ended.oom_killed) == (137, True)
    assert began.restart_count == 1


async def test_a_life_too_short_to_be_met_is_read_all_the_same(docker):
    """A server that dies at once, again and again: what it said is why it died."""
    vllm = docker.add("vllm", status="restarting", finished_ns=102 * SECOND, exit_code=1)
    vllm.print("ValueError: bad flag", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "ValueError: bad flag", "ended: exit code 1")
        vllm.print("ValueError: bad flag", 111 * SECOND)
        vllm.start(111 * SECOND)
        vllm.end(112 * SECOND, exit_code=1)
        await follow.until(lambda: len(follow.items) == 6)
        assert told(follow)[3:] == [
            *("began: restarted", "ValueError: bad flag", "ended: exit code 1")
        ]


async def test_a_life_that_ended_before_docker_noted_its_start_is_read(docker):
    """FinishedAt was a millisecond before StartedAt: it is this life's end, not the last one's."""
    vllm = docker.add(
        "vllm", status="exited", started_ns=100 * SECOND, finished_ns=100 * SECOND - 1
    )
    vllm.print("ValueError: bad flag", 100 * SECOND - 1_000_000)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "ValueError: bad flag", "ended: exit code 0")


async def test_a_container_that_is_made_anew_is_another_run(docker):
    """Its whole log is read; that the end of the old one could not be checked is a gap."""
    old = docker.add("vllm")
    old.print("one", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "one")
        docker.containers.remove(old)
        new = docker.add("vllm", started_ns=130 * SECOND, finished_ns=125 * SECOND)
        new.print("two", 120 * SECOND)
        await until_told(
            follow,
            *("began: seen first", "one", "gap", "ended: it was removed"),
            *("began: re-created", "two"),
        )
    assert follow.items[1].origin != follow.items[-1].origin


@pytest.mark.parametrize("before", [True, False])
async def test_a_container_that_is_made_but_not_started_is_no_run(docker, before):
    """`docker create`, `docker start`: one run, and nothing of it has ended before it began."""
    said = ["began: seen first", "one", "ended: exit code 0"] if before else []
    async with follow_log(docker) as follow:
        if before:
            old = docker.add("vllm")
            old.print("one", 101 * SECOND)
            old.end(102 * SECOND)
            await until_told(follow, *said)
            docker.containers.remove(old)
        new = docker.add("vllm", status="created", started_ns=0)
        await follow.until(
            lambda: follow.source.trouble == "the container vllm has not been started"
        )
        new.print("two", 111 * SECOND)
        new.status, new.started_ns = "running", 110 * SECOND
        await until_told(follow, *said, f"began: {'re-created' if before else 'seen first'}", "two")


async def test_a_compose_service_that_is_replaced_is_read_to_its_end(docker):
    """Compose makes the new container before the old one is gone."""
    old = docker.add("project-vllm-1", service="vllm")
    old.print("one", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "one")
        docker.add("project-vllm-2", service="vllm", status="created", started_ns=0, created=2)
        old.print("two", 102 * SECOND)
        old.end(102 * SECOND)
        await until_told(follow, "began: seen first", "one", "two", "ended: exit code 0")


async def test_a_compose_service_is_found_by_its_label(docker):
    """Whatever compose calls its container; an exact name wins over it."""
    docker.add("project-vllm-1", service="vllm", status="exited", created=1)
    docker.add("project-vllm-2", service="vllm", created=2).print("mine", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "mine")
    docker.add("vllm").print("exact", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "exact")


async def test_which_of_several_is_not_guessed(docker):
    """A scaled service needs a name; the sentence lists them."""
    docker.add("b-vllm-2", service="vllm")
    docker.add("b-vllm-1", service="vllm")
    async with follow_log(docker) as follow:
        await follow.until(lambda: follow.source.trouble is not None)
        assert follow.source.trouble == (
            "2 containers of the service vllm run: name one of b-vllm-1, b-vllm-2"
        )


async def test_after_a_break_nothing_is_missing_or_doubled(docker):
    """The gap says how long it was, and that known lines were seen again: nothing was lost."""
    vllm = docker.add("vllm")
    vllm.print("one", 101 * SECOND)
    vllm.print("two", 102 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "one", "two")
        docker.away()
        await follow.until(lambda: follow.source.trouble is not None)
        assert follow.source.trouble.startswith(
            f"the Docker Engine at {docker.path} does not answer ("
        )
        vllm.print("three", 102 * SECOND)
        vllm.print("two", 102 * SECOND)
        await docker.back()
        await until_told(follow, "began: seen first", *("one", "two", "gap", "three", "two"))
        vllm.print("four", 103 * SECOND)
        await follow.until(lambda: follow.texts[-1:] == ["four"])
    (gap,) = follow.gaps
    assert gap.lost_bytes == 0
    assert gap.seconds > 0
    assert "nothing lost" in str(gap)
    assert follow.source.counts.breaks == 1


async def test_what_docker_threw_away_meanwhile_is_not_called_nothing(docker):
    """max-size: the known lines are gone, so others may be, too."""
    vllm = docker.add("vllm")
    vllm.print("one", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "one")
        docker.away()
        await follow.until(lambda: follow.source.trouble is not None)
        vllm.entries.clear()
        vllm.print("two", 109 * SECOND)
        await docker.back()
        await until_told(follow, "began: seen first", *("one", "gap", "two"))
    assert follow.gaps[0].lost_bytes is None


async def test_a_log_that_docker_does_not_keep_is_said(docker):
    """With the logging driver `none` there is nothing to read, and it is not called quiet."""
    docker.add("vllm")
    docker.log_error = "configured logging driver does not support reading"
    async with follow_log(docker) as follow:
        await follow.until(lambda: follow.source.trouble is not None)
        assert follow.source.trouble == (
            "the Docker Engine answers 500: configured logging driver does not support reading"
        )
        await follow.until(lambda: len(follow.items) == 1)
    assert told(follow) == ["began: seen first"]


async def test_a_silent_log_is_asked_for_anew(docker):
    """In case the daemon has hung up without a word; it is no break, and no line comes twice."""
    vllm = docker.add("vllm")
    vllm.print("one", 101 * SECOND)
    async with follow_log(docker, idle_s=0.05) as follow:
        await until_told(follow, "began: seen first", "one")
        await follow.until(lambda: docker.asked >= 4)
        vllm.print("two", 102 * SECOND)
        await until_told(follow, "began: seen first", "one", "two")
    assert follow.source.counts.breaks == 0


@pytest.mark.parametrize(("size", "is_lossy"), [("100k", True), ("10m", False)])
async def test_where_docker_keeps_little_silence_proves_nothing(docker, size, is_lossy):
    """It throws away what it has not sent yet, and doesn't say so."""
    docker.add("vllm", options={"max-size": size}).print("one", 101 * SECOND)
    async with follow_log(docker) as follow:
        assert not follow.source.is_lossy
        await until_told(follow, "began: seen first", "one")
        assert follow.source.is_lossy is is_lossy


async def test_of_too_much_old_text_the_later_part_is_skipped(docker):
    """The start lines are read, then what comes from now on; a gap stands between."""
    vllm = docker.add("vllm")
    for n in range(300):
        vllm.print(f"{n:03} {'x' * 996}", 101 * SECOND + n)
    async with follow_log(docker, max_old_bytes=100_000) as follow:
        await follow.until(lambda: len(follow.gaps) == 1)
        vllm.print("now", time.time_ns() + SECOND)
        await follow.until(lambda: follow.texts[-1:] == ["now"])
        await follow.until(lambda: docker.followers == 1)
    read = [int(text[:3]) for text in follow.texts[:-1]]
    assert read == list(range(len(read)))
    assert 100 <= len(read) < 300


async def test_ending_it_hangs_up(docker):
    """No connection stays open at the daemon."""
    docker.add("vllm").print("one", 101 * SECOND)
    async with follow_log(docker) as follow:
        await until_told(follow, "began: seen first", "one")
        await follow.until(lambda: docker.followers == 1)
    await follow.until(lambda: docker.followers == 0)

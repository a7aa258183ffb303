"""Each log source against what a real Docker Engine makes of a container's output."""

import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from anyio import to_thread

from sidecar.adapters.logs import open_source
from sidecar.core.logs.items import Began, Ended, Line
from sidecar.core.logs.lines import Lines
from sidecar.core.logs.source import DockerSpec, FileSpec, SyslogSpec, Transport
from tests.adapters.following import following
from tests.conftest import unavailable
from tests.containers.docker import Docker
from tests.live.sidecar import wait_until

GOLDEN = Path(__file__).parents[1] / "data" / "logs"
LOGS = ("gpu-0.26.0-first.log", "cpu-0.32.0-server.log")
LOSSLESS = ("unix", "tcp", "docker", "file")
LIMIT_S = 90

PRINT = "import sys; sys.stdout.buffer.write(open(sys.argv[1], 'rb').read())"
BURST = "for n in range(20000): print(n, 'x' * 100)"
INSIDE = """
import asyncio, sys
from contextlib import aclosing
from sidecar.adapters.logs import open_source
from sidecar.core.logs.items import Line
from sidecar.core.logs.source import parse_source

async def main():
    async with aclosing(open_source(parse_source(sys.argv[1])).lines()) as items:
        async for item in items:
            print(item.text if isinstance(item, Line) else item, flush=True)

asyncio.run(main())
"""
COUNT = """
import itertools, time
for n in itertools.count():
    print(n, flush=True)
    time.sleep(0.02)
"""


class Stage:
    """A source of one kind, and containers whose output goes there."""

    def __init__(self, docker, image, kind, folder, engine_socket):
        self.docker, self.image, self.kind, self.folder = docker, image, kind, folder
        self.name = f"warmup-test-{folder.name.replace('_', '-')}-{time.time_ns()}"
        match kind:
            case "file":
                self.spec = FileSpec(str(folder / "vllm.log"))
            case "docker":
                self.spec = DockerSpec(self.name, engine_socket)
            case "unix":
                self.spec = SyslogSpec(Transport.UNIX, path=str(folder / "log.sock"))
            case _:
                self.spec = SyslogSpec(Transport(kind), "127.0.0.1", 0)
        self.source = open_source(self.spec)

    def options(self, port=None):
        """How the container's output comes to the source."""
        if self.kind == "docker":
            return ("--name", self.name)
        if self.kind == "file":
            return ("--name", self.name, "--volume", f"{self.folder}:/logs", "--user", "0")
        where = self.spec.path if self.kind == "unix" else f"127.0.0.1:{port or self.source.port}"
        options = ("syslog-format=rfc5424micro", f"syslog-address={self.kind}://{where}")
        return (*("--name", self.name, "--log-driver", "syslog"), *with_each("--log-opt", options))

    async def start(self, script, *arguments, port=None, options=()):
        """In the background; the container."""
        self.docker.made.append(("rm", "--force", "--volumes", self.name))  # if it doesn't start
        if self.kind == "file":
            command = ("-c", 'python "$@" >>/logs/vllm.log 2>&1', "sh", "-c", script, *arguments)
            entry = "sh"
        else:
            command, entry = ("-c", script, *arguments), "python"
        return await to_thread.run_sync(
            partial(
                self.docker.start,
                self.image,
                *("--entrypoint", entry, "--volume", f"{GOLDEN}:/golden:ro", "--no-healthcheck"),
                *self.options(port),
                *options,
                command=command,
            )
        )

    async def listening(self, follow):
        """Containers of the syslog driver start only when somebody listens."""
        if isinstance(self.spec, SyslogSpec):
            await follow.until(lambda: self.source.is_listening)

    async def __call__(self, *arguments):
        return await to_thread.run_sync(partial(self.docker, *arguments))


def with_each(option, values):
    return tuple(word for value in values for word in (option, value))


@pytest.fixture
def engine_socket():
    """Of the Docker Engine; the tests must be on its machine."""
    host = urlsplit(Docker()("context", "inspect", "--format", "{{.Endpoints.docker.Host}}"))
    if host.scheme != "unix" or not Path(host.path).exists():
        unavailable(f"the Docker Engine is not reached by a Unix socket here ({host.geturl()})")
    return host.path


@pytest.fixture
def stage(docker, image, tmp_path, engine_socket):
    return partial(Stage, docker, image, folder=tmp_path, engine_socket=engine_socket)


def lines_of(name):
    """A golden log's lines, as a plain stream gives them."""
    decoder = Lines()
    return decoder.feed((GOLDEN / name).read_bytes()) + decoder.end()


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("log", LOGS)
async def test_a_real_server_s_log_arrives_whole(stage, kind, log):
    """Every line that vLLM wrote, in order, whichever way it comes."""
    this = stage(kind=kind)
    async with following(this.source) as follow:
        await this.listening(follow)
        await this.start(PRINT, f"/golden/{log}")
        expected = lines_of(log)
        await follow.until(lambda: follow.texts[-1:] == expected[-1:])
    drawn = [text for text in expected if "it/s]" in text or "s/it]" in text]
    # Of a bar that was drawn over and over on one line, syslog gives the last state only.
    assert [t for t in follow.texts if t not in drawn] == [t for t in expected if t not in drawn]
    assert follow.gaps == []


@pytest.mark.parametrize("kind", LOSSLESS)
async def test_a_burst_is_not_lost(stage, kind):
    """20,000 lines as fast as a container can print them."""
    this = stage(kind=kind)
    async with following(this.source) as follow:
        await this.listening(follow)
        await this.start(BURST)
        await follow.until(lambda: len(follow.texts) >= 20_000)
    assert [int(text.split()[0]) for text in follow.texts] == list(range(20_000))
    assert follow.gaps == []


async def test_a_burst_that_docker_rotates_is_read_once(stage):
    """Its follower sends lines a second time at a rotation; they are left out."""
    this = stage(kind="docker")
    rotated = with_each("--log-opt", ("max-size=3m", "max-file=3"))
    async with following(this.source) as follow:
        await this.start(BURST, options=rotated)
        await follow.until(lambda: of(follow, Ended))
    assert [int(text.split()[0]) for text in follow.texts] == list(range(20_000))


async def test_what_a_burst_loses_over_udp_is_counted(stage):
    """On one machine each line is read or in a gap; silence of such a source never counts."""
    this = stage(kind="udp")
    async with following(this.source) as follow:
        await this.listening(follow)
        await this.start(BURST)
        await follow.until(lambda: len(follow.texts) + this.source.counts.kernel_drops == 20_000)
    assert this.spec.lossy
    assert sum(gap.lost_lines for gap in follow.gaps) == this.source.counts.kernel_drops


@pytest.mark.parametrize("kind", ["unix", "tcp", "udp", "docker"])
async def test_a_long_line_is_one(stage, kind):
    """Docker splits it at 16 KiB; one of just that length is no piece of the next."""
    end = "INFO 11-29 17:14:24 [core.py:1] end"
    this = stage(kind=kind)
    async with following(this.source) as follow:
        await this.listening(follow)
        await this.start(f"print('x' * 40000); print('y' * 16384); print('{end}')")
        await follow.until(lambda: follow.texts[-1:] == [end])
    assert follow.texts == ["x" * 40000, "y" * 16384, end]


@pytest.mark.parametrize("kind", ["unix", "tcp"])
async def test_a_container_does_not_start_without_its_listener(stage, kind):
    """So the sidecar must be there first."""
    this = stage(kind=kind)
    with pytest.raises(AssertionError, match=r"connection refused|no such file"):
        await this.start("print(1)", port=9)


@pytest.mark.parametrize("kind", ["unix", "tcp", "udp"])
async def test_whether_a_crashed_container_comes_back_without_the_sidecar(stage, kind):
    """Where the listener must answer Docker gives up for good; over UDP the engine serves again."""
    this = stage(kind=kind)
    async with following(this.source) as follow:
        await this.listening(follow)
        container = await this.start(
            "import time; time.sleep(1000)",
            port=this.source.port,
            options=("--restart", "unless-stopped", "--stop-signal", "SIGKILL"),
        )
    await to_thread.run_sync(this.docker.crash, container)
    shown = ("inspect", "--format", "{{.RestartCount}} {{.State.Status}}", container)
    expected = "1 running" if kind == "udp" else "1 exited"
    await to_thread.run_sync(
        wait_until, f"it is {expected}", lambda: this.docker(*shown) == expected, LIMIT_S
    )
    if kind != "udp":
        state = await to_thread.run_sync(this.docker.state, container)
        assert "failed to initialize logging driver" in state["Error"]


@pytest.mark.parametrize("kind", ["unix", "tcp", "udp"])
async def test_a_container_goes_on_without_the_sidecar(stage, kind):
    """While nobody listens it is not held up, and its next line finds the sidecar that is back."""
    this = stage(kind=kind)
    async with following(this.source) as follow:
        await this.listening(follow)
        port = this.source.port
        container = await this.start(COUNT)
        await follow.until(lambda: len(follow.texts) >= 5)
    before = int(follow.texts[-1])
    spec = this.spec if kind == "unix" else SyslogSpec(Transport(kind), "127.0.0.1", port)
    async with following(open_source(spec)) as follow:
        await follow.until(lambda: len(follow.texts) >= 5)
        state = await to_thread.run_sync(this.docker.state, container)
    assert state["Running"]
    first = int(follow.texts[0])
    assert [int(text) for text in follow.texts] == list(range(first, first + len(follow.texts)))
    assert first >= before


async def test_docker_s_log_survives_kill_restart_and_re_creation(stage):
    """No line of any life is missing or doubled, and each life is told with how it ended."""
    this = stage(kind="docker")
    async with following(this.source) as follow:
        container = await this.start(COUNT)
        await follow.until(lambda: len(follow.texts) >= 20)
        await this("kill", container)
        await follow.until(follow.has_ended)
        await this("start", container)
        await follow.until(lambda: follow.texts.count("5") == 2)
        await this("stop", "--time", "0", container)
        await follow.until(lambda: len(of(follow, Ended)) == 2)
        stored = await to_thread.run_sync(this.docker.logs, container)
        assert follow.texts == stored.split()
        await this("rm", "--volumes", container)
        await this.start("print('another')")
        await follow.until(lambda: follow.texts[-1:] == ["another"])
        await follow.until(lambda: len(of(follow, Ended)) == 3)
    assert [began.why for began in of(follow, Began)] == ["seen first", "restarted", "re-created"]
    assert [ended.exit_code for ended in of(follow, Ended)] == [137, 137, 0]
    assert follow.gaps == []


async def test_a_container_that_is_restarted_or_removed_at_once(stage):
    """`docker restart` loses nothing; `docker rm --force` leaves the end unchecked, and a gap."""
    this = stage(kind="docker")
    async with following(this.source) as follow:
        container = await this.start(COUNT)
        await follow.until(lambda: len(follow.texts) >= 5)
        await this("restart", "--time", "0", container)
        await follow.until(lambda: follow.texts.count("5") == 2)
        assert [began.why for began in of(follow, Began)] == ["seen first", "restarted"]
        assert follow.gaps == []
        await this("rm", "--force", "--volumes", container)
        await follow.until(lambda: follow.source.trouble is not None)
        await follow.until(lambda: len(of(follow, Ended)) == 2)
    numbers = [int(item.text) for item in follow.items if isinstance(item, Line)]
    again = numbers.index(0, 1)
    assert numbers == [*range(again), *range(len(numbers) - again)]


@pytest.mark.parametrize("kind", ["unix", "tcp", "docker"])
def test_a_source_inside_a_container(docker, image, tmp_path, engine_socket, kind):
    """As the image's own user: a socket in a shared folder, a published port, Docker's socket."""
    tmp_path.chmod(0o777)
    name = f"warmup-test-{time.time_ns()}"
    url, *options = {
        "unix": ("syslog+unix:///logs/log.sock", "--volume", f"{tmp_path}:/logs"),
        "tcp": ("syslog+tcp://0.0.0.0:5514", "--publish", "127.0.0.1:0:5514"),
        "docker": (
            f"docker:///{name}",
            *("--volume", f"{engine_socket}:/var/run/docker.sock"),
            *("--group-add", str(Path(engine_socket).stat().st_gid)),
        ),
    }[kind]
    sidecar = docker.start(
        image,
        *("--entrypoint", "python", "--no-healthcheck", "--read-only", "--cap-drop", "ALL"),
        *options,
        command=("-c", INSIDE, url),
    )
    where = f"unix://{tmp_path}/log.sock"
    if kind == "tcp":
        where = f"tcp://{docker('port', sidecar, '5514/tcp').splitlines()[0]}"
    syslog = ("--rm", "--log-driver", "syslog", "--log-opt", f"syslog-address={where}")
    engine = ("run", "--name", name, "--entrypoint", "echo", *(() if kind == "docker" else syslog))
    docker.made.append(("rm", "--force", "--volumes", name))

    def is_read():
        # Until it listens the container doesn't start, or Docker's proxy swallows the line.
        docker.code(*engine, image, "compiled")
        return "compiled" in docker.logs(sidecar)

    wait_until("a line is read", is_read, LIMIT_S)


def of(follow, kind):
    return [item for item in follow.items if isinstance(item, kind)]

"""The proxies of deploy/proxy in Compose, by the very lines of its README, before an engine that
is killed, cut off and removed."""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.containers.conftest import BASE, ROOT
from tests.containers.docker import Docker
from tests.containers.project import Project, made, opened, started
from tests.live.sidecar import get, wait_until
from tests.proxies.node import RULES, SHAPES
from tests.proxies.users import MARK, Users

COLD_S = 1.0
START_S = 12
"""From the engine's process to its open port; a vLLM takes 10 s and more."""
SOME = 25

VLLM = f"""\
services:
  vllm:
    image: ${{TEST_IMAGE}}
    command: [sim, --host, 0.0.0.0, --rules, /rules.yaml, --start-delay-s, "{START_S}"]
    healthcheck: {{disable: true}}
    volumes: ["./rules.yaml:/rules.yaml:ro"]
    restart: unless-stopped
"""
OWN = """\
services:
  warmup:
    environment: {{WARMUP_SHAPES: /shapes.yaml}}
    volumes: ["./shapes.yaml:/shapes.yaml:ro"]
  {engine}:
    ports: ["127.0.0.1::8000"]
  proxy:
    image: {proxy}
    ports: !override ["127.0.0.1::8080"]
"""
"""What is the test's alone: shapes, free ports, a look at the engine's books, Debian's package."""
DEBIAN = """\
FROM {base}
RUN apt-get update \\
    && apt-get install -y --no-install-recommends {name} \\
    && rm -rf /var/lib/apt/lists/*
"""
README = (ROOT / "deploy" / "proxy" / "README.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def recipe(word: str) -> str:
    """The one block of the page that has this word."""
    (block,) = (text for text in BLOCKS if word in text)
    return str(block)


HELD_BACK = min((text for text in BLOCKS if "service_healthy" in text), key=len)


@pytest.fixture(scope="session")
def debian(image: str) -> Iterator[dict[str, str]]:
    """Images with Debian's packages: those of the page can't be pulled everywhere."""
    docker = Docker()
    made = {}
    with ExitStack() as stack:
        for name in ("haproxy", "caddy"):
            tag = f"warmup-test-{name}"
            stack.callback(docker, "image", "rm", tag, check=False)
            folder = stack.enter_context(TemporaryDirectory())
            (Path(folder) / "Dockerfile").write_text(DEBIAN.format(base=BASE, name=name))
            docker("build", "--quiet", "--tag", tag, folder, limit_s=400)
            made[name] = tag
        yield made


@dataclass(frozen=True, slots=True)
class Site:
    """A user's folder, up: engine, sidecar and proxy, and the services that publish the ports of
    the first two."""

    project: Project
    engine: str
    sidecar: str

    @property
    def docker(self) -> Docker:
        return self.project.docker

    def url(self, service: str, port: int) -> str:
        return f"http://{self.project('port', service, str(port))}"

    def ready(self) -> dict[str, Any]:
        answer = get(f"{self.url(self.sidecar, 8900)}/ready")
        return answer.body if answer else {}

    def wait_ready(self, boot: int) -> float:
        def is_so() -> bool:
            body = self.ready()
            return bool(body.get("ready")) and body["boot"]["number"] == boot

        wait_until(f"boot {boot} is warm", is_so, 180)
        return time.monotonic()

    def wait_shut(self, why: str = "") -> None:
        """With this among the reasons."""

        def is_so() -> bool:
            body = self.ready()
            return body.get("ready") is False and why in "; ".join(body["reasons"])

        wait_until(f"the gate is shut: {why}", is_so, 30)

    def wait_refused(self) -> float:
        """A user is told when to come again; the moment from which on everybody must be."""
        wait_until("the proxy says when", lambda: self.answer() == (503, "10"), 60)
        return time.monotonic()

    def answer(self) -> tuple[int, str | None] | None:
        """Status and Retry-After of the proxy; None while it gives none."""
        url = f"{self.url('proxy', 8080)}/v1/models"
        try:
            try:
                answer = urllib.request.urlopen(url, timeout=20)
            except urllib.error.HTTPError as problem:
                answer = problem
            with answer:
                return answer.status, answer.headers["Retry-After"]
        except OSError:
            return None

    def assert_nobody_paid(self) -> None:
        """By the books and the access log of this life of the engine."""
        with urllib.request.urlopen(f"{self.url(self.engine, 8000)}/_sim", timeout=20) as page:
            ledger = json.load(page)["ledger"]
        payers = {name for paid in ledger for name in paid["request_ids"]}
        assert payers, "the engine was cold, and somebody paid"
        assert {name for name in payers if "user-" in name} == set()
        vllm = self.project.container("vllm")
        since = self.docker.state(vllm)["StartedAt"]
        log = self.docker("logs", "--since", since, vllm, merge=True)
        posts = [line for line in log.splitlines() if '"POST /v1/' in line]
        last = max(number for number, line in enumerate(posts) if MARK not in line)
        assert [line for line in posts[:last] if MARK in line] == []
        assert [line for line in posts[last:] if MARK in line], "users were served"


@contextmanager
def site(
    docker: Docker, image: str, folder: Path, *blocks: str, proxy: str, file: str, pod: bool
) -> Iterator[Site]:
    """A user's compose.yaml, the override, the blocks of the page, and what is the test's: each a
    file. Returns once the proxy answers, whatever it answers."""
    (folder / "rules.yaml").write_text(RULES.format(cold_s=COLD_S))
    (folder / "shapes.yaml").write_text(SHAPES)
    engine, sidecar = ("pod", "pod") if pod else ("vllm", "warmup")
    texts = [*blocks, OWN.format(proxy=proxy, engine=engine)]
    names = [f"compose.{number}.yaml" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(text)
    with made(docker, image, folder, VLLM) as project:
        project.add("compose.override.yaml", f"deploy/proxy/{file}")
        project.set(COMPOSE_FILE=":".join(("compose.yaml", "compose.override.yaml", *names)))
        project("up", "--detach", "--quiet-pull")
        this = Site(project, engine, sidecar)
        wait_until("the proxy answers", lambda: this.answer() is not None, 60)
        yield this


def survive_a_crash(this: Site, users: Users) -> None:
    """Boot 1 is killed, boot 2 warmed, and users come all the while."""
    opened = this.wait_ready(1)
    users.wait_served(SOME, since=opened)
    this.assert_nobody_paid()
    killed = time.monotonic()
    this.project.crash("vllm")
    this.wait_shut()
    refused = this.wait_refused()
    again = this.wait_ready(2)
    users.wait_served(SOME, since=again)
    this.assert_nobody_paid()
    # Who came before the proxy had noticed may have waited for a connection, or lost one.
    late = [one for one in users.unserved if one.began > refused or one.ended < killed]
    assert late, "nobody came"
    others = [one for one in late if (one.status, one.retry_after) != (503, "10")]
    assert not others, (others, f"killed {killed}, refused {refused}, open again {again}")


def test_haproxy_before_an_engine_that_comes_and_goes(
    docker: Docker, image: str, debian: dict[str, str], tmp_path: Path
) -> None:
    """Held back until it is warm; killed, cut off and removed, it gets no user before it is warm
    again, and they are told when to come."""
    blocks = recipe("haproxy.cfg"), HELD_BACK
    with (
        site(
            *(docker, image, tmp_path, *blocks),
            proxy=debian["haproxy"],
            file="haproxy.cfg",
            pod=False,
        ) as this,
        Users(this.url("proxy", 8080), name="haproxy") as users,
    ):
        assert started(this.project, "proxy") > opened(this.project)
        survive_a_crash(this, users)

        vllm = this.project.container("vllm")
        network = f"{this.project.config()['name']}_default"
        cut = time.monotonic()
        docker("network", "disconnect", network, vllm)
        # As late it would be "/health has not answered for 13 s".
        this.wait_shut("the engine is gone")
        print(f"cut off: shut after {time.monotonic() - cut:.1f} s")
        this.wait_refused()
        docker("network", "connect", "--alias", "vllm", network, vllm)
        this.wait_ready(2)
        users.wait_served(SOME, since=time.monotonic())

        removed = time.monotonic()
        docker("rm", "--force", "--volumes", vllm)
        this.wait_shut()
        print(f"removed: shut after {time.monotonic() - removed:.1f} s")
        this.wait_refused()
        this.project("up", "--detach", "vllm")
        users.wait_served(SOME, since=this.wait_ready(3))
        this.assert_nobody_paid()


def test_caddy_in_one_network_with_engine_and_sidecar(
    docker: Docker, image: str, debian: dict[str, str], tmp_path: Path
) -> None:
    """The engine is killed and comes back into the same network; nobody meets it cold."""
    with (
        site(
            *(docker, image, tmp_path, recipe("Caddyfile")),
            proxy=debian["caddy"],
            file="Caddyfile",
            pod=True,
        ) as this,
        Users(this.url("proxy", 8080), name="caddy") as users,
    ):
        assert started(this.project, "proxy") > opened(this.project)
        survive_a_crash(this, users)

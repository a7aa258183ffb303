"""What the image promises to whoever runs it."""

import json
import re
import time
import tomllib
from pathlib import Path

import pytest

from benchmarks.image import LIMIT_BYTES, added_bytes, parts_of
from tests.containers.conftest import BASE, ROOT
from tests.containers.docker import Docker
from tests.live.sidecar import get, wait_until
from tests.live.standstill import Standstill

HARDENED = (
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--publish", "127.0.0.1:0:8900"),
)


def start_sidecar(docker: Docker, image: str, network: str, *options: str) -> str:
    return docker.start(
        image, *HARDENED, "--network", network, "--env", "WARMUP_SHAPES=tiny", *options
    )


def state_of(docker: Docker, container: str) -> str | None:
    answer = get(f"{docker.url(container)}/ready")
    return answer.body["state"] if answer else None


def test_image_runs_as_a_number_and_forwards_signals(docker: Docker, image: str) -> None:
    """Kubernetes' runAsNonRoot needs a numeric user; a shell as PID 1 would swallow SIGTERM."""
    config = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["vllm-warmup"]
    assert config["Healthcheck"]["Test"] == ["CMD", "vllm-warmup", "check"]
    assert config["Healthcheck"]["StartPeriod"] == 24 * 3600 * 10**9
    shown = docker("run", "--rm", *HARDENED[:5], "--entrypoint", "id", image, "-u")
    assert shown == "65532"


def test_image_is_small_and_holds_nothing_that_is_not_needed(image: str) -> None:
    """At most 60 MB over its base, without installers and without what `uvicorn` can do without."""
    added = added_bytes(image, BASE)
    assert added <= LIMIT_BYTES, f"{added / 1e6:.1f} MB"
    parts = {part.name: part for part in parts_of(image)}
    unwanted = {"pip", "setuptools", "wheel", "uvloop", "watchfiles", "websockets", "pytest"}
    assert not unwanted & parts.keys()
    assert sum(part.total for part in parts.values()) == pytest.approx(added, rel=0.1)
    assert all(part.bytecode for part in parts.values() if part.source > 100_000)


def test_labels_say_what_it_is(docker: Docker, image: str) -> None:
    """OCI annotations; those that no file knows come from build arguments."""
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", image))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert labels["org.opencontainers.image.title"] == project["name"]
    assert labels["org.opencontainers.image.version"] == project["version"]
    assert labels["org.opencontainers.image.description"] == project["description"]
    assert labels["org.opencontainers.image.licenses"] == project["license"]
    known = ("--build-arg", "REVISION=abc", "--build-arg", "SOURCE=https://example.org/it")
    docker.made.append(("image", "rm", "warmup-test-labelled"))
    docker("build", "--quiet", "--tag", "warmup-test-labelled", *known, str(ROOT), limit_s=400)
    shown = ("image", "inspect", "--format", "{{json .Config.Labels}}", "warmup-test-labelled")
    labelled = json.loads(docker(*shown))
    assert labelled["org.opencontainers.image.revision"] == "abc"
    assert labelled["org.opencontainers.image.source"] == "https://example.org/it"


def test_every_dependency_has_a_wheel_for_arm64(docker: Docker, image: str) -> None:
    """GB10 is one: the image is built there without a compiler."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    platforms = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
    resolved = docker(
        *("run", "--rm", "--entrypoint", "python", BASE, "-m", "pip", "install", "--dry-run"),
        *("--quiet", "--report", "-", "--target", "/tmp/arm64", "--only-binary", ":all:"),
        *("--implementation", "cp", "--python-version", "3.13"),
        *(word for platform in platforms for word in ("--platform", platform)),
        *dependencies,
        limit_s=400,
    )
    wheels = [
        item["download_info"]["url"].rsplit("/", 1)[-1] for item in json.loads(resolved)["install"]
    ]
    assert len(wheels) >= len(dependencies)
    machines = {wheel.removesuffix(".whl").rsplit("-", 1)[-1] for wheel in wheels}
    foreign = [tag for tag in machines if tag != "any" and "aarch64" not in tag]
    assert not foreign, foreign
    assert any("aarch64" in tag for tag in machines), "pydantic-core alone has native code"


@pytest.mark.usefixtures("quick_vllm")
def test_it_needs_no_shell_and_compiles_and_writes_nothing(
    docker: Docker, image: str, network: str, tmp_path: Path
) -> None:
    """A whole warm-up with its health checks, where every shell is gone and the root read-only."""
    nothing = tmp_path / "nothing"
    nothing.touch()
    hidden = [f"{nothing}:/usr/bin/{shell}:ro" for shell in ("sh", "bash")]
    volumes = [word for volume in hidden for word in ("--volume", volume)]
    sidecar = start_sidecar(docker, image, network, *volumes, "--env", "PYTHONVERBOSE=1")
    assert docker.code("exec", sidecar, "/bin/sh", "-c", "true") != 0
    wait_until("the gate is open", lambda: state_of(docker, sidecar) == "ready", 120)
    wait_until("the container is healthy", lambda: docker.health(sidecar) == "healthy", 120)
    asked = docker("exec", sidecar, "python", "-v", "-m", "sidecar", "report", merge=True)
    said = docker.logs(sidecar) + asked
    assert len(re.findall(r"^# \S+\.pyc matches ", said, re.MULTILINE)) > 500
    compiled = re.findall(r"^# code object from (\S+\.py)$", said, re.MULTILINE)
    assert not compiled, f"byte code is missing: name the modules in the Dockerfile: {compiled}"
    assert docker("diff", sidecar) == ""


@pytest.mark.usefixtures("quick_vllm")
@pytest.mark.parametrize("user", ["12345", "12345:12345"])
def test_it_runs_as_any_number(docker: Docker, image: str, network: str, user: str) -> None:
    """As OpenShift's users, of group 0, with its state; as others without, and that is said."""
    sidecar = start_sidecar(docker, image, network, "--user", user)
    wait_until("the gate is open", lambda: state_of(docker, sidecar) == "ready", 120)
    ready = get(f"{docker.url(sidecar)}/ready")
    assert ready is not None
    said = [text for text in ready.body["warnings"] if "/state" in text]
    if user == "12345":
        assert not said
        assert docker.code("exec", sidecar, "vllm-warmup", "report") == 0
    else:
        assert len(said) == 1
        assert "the state folder /state can't be written (Permission denied)" in said[0]


def test_healthcheck_turns_healthy_spanthe_gate_opens(
    docker: Docker, image: str, network: str, request: pytest.FixtureRequest
) -> None:
    """Not healthy before the verdict, healthy soon after it, on a read-only root."""
    sidecar = start_sidecar(docker, image, network)
    wait_until("probes answer", lambda: state_of(docker, sidecar) is not None, 60)
    before = get(f"{docker.url(sidecar)}/ready")
    assert before is not None
    assert before.status == 503, before
    assert docker.code("exec", sidecar, "vllm-warmup", "check") == 1
    wait_until("it was checked", lambda: bool(docker.state(sidecar)["Health"]["Log"]), 60)
    assert docker.health(sidecar) == "starting"
    request.getfixturevalue("quick_vllm")
    wait_until("the container is healthy", lambda: docker.health(sidecar) == "healthy", 120)
    assert docker.code("exec", sidecar, "vllm-warmup", "check") == 0
    assert state_of(docker, sidecar) == "ready"


@pytest.mark.usefixtures("quick_vllm")
def test_a_second_start_adopts_the_verdict(docker: Docker, image: str, network: str) -> None:
    """The state folder outlives the container's process: a restart doesn't replay."""
    sidecar = start_sidecar(docker, image, network)
    wait_until("the gate is open", lambda: state_of(docker, sidecar) == "ready", 120)
    docker("restart", "--time", "10", sidecar)
    wait_until("the gate is open again", lambda: state_of(docker, sidecar) == "ready", 120)
    ready = get(f"{docker.url(sidecar)}/ready")
    assert ready is not None
    assert ready.body["adopted"] is True, ready.body


@pytest.mark.parametrize("when", ["waiting", "warming", "ready"])
def test_sigterm_ends_it_in_two_seconds(
    docker: Docker,
    image: str,
    network: str,
    when: str,
    request: pytest.FixtureRequest,
    standstill: Standstill,
) -> None:
    """An orchestrator's stop is obeyed at once, in the middle of a wave too."""
    if when != "waiting":
        request.getfixturevalue("slow_vllm" if when == "warming" else "quick_vllm")
    sidecar = start_sidecar(docker, image, network)
    wait_until(f"it is {when}", lambda: state_of(docker, sidecar) == when, 120)
    began = time.monotonic()
    docker("kill", "--signal", "TERM", sidecar)
    docker("wait", sidecar)
    lost = standstill.lost_since_s(began)
    # By Docker's clock: its commands alone take a second on a busy machine.
    only = ("--filter", f"container={sidecar}", "--filter", "event=kill", "--filter", "event=die")
    span = ("--since", "10m", "--until", f"{time.time() + 1:.3f}")
    told = docker("events", *span, *only, "--format", "{{.TimeNano}}")
    signalled, ended = (int(moment) / 1e9 for moment in told.split())
    assert ended - signalled < 2.0 + 1.0 + lost, f"{ended - signalled:.1f} s"
    assert docker.state(sidecar)["ExitCode"] == 0, docker.logs(sidecar)

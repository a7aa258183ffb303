"""The engine, the image built from this checkout, and a cleaned-up set of containers a test."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.containers.docker import Docker, NoDocker, engine_version

HERE = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "vllm-warmup-sidecar:test"
BASE = "python:3.13-slim"
QUICK_SIM = (
    *("sim", "--host", "0.0.0.0", "--port", "8000"),
    *("--start-delay-s", "0.5", "--time-scale", "0.1"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder. The first test waits for the images to be built, too."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def image() -> str:
    """Built once a session; a build takes a minute the first time.

    WARMUP_TEST_IMAGE names one that is there already.
    """
    try:
        engine_version()
    except NoDocker as problem:
        unavailable(str(problem))
    if built := os.environ.get("WARMUP_TEST_IMAGE"):
        return built
    Docker()("build", "--quiet", "--tag", IMAGE, str(ROOT), limit_s=900)
    return IMAGE


@pytest.fixture
def docker(image: str) -> Iterator[Docker]:
    engine = Docker()
    try:
        yield engine
    finally:
        engine.clean()


@pytest.fixture
def network(docker: Docker) -> str:
    """A network of the test's own, on which containers find each other by name."""
    return docker.network(f"warmup-test-{uuid.uuid4().hex[:8]}")


def simulated(docker: Docker, network: str, image: str, command: tuple[str, ...]) -> str:
    """An engine that the network knows as `vllm`."""
    named = ("--network", network, "--network-alias", "vllm")
    return docker.start(image, "--no-healthcheck", *named, command=command)


@pytest.fixture
def slow_vllm(docker: Docker, network: str, image: str) -> str:
    """Its warm-up takes minutes, and can't be over before somebody has looked."""
    return simulated(docker, network, image, (*QUICK_SIM[:-1], "20"))


@pytest.fixture
def quick_vllm(docker: Docker, network: str, image: str) -> str:
    """Ten times as fast as one on a GPU: for tests of what comes around a warm-up."""
    return simulated(docker, network, image, QUICK_SIM)

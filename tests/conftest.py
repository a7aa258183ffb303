"""What every tier needs: the async backend, a guard against blocked event loops, a real vLLM."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from tests.live.standstill import Standstill
from tests.live.vllm import Installation, NotInstalled, VllmServer

GUARDED = ("adapters", "service")
"""Tiers in which a blocked event loop is a bug of ours: it would falsify every latency."""

TIERS = ("programs", "proxies", "live", "containers")
"""In the order in which they run, after all that has no such mark."""


gc.disable()  # while tests are collected: all that is made then is kept


def pytest_collection_finish() -> None:
    """No garbage collection looks at it again: two seconds for each process."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # after the marks were set
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: a mistake shows in seconds, not behind ten minutes of real servers."""
    items.sort(key=tier)


def tier(item: pytest.Item) -> int:
    return next((n for n, mark in enumerate(TIERS) if item.get_closest_marker(mark)), -1)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Only asyncio: uvicorn and the waves' protocol stand on it."""
    return "asyncio"


@pytest.fixture(autouse=True)
def event_loop_guard(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """In guarded tiers a blocking call of the sidecar on a running event loop fails the test.

    The simulator is left out: it stands for another process, and writes its log as that would.
    """
    if not any(part in GUARDED for part in request.path.parts):
        yield None
        return
    with blockbuster_ctx(
        scanned_modules=["sidecar"], excluded_modules=["sidecar.simulator"]
    ) as guard:
        yield guard


def is_ci() -> bool:
    return os.environ.get("CI") == "true"


def unavailable(reason: str) -> None:
    """A tier that can't run here is skipped and says why; in CI that is a failure."""
    if is_ci():
        pytest.fail(f"in CI no tier may be skipped: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def vllm_installation() -> Installation:
    """The real vLLM that `make vllm` put under `.vllm`, and the tiny models beside it."""
    try:
        return Installation.find()
    except NotInstalled as problem:
        unavailable(str(problem))
        raise AssertionError("not reached") from None


@pytest.fixture(scope="session")
def real_vllm(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """One running qwen3 server for all tests that neither restart it nor need it cold."""
    folder = tmp_path_factory.mktemp("vllm")
    with VllmServer(vllm_installation, folder, model="qwen3") as server:
        yield server


@pytest.fixture(scope="session")
def standstill() -> Iterator[Standstill]:
    """How long the machine stood still, for whoever says how long something may take."""
    with Standstill() as standstill:
        yield standstill


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An empty folder of the test's own, short enough for a Unix socket inside."""
    return tmp_path

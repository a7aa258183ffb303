"""Two engines, each with its own sidecar, behind a proxy: whatever happens to one, no request
fails."""

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.process import free_port
from tests.proxies.front import Crowd, Front, unexcused
from tests.proxies.node import Node
from tests.proxies.proxy import FOLDER, SHUT, Backend

pytestmark = pytest.mark.timeout(400)

SOME = 30


@dataclass(frozen=True, slots=True)
class Pair:
    """Both gates are open."""

    nodes: tuple[Node, Node]
    front: Front


@pytest.fixture(scope="module")
def pair(proxies: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """On two addresses of loopback: Caddy asks all gates at one port."""
    folder = tmp_path_factory.mktemp("pair")
    port = free_port()
    with (
        Node(folder / "one", port=port, cold_s=0.8) as one,
        Node(folder / "two", host="127.0.0.2", port=port, cold_s=0.8) as two,
    ):
        for node in (one, two):
            node.start(after_s=0.5)
        for node in (one, two):
            node.wait_open()
        with Front(proxies, folder, (one.backend, two.backend)) as front:
            yield Pair((one, two), front)


def assert_all_served(crowd: Crowd, pair: Pair) -> None:
    assert all(users.asked for users in crowd.of)
    assert unexcused(crowd, *(node.sidecar for node in pair.nodes)) == []


def test_late_health_takes_nobody_out(pair: Pair, proxies: tuple[str, ...], tmp_path: Path) -> None:
    """A busy engine whose /health answers late keeps its users; proxies that asked /health
    themselves would have taken it from them."""
    address = pair.nodes[0].engine.address
    on_health = Front(proxies, tmp_path, (Backend(address, address),), path="/health")
    with on_health, pair.front.users() as crowd:
        crowd.wait_served(1)
        for node in pair.nodes:
            node.engine.turn(health_delay_s=4.0)
        for proxy in on_health.proxies:
            proxy.wait_status(SHUT)
        crowd.wait_served(SOME)
        for node in pair.nodes:
            node.wait_open()  # it is; but for a moment where the machine held it up
            node.engine.turn(health_delay_s=0.0)
    assert_all_served(crowd, pair)


def test_killed_sidecar_fails_no_request(pair: Pair) -> None:
    """A sidecar that crashes and is started anew costs no user an answer."""
    sidecar = pair.nodes[0].sidecar
    with pair.front.users() as crowd:
        crowd.wait_served(1)
        sidecar.end(signal.SIGKILL)
        sidecar.start()
        assert sidecar.wait_for("ready", limit_s=60)["adopted"] is True
        crowd.wait_served(SOME)
    assert_all_served(crowd, pair)


def test_rolling_restart_fails_no_request(pair: Pair) -> None:
    """Sidecar down, engine drained, engine and sidecar anew, one node after the other."""
    with pair.front.users() as crowd:
        for node in pair.nodes:
            crowd.wait_served(SOME)
            assert node.sidecar.end() == 0
            drain = ("sh", str(FOLDER / "drained.sh"), node.engine.url, "60")
            drained = subprocess.run(drain, capture_output=True, text=True, timeout=90, check=False)
            assert drained.returncode == 0, drained.stderr
            node.engine.end()
            node.engine.start(after_s=0.5)
            node.sidecar.start()
            node.wait_open()
        crowd.wait_served(SOME)
    assert_all_served(crowd, pair)
    for node in pair.nodes:
        payers = node.engine.payers()
        assert payers, "the new life was cold, and somebody paid"
        assert {name for name in payers if "user-" in name} == set()

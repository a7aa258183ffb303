"""The proof that matters: behind a proxy that asks the sidecar no user pays for a cold engine."""

import signal
import time
from pathlib import Path

import pytest

from tests.live.standstill import Standstill
from tests.proxies.front import Front
from tests.proxies.node import Engine, Node
from tests.proxies.proxy import SHUT, Backend
from tests.proxies.users import Asked, Users, p99, worst

COLD_S = 3.0
"""What each of the engine's two cold shapes costs, once a life."""
BOUND_S = 0.9 * COLD_S
"""A first token below it has not paid: who comes while another pays waits for a part of it, but
that other one for all. Two busy cores may well take a second longer for it."""
BACK_AFTER_S = 6.0
"""From the engine's death to its open port. A vLLM takes 10 s and more."""
ENOUGH = 60

pytestmark = pytest.mark.timeout(400)


def judge(name: str, when: str, served: list[Asked], standstill: Standstill) -> None:
    """All first tokens of one open gate against the warm ones, those of the later half."""
    warm = p99(sorted(served, key=lambda one: one.began)[len(served) // 2 :])
    firsts = [(one.began, one.ttft_s) for one in served if one.ttft_s is not None]
    slowest = max(ttft_s - standstill.lost_s(began, began + ttft_s) for began, ttft_s in firsts)
    told = f"{name} {when}: {len(served)} served, slowest {slowest:.3f} s, warm p99 {warm:.3f} s"
    print(told)
    assert slowest <= max(1.5 * warm, BOUND_S), told


def test_no_user_pays_before_or_after_a_crash(
    proxies: tuple[str, ...], tmp_path: Path, standstill: Standstill
) -> None:
    """Users who send all the while meet a shut door or a warm engine, in its next life too."""
    with (
        Node(tmp_path / "node", cold_s=COLD_S) as node,
        Front(proxies, tmp_path, (node.backend,)) as front,
        front.users() as crowd,
    ):
        assert {proxy.first_status for proxy in front.proxies} == {SHUT}
        node.start(after_s=1.0)
        first = node.wait_open()
        crowd.wait_served(ENOUGH, since=first)
        assert_nobody_paid(node.engine)
        killed = time.monotonic()
        node.engine.end(signal.SIGKILL)
        node.engine.start(BACK_AFTER_S)
        node.wait_shut()
        second = node.wait_open()
        crowd.wait_served(ENOUGH, since=second)
        assert node.engine.lives == 2
        assert_nobody_paid(node.engine)
    for users in crowd.of:
        before = [one for one in users.served_since(first) if one.ended < killed]
        judge(users.name, "after the start", before, standstill)
        judge(users.name, "after the crash", users.served_since(second), standstill)
        assert_told_to_come_again(users, killed, second)


def assert_nobody_paid(engine: Engine) -> None:
    """By the engine's own books: who waited in a cold step, and who came before the last wave."""
    payers = engine.payers()
    assert payers, "the engine was cold, and somebody paid"
    assert {name for name in payers if "user-" in name} == set()
    assert engine.users_before_last_wave() == 0


def assert_told_to_come_again(users: Users, killed: float, reopened: float) -> None:
    """Who was not served, and had nothing under way at the engine when it died, was answered 503
    with Retry-After, from the first on who was: until the proxy has noticed, two or three seconds
    after the death, Caddy tells, too late for who comes then, that it could not connect."""

    def is_told(one: Asked) -> bool:
        return (one.status, one.retry_after) == (SHUT, "10")

    told = [one for one in users.asked if one.began > killed and is_told(one)]
    assert told, "nobody was told"
    noticed = min(one.ended for one in told)
    assert noticed < reopened
    for one in users.unserved:
        assert is_told(one) or (one.began <= noticed and one.ended >= killed), one


def test_without_the_sidecar_users_pay(proxies: tuple[str, ...], tmp_path: Path) -> None:
    """The same proxies on vLLM's own /health send users into the cold, and these tests see it."""
    engine = Engine(tmp_path, cold_s=COLD_S)
    backend = Backend(engine.address, engine.address)
    try:
        with (
            Front(proxies, tmp_path, (backend,), path="/health") as front,
            front.users() as crowd,
        ):
            assert {proxy.first_status for proxy in front.proxies} == {SHUT}
            began = time.monotonic()
            engine.start(1.0)
            crowd.wait_served(ENOUGH, since=began)
            with pytest.raises(AssertionError, match="user-"):
                assert_nobody_paid(engine)
    finally:
        engine.end()
    slowest = {users.name: worst(users.served_since(began)) for users in crowd.of}
    print(f"without the sidecar: slowest {slowest}")
    assert max(slowest.values()) > BOUND_S

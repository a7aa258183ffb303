"""One sidecar for two engines, each asked for by its name as the README says."""

import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.sidecar import Sidecar
from tests.proxies.front import Crowd, Front, unexcused
from tests.proxies.node import SHAPES, Engine
from tests.proxies.proxy import FOLDER, HAPROXY, NGINX, Backend

pytestmark = pytest.mark.timeout(400)

README = (FOLDER / "README.md").read_text()
SOME = 30
BACK_AFTER_S = 6.0


def path_of(name: str) -> str:
    """What the page tells the owner of such a sidecar to have asked."""
    pattern = {
        HAPROXY: r"^WARMUP_URI='(.*)'$",
        NGINX: r"`proxy_pass\s+http://warmup_\$number(/.*);`",
    }[name]
    (path,) = re.findall(pattern, README, re.MULTILINE)
    return str(path)


def test_one_sidecar_for_two_engines(proxies: tuple[str, ...], tmp_path: Path) -> None:
    """One engine's death takes that one out and the other not, and it comes back warm."""
    names = [name for name in (HAPROXY, NGINX) if name in proxies]
    engines = []
    for number in (1, 2):
        (folder := tmp_path / f"engine-{number}").mkdir()
        engines.append(Engine(folder, cold_s=0.8))
    one, two = engines
    urls = f"engine-1={one.url} engine-2={two.url}"
    settings = {"WARMUP_ENGINE_URL": "", "WARMUP_ENGINE_URLS": urls}
    sidecar = Sidecar("", tmp_path, SHAPES, **settings)
    gate = sidecar.url.removeprefix("http://")
    backends = tuple(Backend(engine.address, gate) for engine in engines)

    def both() -> bool:
        return bool((sidecar.ready() or {})["ready"])

    try:
        for engine in engines:
            engine.start(0.5)
        with sidecar, ExitStack() as stack:
            fronts = [Front((name,), tmp_path, backends, path=path_of(name)) for name in names]
            open_fronts = [stack.enter_context(front) for front in fronts]
            users = [each for front in open_fronts for each in front.users().of]
            crowd = stack.enter_context(Crowd(users))
            sidecar.wait_until("both are warm", both, 60)
            crowd.wait_served(SOME)
            for engine in engines:
                assert "?user" in engine.log
            killed = time.monotonic()
            one.end(signal.SIGKILL)
            one.start(BACK_AFTER_S)
            sidecar.wait_until("one is out", lambda: not both(), 60)
            ready = sidecar.get
            sidecar.wait_until(
                "the other is in", lambda: (ready("/ready/engine-2") or {})["ready"], 60
            )
            crowd.wait_served(SOME)
            sidecar.wait_until("both are warm again", both, 60)
            warm = one.log.count("?user")
            crowd.wait_served(SOME)
            sidecar.wait_until("one has users", lambda: one.log.count("?user") > warm, 60)
            for engine in engines:
                payers = engine.payers()
                assert payers, "it was cold, and somebody paid"
                assert {who for who in payers if "user-" in who} == set()
    finally:
        for engine in engines:
            engine.end()
    # When it died some were with it.
    assert unexcused(crowd, sidecar, since=killed + 5) == []

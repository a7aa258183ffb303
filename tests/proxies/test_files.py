"""What each file of deploy/proxy says of itself, one promise a test."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.live.process import free_port
from tests.proxies.fakes import Fake
from tests.proxies.proxy import ALL, CADDY, FOLDER, HAPROXY, NGINX, SHUT, Backend, Proxy, program

pytestmark = pytest.mark.timeout(300)

PATH = "/v1/completions"
BODY = b'{"prompt": "x", "stream": true}'


@dataclass(frozen=True, slots=True)
class Door:
    """A proxy, and the engine and gate behind it."""

    proxy: Proxy
    fake: Fake

    def post(self, path: str = PATH, body: bytes = BODY) -> httpx.Response:
        return post(self.proxy.url, path, body)

    def let_in(self, path: str = PATH, body: bytes = BODY) -> httpx.Response:
        return let_in(self.proxy.url, path, body)


def post(url: str, path: str = PATH, body: bytes = BODY) -> httpx.Response:
    """Over a connection of its own. Raises httpx.TransportError where it closes or is refused."""
    with httpx.Client(trust_env=False, timeout=120) as client:
        return client.post(url + path, content=body)


def let_in(url: str, path: str = PATH, body: bytes = BODY) -> httpx.Response:
    """Come again, as one is told to: a gate in this process is late where the machine stands still,
    and the proxy takes it for shut."""
    until = time.monotonic() + 120
    while (answer := post(url, path, body)).status_code == SHUT:
        assert time.monotonic() < until, answer.text
    return answer


def one(fake: Fake) -> tuple[Backend, ...]:
    return (Backend(fake.address, fake.address),)


@pytest.fixture(scope="module", params=ALL)
def name(request: pytest.FixtureRequest, proxies: tuple[str, ...]) -> str:
    """Each proxy in its turn."""
    if request.param not in proxies:
        pytest.skip(f"{request.param} is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def running(name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with Fake() as fake, Proxy(name, tmp_path_factory.mktemp(name), one(fake)) as proxy:
        yield Door(proxy, fake)


@pytest.fixture
def door(running: Door) -> Door:
    """With the gate open."""
    running.fake.ready = True
    running.fake.go_on.set()
    running.proxy.wait_status(200)
    running.fake.posts.clear()
    running.fake.origins.clear()
    return running


def test_shut_door_tells_when_to_come_again(door: Door) -> None:
    """503 with Retry-After and an error in OpenAI's form, which clients retry by themselves."""
    door.fake.ready = False
    door.proxy.wait_status(SHUT)
    answer = door.post()
    assert (answer.status_code, answer.headers["Retry-After"]) == (SHUT, "10")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json()["error"]["type"] == "service_unavailable"
    assert door.fake.posts == []


def test_stream_passes_at_once_and_outlives_the_gate(door: Door) -> None:
    """The first token is with its user before the second was made, and a gate that shuts keeps
    newcomers out and lets that user be served to the end."""
    door.fake.go_on.clear()
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=120))
        answer = None
        while answer is None or answer.status_code == SHUT:  # as `let_in` does
            asked = client.stream("POST", door.proxy.url + PATH, content=BODY)
            answer = stack.enter_context(asked)
        lines = answer.iter_lines()
        try:
            assert next(lines).startswith("data: {")
            door.fake.ready = False
            door.proxy.wait_status(SHUT)
        finally:
            door.fake.go_on.set()
        assert "data: [DONE]" in list(lines)


def test_long_prompts_pass(door: Door) -> None:
    """A prompt of a million tokens is some megabytes: no proxy's usual limit on bodies stops it."""
    assert door.let_in(body=b"x" * (8 << 20)).status_code == 200


def test_only_users_paths_pass(door: Door) -> None:
    """What changes an engine or tells of it is not for users."""
    for path in ("/pause", "/metrics", "/sleep?level=2", "/scale_elastic_ep"):
        assert door.post(path).status_code == 404
    assert door.fake.posts == []


def test_each_request_has_its_own_connection(door: Door) -> None:
    """No POST is sent down a kept connection that the engine may be closing just then."""
    with httpx.Client(trust_env=False, timeout=120) as client:
        while len(door.fake.origins) < 5:
            assert client.post(door.proxy.url + PATH, content=BODY).status_code in (200, SHUT)
    assert len(set(door.fake.origins)) == 5


@pytest.mark.parametrize("name", [HAPROXY], indirect=True)
def test_haproxy_tells_prometheus_who_is_in(door: Door) -> None:
    """Its own figures say of each engine whether its gate lets users in."""
    page = httpx.get(f"http://{door.proxy.stats}/metrics", trust_env=False, timeout=60).text
    assert 'haproxy_server_status{proxy="engines",server="engine-1",state="UP"} 1' in page


# To Caddy an engine is healthy until its first check has ended: README.md says so.
@pytest.mark.parametrize("name", [HAPROXY, NGINX], indirect=True)
def test_proxy_that_starts_sends_nobody_into_the_cold(name: str, tmp_path: Path) -> None:
    """A shut gate that answers late keeps users out from a starting proxy's first moment on."""
    with Fake(ready=False, gate_takes_s=1.2) as fake:
        proxy = Proxy(name, tmp_path, one(fake))
        stop = threading.Event()
        statuses: list[int] = []

        def knock() -> None:
            while not stop.is_set():
                try:
                    statuses.append(post(proxy.url).status_code)
                except httpx.TransportError:
                    time.sleep(0.02)

        users = [threading.Thread(target=knock) for _ in range(3)]
        for user in users:
            user.start()
        try:
            with proxy:
                proxy.wait_status(SHUT)
                while not statuses and any(user.is_alive() for user in users):
                    time.sleep(0.02)
                stop.set()
                for user in users:
                    user.join()
        finally:
            stop.set()
        assert set(statuses) == {SHUT}
        assert fake.posts == []


def test_request_that_may_have_run_is_sent_once(name: str, tmp_path: Path) -> None:
    """An engine that breaks off is not followed by the next one: what killed it would kill that."""
    with Fake() as first, Fake() as second:
        backends = one(first) if name == CADDY else (*one(first), *one(second))
        with Proxy(name, tmp_path, backends) as proxy:
            proxy.wait_status(200)
            first.breaks_off = second.breaks_off = True
            assert let_in(proxy.url).status_code == 502
        assert len(first.posts) + len(second.posts) == 1


# Caddy: below, for it asks both gates at one port.
@pytest.mark.parametrize("name", [HAPROXY, NGINX], indirect=True)
def test_request_that_reached_nobody_goes_to_the_next(name: str, tmp_path: Path) -> None:
    """An engine that refuses connections while its gate is open costs no user an answer."""
    with Fake() as gate, Fake() as alive:
        gone = f"127.0.0.1:{free_port()}"
        backends = (Backend(gone, gate.address), Backend(alive.address, alive.address))
        with Proxy(name, tmp_path, backends) as proxy:
            for _ in range(6):
                assert let_in(proxy.url).status_code == 200
        assert len(alive.posts) == 6


@pytest.mark.parametrize("name", [CADDY], indirect=True)
def test_caddy_takes_the_next_where_nobody_was_reached(name: str, tmp_path: Path) -> None:
    """The same with Caddy, for two engines at two addresses: the prompt arrives whole."""
    with Fake() as gate, Fake(host="127.0.0.2", port=gate.port) as alive:
        # the gate's address has no engine at this port, the other one's is both
        gone = Backend(f"127.0.0.1:{free_port()}", gate.address)
        with Proxy(name, tmp_path, (gone, Backend(alive.address, alive.address))) as proxy:
            for _ in range(6):
                assert let_in(proxy.url).status_code == 200
        assert alive.bodies == [len(BODY)] * 6


@pytest.mark.parametrize(
    "command", ["haproxy -c -f haproxy.cfg", "caddy validate --config Caddyfile"]
)
def test_files_are_good_as_they_stand(command: str, proxies: tuple[str, ...]) -> None:
    """With no variable set they pass the proxy's own check. (nginx's looks the names up.)"""
    binary, *arguments = command.split()
    if binary not in proxies:
        pytest.skip(f"{binary} is not installed")
    checked = subprocess.run(
        [program(binary), *arguments],
        cwd=FOLDER,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr

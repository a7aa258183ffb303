"""The engine's client against servers that behave and servers that don't."""

import asyncio
import contextlib
import gzip
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.adapters import engine as engine_module
from sidecar.adapters import healthline
from sidecar.adapters.engine import Engine
from sidecar.core.errors import ConfigError, EngineRejected, EngineUnavailable
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Endpoint
from sidecar.core.watch.boot import Sameness, compare
from sidecar.core.wire.health import Health
from tests.adapters.stub import Asked, Handler, Stub, answer, hang, running
from tests.live.process import free_port


@pytest.fixture(autouse=True)
def never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine lets this process stand still between two looks."""
    monkeypatch.setattr(healthline, "_IDLE_S", 3600.0)


async def learn_from(stub: Stub, **options: object) -> EngineFacts:
    engine = Engine(stub.url, **{"timeout_s": 60.0, **options})
    try:
        return await engine.learn()
    finally:
        await engine.aclose()


async def test_everything_an_engine_tells_is_learned_with_its_source() -> None:
    """Models, version, metrics, server_info, openapi and the ids of ordinary text."""
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 8}}}
    schema = {"schema": {"properties": {"prompt": {}}}}
    body = {"requestBody": {"content": {"application/json": schema}}}
    openapi = {"paths": {"/v1/completions": {"post": body}}}
    more = {"/server_info": answer(200, info), "/openapi.json": answer(200, openapi)}
    async with running(more) as stub:
        facts = await learn_from(stub)
    assert (facts.version, facts.model, facts.max_model_len) == ("0.32.0", "tiny", 8192)
    assert (facts.ranks, facts.kv_cache_tokens, facts.max_num_seqs) == (1, 65_536, 8)
    assert facts.request_fields == {Endpoint.COMPLETIONS: {"prompt"}}
    assert facts.token_ids is not None
    assert facts.token_ids.phrase[:2] == (2000, 2001)
    assert facts.sources["kv_cache_tokens"] == "/metrics"
    assert facts.sources["max_num_seqs"] == "/server_info"


async def test_what_an_engine_does_not_tell_stays_unknown() -> None:
    """Only /v1/models is needed; everything else may be missing."""
    async with running() as stub:
        stub.handlers = {"/v1/models": stub.handlers["/v1/models"]}
        facts = await learn_from(stub)
    assert (facts.model, facts.version, facts.ranks, facts.token_ids) == ("tiny", None, None, None)
    assert set(facts.sources) == {"models", "model", "max_model_len"}


HTML = answer(200, b"<html>hello</html>", "text/html")


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (
            answer(401, {"error": "Unauthorized"}),
            r"a request without an API key \(401\).*WARMUP_API_KEY.*start the sidecar again",
        ),
        (answer(403), r"\(403\).*WARMUP_API_KEY"),
        (HTML, "no vLLM server: it answers 200: a body of text/html where JSON is due"),
        (answer(404, {"detail": "Not Found"}), "no vLLM server: /v1/models answers 404: Not Found"),
        (answer(200, [1, 2]), "no vLLM server"),
        (answer(200, {"hello": 1}), "not usable: its /v1/models is not a list"),
        (answer(200, b"[" * 100_000), "no vLLM server"),
        (answer(307, location="http://elsewhere.example/"), "redirects to 'http://elsewhere"),
        (answer(200, {"data": [{"id": "other"}]}), "no model 'tiny', but 'other'"),
    ],
    ids=["401", "403", "html", "404", "list", "object", "deep", "redirect", "model"],
)
async def test_a_refusal_is_one_sentence(models: Handler, sentence: str) -> None:
    """Wrong key, wrong model, not vLLM: named at once, with what to change."""
    async with running({"/v1/models": models}) as stub:
        with pytest.raises(EngineRejected, match=sentence) as refusal:
            await learn_from(stub, model="tiny")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_server_that_is_not_there_yet_is_unavailable(status: int) -> None:
    """5xx is "not yet" and no refusal."""
    message = {"error": {"message": "starting", "code": status}}
    async with running({"/v1/models": answer(status, message)}) as stub:
        with pytest.raises(EngineUnavailable, match=f"{status}: starting") as refusal:
            await learn_from(stub)
    assert not isinstance(refusal.value, EngineRejected)


async def test_nobody_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection and a name that doesn't resolve."""
    look_up = socket.getaddrinfo

    def unknown(host: object, *rest: object, **more: object) -> object:
        if "invalid" in str(host):  # no network's name server is asked, nor waited for
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for host in (f"127.0.0.1:{free_port()}", "no-such-host.invalid:8000"):
        engine = Engine(f"http://{host}")
        assert await engine.health() is Health.REFUSED
        with pytest.raises(EngineUnavailable, match=f"no answer from http://{host}/v1/models"):
            await engine.learn()
        assert await engine.scrape() is None
        assert compare(await engine.mark(), await engine.mark()) is Sameness.UNTOLD
        await engine.aclose()


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (answer(200), Health.UP),
        (answer(503), Health.UNAVAILABLE),
        (answer(502), Health.UNAVAILABLE),
        (hang, Health.TIMEOUT),
    ],
)
async def test_health_tells_late_from_gone(handler: Handler, expected: Health) -> None:
    """A busy API server answers late: that is not the same as an error or nobody there."""
    async with running({"/health": handler}) as stub:
        engine = Engine(stub.url, timeout_s=0.2 if handler is hang else 60.0)
        assert await engine.health() is expected
        await engine.aclose()


async def test_health_is_asked_over_one_kept_connection() -> None:
    """Ten looks, one connection; a server that closed it meanwhile is not down, but it is told."""
    async with running() as stub:
        engine = Engine(stub.url, timeout_s=60.0)
        for _ in range(10):
            assert await engine.health() is Health.UP
        assert stub.connections == 1

        async def close(asked: Asked, writer: asyncio.StreamWriter) -> None:
            writer.transport.abort()
            stub.handlers["/health"] = answer(200)

        stub.handlers["/health"] = close
        assert await engine.health() is Health.RECONNECTED
        assert await engine.health() is Health.UP
        stub.handlers["/health"] = lambda asked, writer: _abort(writer)
        assert await engine.health() is Health.REFUSED
        await engine.aclose()


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_a_broken_get_is_repeated_and_a_post_is_not() -> None:
    """Idempotent GETs get three tries."""
    async with running() as stub:
        good = stub.handlers["/v1/models"]

        async def twice_broken(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if len(stub.of("/v1/models")) < 3:
                writer.transport.abort()
            else:
                await good(asked, writer)

        stub.handlers["/v1/models"] = twice_broken
        stub.handlers["/tokenize"] = lambda asked, writer: _abort(writer)
        facts = await learn_from(stub)
        assert facts.model == "tiny"
        assert len(stub.of("/tokenize")) == 1


async def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge body and an endless one end in a sentence, with bounded memory."""
    monkeypatch.setattr(engine_module, "MAX_ANSWER_BYTES", 1 << 20)

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            writer.write(b" " * 65_536)
            await writer.drain()

    async with running({"/v1/models": endless, "/metrics": endless}) as stub:
        with pytest.raises(EngineUnavailable, match="more than 1 MiB"):
            await learn_from(stub)
        engine = Engine(stub.url)
        assert await engine.scrape() is None
        await engine.aclose()


async def test_a_trickle_does_not_hold_a_wait_open() -> None:
    """The limit is for the whole answer, not for each of its bytes."""

    async def trickle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with running({"/v1/models": trickle}) as stub:
        async with asyncio.timeout(60):
            with pytest.raises(EngineUnavailable, match=r"no whole answer within 0\.2 s"):
                await learn_from(stub, timeout_s=0.2)


async def test_no_http_at_all_is_unavailable() -> None:
    """Something else listens there."""

    async def ssh(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9\r\n")

    async with running({"/v1/models": ssh}) as stub:
        with pytest.raises(EngineUnavailable, match="no answer from"):
            await learn_from(stub, timeout_s=0.2)


async def test_the_key_goes_to_the_engine_and_across_no_redirect() -> None:
    """Bearer on every request to the configured origin; a redirect is not followed."""
    async with running() as other:
        async with running() as stub:
            await learn_from(stub, api_key="sekret")
            assert {one.headers["authorization"] for one in stub.asked} == {"bearer sekret"}
            stub.handlers["/v1/models"] = answer(307, location=f"{other.url}/v1/models")
            with pytest.raises(EngineRejected, match="redirects"):
                await learn_from(stub, api_key="sekret")
        assert not other.asked


async def test_a_key_that_an_answer_repeats_is_said_by_nobody() -> None:
    """Some servers put the key they refuse into the error, or into the redirect."""
    for echo in (
        answer(400, {"error": {"message": "unknown key sekret"}}),
        answer(302, location="http://elsewhere.example/?key=sekret"),
    ):
        async with running({"/v1/models": echo}) as stub:
            with pytest.raises(EngineRejected, match=r"\*\*\*") as refusal:
                await learn_from(stub, api_key="sekret")
        assert "sekret" not in str(refusal.value)


METRICS_PAGE = (
    b'process_start_time_seconds %s\nvllm:cache_config_info{kv_cache_size_tokens="%s"} 1\n'
)


@pytest.mark.parametrize("start", [b"1e300", b"-5", b"NaN", b"9" * 5000])
async def test_absurd_figures_are_unknown_and_break_nothing(start: bytes) -> None:
    """A start time beyond the calendar, a capacity of thousands of digits, names that are none."""
    page = answer(200, METRICS_PAGE % (start, b"9" * 6000), "text/plain")
    cards = [{"id": "\ud800"}, {"id": "x" * 10_000}, {"id": "tiny", "max_model_len": 10**40}]
    async with running({"/metrics": page, "/v1/models": answer(200, {"data": cards})}) as stub:
        facts = await learn_from(stub)
        engine = Engine(stub.url)
        assert (await engine.mark()).process_start_s is None
        await engine.aclose()
    assert (facts.models, facts.max_model_len, facts.kv_cache_tokens) == (("tiny",), None, None)


async def test_many_models_are_not_all_listed() -> None:
    """A refusal stays one sentence that can be read."""
    cards = [{"id": f"m{i}"} for i in range(5000)]
    async with running({"/v1/models": answer(200, {"data": cards})}) as stub:
        with pytest.raises(EngineRejected, match="and 4990 more") as refusal:
            await learn_from(stub, model="tiny")
    assert len(str(refusal.value)) < 500


async def test_a_compressed_answer_is_named() -> None:
    """A proxy that compresses what was asked for plain is told from one that sends rubbish."""
    zipped = answer(200, gzip.compress(b"{}"), content_encoding="gzip")
    async with running({"/v1/models": zipped}) as stub:
        with pytest.raises(EngineRejected, match="compressed by gzip though none was asked for"):
            await learn_from(stub)


class OneAtATime:
    """A server that takes one connection, reads `answered` requests of it and fills its backlog."""

    def __init__(self, answered: int) -> None:
        self._answered = answered
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self._listener.setblocking(False)
        self.url = "http://127.0.0.1:{}".format(*self._listener.getsockname()[1:])
        self.taken: socket.socket | None = None
        self._waiting = [socket.socket(), socket.socket()]

    async def serve(self) -> None:
        if self._answered:
            loop = asyncio.get_running_loop()
            self.taken, _ = await loop.sock_accept(self._listener)
            for number in range(1, self._answered + 1):
                await loop.sock_recv(self.taken, 4096)
                if number == self._answered:
                    self.fill()
                await loop.sock_sendall(self.taken, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    def fill(self) -> None:
        for one in self._waiting:
            one.setblocking(False)
            one.connect_ex(self._listener.getsockname())

    def close(self) -> None:
        for one in (*self._waiting, self._listener, self.taken):
            if one is not None:
                one.close()


@contextlib.asynccontextmanager
async def one_at_a_time(*, answered: int) -> AsyncIterator[tuple[OneAtATime, Engine]]:
    server = OneAtATime(answered)
    engine = Engine(server.url, timeout_s=60.0)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve())
            for _ in range(answered):
                assert await engine.health() is Health.UP
        engine._line._connect_s = 0.4
        yield server, engine
    finally:
        await engine.aclose()
        server.close()


async def test_no_connection_in_time_is_not_a_late_answer() -> None:
    """A full backlog takes no connection: late, but a restart can't be ruled out."""
    async with one_at_a_time(answered=0) as (server, engine):
        server.fill()
        assert await engine.health() is Health.UNREACHED


async def test_busy_with_a_full_backlog_is_late_and_not_gone() -> None:
    """Whose kept connection holds is never said to have vanished, also when that is given up."""
    async with one_at_a_time(answered=2) as (_, engine):
        engine._line._limit_s = 0.4
        assert await engine.health() is Health.TIMEOUT
        engine._line._limit_s = 60.0
        assert await engine.health() is Health.UNREACHED
        assert await engine.health() is Health.UNREACHED


async def test_a_broken_connection_and_none_in_its_place_is_gone() -> None:
    """Nobody refuses where nobody is: an address that falls silent is not taken for a busy one."""
    async with one_at_a_time(answered=2) as (server, engine):
        assert server.taken is not None
        server.taken.close()
        assert await engine.health() is Health.VANISHED
        assert await engine.health() is Health.UNREACHED


async def test_a_handshake_that_is_late_is_an_answer_that_is_late() -> None:
    """A busy process can't do its part of TLS, but its kernel has taken the connection."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        engine = Engine("https://127.0.0.1:{}".format(*busy.getsockname()[1:]), timeout_s=0.4)
        assert await engine.health() is Health.TIMEOUT
        await engine.aclose()


async def test_a_server_that_keeps_no_connection_breaks_none() -> None:
    """`Connection: close` on each answer, or once in a while, is no sign of a restart."""
    async with running({"/health": answer(200, connection="close")}) as stub:
        engine = Engine(stub.url)
        assert {await engine.health() for _ in range(4)} == {Health.UP}
        stub.handlers["/health"] = answer(200)
        assert {await engine.health() for _ in range(4)} == {Health.UP}
        stub.handlers["/health"] = answer(200, connection="close")
        assert {await engine.health() for _ in range(4)} == {Health.UP}
        await engine.aclose()


async def test_marks_take_a_connection_each() -> None:
    """Behind a balancer kept connections would all lead to the same engine."""
    async with running() as stub:
        engine = Engine(stub.url)
        await engine.mark()
        before = stub.connections
        await engine.mark()
        assert stub.connections == before + 3
        await engine.aclose()


async def test_proxies_of_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only settings read the environment: a proxy there must not get the key."""
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    async with running() as stub:
        assert (await learn_from(stub, api_key="sekret")).model == "tiny"


async def test_a_base_path_goes_before_every_path() -> None:
    """An engine behind a proxy's prefix."""
    async with running() as stub:
        stub.handlers |= {f"/engine{path}": handler for path, handler in stub.handlers.items()}
        engine = Engine(f"{stub.url}/engine/")
        await engine.learn()
        await engine.health()
        await engine.aclose()
        assert all(one.path.startswith("/engine/") for one in stub.asked)
        assert engine.target.path == "/engine"


async def test_a_mark_tells_a_restart() -> None:
    """Another process start time is another boot."""
    async with running() as stub:
        engine = Engine(stub.url)
        first = await engine.mark()
        assert compare(first, await engine.mark()) is Sameness.SAME
        stub.handlers["/metrics"] = answer(200, b"process_start_time_seconds 5.0\n", "text/plain")
        assert compare(first, await engine.mark()) is Sameness.OTHER
        await engine.aclose()


async def test_chat_is_counted_as_chat_will_render_it() -> None:
    """Template arguments go along, and reasoning_effort as vLLM hands it to the template."""
    async with running() as stub:
        engine = Engine(stub.url, model="tiny")
        kwargs = {"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "max", "top_p": 1}
        assert await engine.tokenize_chat("a b c", kwargs) == 12
        await engine.aclose()
        assert stub.of("/tokenize")[-1].json == {
            "model": "tiny",
            "messages": [{"role": "user", "content": "a b c"}],
            "chat_template_kwargs": {
                "reasoning_effort": "max",
                "enable_thinking": True,
                "thinking": True,
            },
        }


def make_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A self-signed certificate for 127.0.0.1, by the openssl command."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=test"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


async def test_tls_with_a_ca_of_the_operators_own(
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    """Trusted with the CA file or without checking; else refused with the reason."""
    cert, context = certificate
    async with running(tls=context) as stub:
        assert (await learn_from(stub, tls_ca_file=str(cert))).model == "tiny"
        assert (await learn_from(stub, tls_verify=False)).model == "tiny"
        with pytest.raises(EngineUnavailable, match=r"certificate.*set WARMUP_TLS_CA_FILE"):
            await learn_from(stub)


async def test_https_where_http_is_spoken_and_the_reverse_are_told_apart_from_a_wrong_ca(
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    """No CA file helps there: the sentence names the scheme that the address should have."""

    async def uvicorn(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)  # of a TLS hello it says what it says of every bad request
        writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        with contextlib.suppress(OSError):
            await reader.read()  # closed with bytes unread, the answer might be lost
        writer.close()

    async with await asyncio.start_server(uvicorn, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        engine = Engine(f"https://127.0.0.1:{port}", timeout_s=60.0)
        with pytest.raises(EngineUnavailable, match=r"; correct WARMUP_ENGINE_URL .http://"):
            await engine.learn()
        await engine.aclose()
    async with running(tls=certificate[1]) as stub:
        engine = Engine(stub.url.replace("https:", "http:"), timeout_s=60.0)
        with pytest.raises(EngineUnavailable, match=r"[^.]; .*WARMUP_ENGINE_URL .https://"):
            await engine.learn()
        await engine.aclose()


def test_a_key_that_can_not_be_a_header_is_refused() -> None:
    """A key with a line break would smuggle a header in."""
    with pytest.raises(ConfigError, match="API key"):
        Engine("http://127.0.0.1:1", api_key="a\r\nX-Evil: 1")


@pytest.mark.parametrize("content", [None, "hello"])
def test_a_ca_file_that_can_not_be_used_is_one_sentence(
    tmp_path: Path, content: str | None
) -> None:
    """Missing, or without a certificate in it."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"ca\.pem can't be used.*WARMUP_TLS_CA_FILE"):
        Engine("https://127.0.0.1:1", tls_ca_file=str(path))

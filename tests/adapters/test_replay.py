"""A wave against servers that behave and servers that don't."""

import asyncio
import gc
import json
import re
import ssl
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from sidecar.adapters import replay as replay_module
from sidecar.adapters import wire as wire_module
from sidecar.adapters.engine import Engine
from sidecar.adapters.replay import Replay
from sidecar.core.facts import EngineFacts, TokenIds
from sidecar.core.grid.cells import Cell, Endpoint, Gait, Look, Variant
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.pacing import Pace, Pacer
from sidecar.core.results import Outcome, WaveResult
from tests.adapters.stub import (
    STREAM_HEAD,
    Asked,
    Handler,
    Stub,
    answer,
    chunk,
    event,
    generate,
    hang,
    running,
    stream,
    streams,
)
from tests.adapters.test_engine import certificate

__all__ = ["certificate"]

FACTS = EngineFacts(model="tiny", token_ids=TokenIds(2000, 2999, (5, 6, 7)))
CHAT = Variant("chat", Endpoint.CHAT)


@pytest.fixture(autouse=True)
def short_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of these servers count nothing: don't wait the full second for it."""
    monkeypatch.setattr(replay_module, "_COUNTERS_WAITS_S", (0.0, 0.01, 0.01, 0.01))


class FixedPacer(Pacer):
    """Says one pace, remembers what it was fed."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(Plan(cells=()))
        self._pace = pace
        self.fed: list[WaveResult] = []

    def pace(self, look: Look) -> Pace:
        return self._pace

    def feed(self, wave: WaveResult) -> None:
        self.fed.append(wave)


async def run(
    stub: Stub,
    cell: Cell,
    gait: Gait = Gait.HELD,
    pace: Pace | None = None,
    *,
    facts: EngineFacts = FACTS,
    waves: int = 1,
    timeout_s: float = 10.0,
    **options: Any,
) -> WaveResult:
    """The last of `waves` waves of a cell."""
    engine = Engine(stub.url, **options)
    replay = Replay(engine, facts, FixedPacer(pace or Pace()), "n0nce", request_timeout_s=timeout_s)
    try:
        for _ in range(waves):
            (wave,) = await replay.run([Look(cell, gait)])
    finally:
        await engine.aclose()
    return wave


def counting(stub: Stub, foreign: int = 0, lag: int = 0) -> None:
    """Make /metrics count what was asked for, `lag` scrapes late, and what others asked."""
    scrapes = 0

    async def metrics(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal scrapes
        scrapes += 1
        done = stub.of("/v1/completions") if scrapes > 1 + lag else []
        prompts = sum(len(one.json["prompt"]) for one in done)
        outputs = sum(one.json["max_tokens"] for one in done)
        page = (
            f"vllm:request_success_total {len(done) + (foreign if done else 0)}\n"
            f"vllm:prompt_tokens_total {prompts}\nvllm:generation_tokens_total {outputs}\n"
        )
        await answer(200, page.encode(), "text/plain")(asked, writer)

    stub.handlers["/metrics"] = metrics


async def test_a_wave_is_what_its_cell_declares() -> None:
    """Exact tokens each way, streamed with usage, a fresh salt, and nothing that no user sends."""
    async with running() as stub:
        variant = Variant("hot", fields={"temperature": 0.5})
        wave = await run(stub, Cell(3, 50, 4, variant))
        bodies = [one.json for one in stub.of("/v1/completions")]
    assert [r.outcome for r in wave.results] == [Outcome.OK] * 3
    assert {(r.prompt_tokens, r.completion_tokens, len(r.token_s)) for r in wave.results} == {
        (50, 4, 4)
    }
    assert {r.finish_reason for r in wave.results} == {"length"}
    assert len({body.pop("cache_salt") for body in bodies}) == 3
    prompts = [body.pop("prompt") for body in bodies]
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert all(len(prompt) == 50 and min(prompt) >= 2000 for prompt in prompts)
    expected = {
        "model": "tiny",
        "max_tokens": 4,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
    }
    assert bodies == [expected] * 3
    ids = [one.headers["x-request-id"] for one in stub.of("/v1/completions")]
    assert sorted(ids) == ["warmup-n0nce-1-0", "warmup-n0nce-1-1", "warmup-n0nce-1-2"]


async def test_a_variant_can_not_change_what_a_wave_is() -> None:
    """Its fields go in as they are, but never over the ones that make the wave measurable."""
    fields = {"stream": False, "max_tokens": 99, "ignore_eos": False, "model": "x", "top_k": 5}
    async with running() as stub:
        await run(stub, Cell(1, 10, 3, Variant("bad", fields=fields)))
        [body] = [one.json for one in stub.of("/v1/completions")]
    assert (body["stream"], body["max_tokens"], body["ignore_eos"]) == (True, 3, True)
    assert (body["model"], body["top_k"]) == ("tiny", 5)


async def test_later_waves_send_other_prompts() -> None:
    """The prefix cache, and a store behind it, would answer a repeated one."""
    async with running() as stub:
        await run(stub, Cell(2, 50, 1), waves=3)
        prompts = {tuple(one.json["prompt"]) for one in stub.of("/v1/completions")}
        assert len(prompts) == 6


async def test_chat_is_sent_with_the_exact_count() -> None:
    """Fitted through /tokenize, once for all waves, with the modern limit."""
    async with running() as stub:
        wave = await run(stub, Cell(4, 100, 2, CHAT), waves=2)
        assert {r.prompt_tokens for r in wave.results} == {100}
        sent = stub.of("/v1/chat/completions")
        assert len({one.json["messages"][0]["content"] for one in sent}) == 4
        assert {one.json["max_completion_tokens"] for one in sent} == {2}
        assert len({one.json["cache_salt"] for one in sent}) == 8
        assert len(stub.of("/tokenize")) < 16
        old = EngineFacts(model="t", request_fields={Endpoint.CHAT: frozenset({"max_tokens"})})
        await run(stub, Cell(1, 100, 2, CHAT), facts=old)
        assert stub.of("/v1/chat/completions")[-1].json["max_tokens"] == 2


async def test_a_chat_shorter_than_its_template_is_named_and_not_sent() -> None:
    """The sentence names the least; nothing goes to the engine."""
    async with running() as stub:
        wave = await run(stub, Cell(2, 9, 2, CHAT))
        assert [r.message for r in wave.results] == [
            "a chat prompt can't have 9 tokens: the template takes 9 by itself, "
            "so set prompt_tokens to 10 or more"
        ] * 2
        assert not stub.of("/v1/chat/completions")
        stub.handlers.pop("/tokenize")
        wave = await run(stub, Cell(1, 50, 2, CHAT))
        assert "/tokenize answered 404" in wave.results[0].message


async def test_engines_that_speculate_get_text_they_can_draft() -> None:
    """Random ids never have a draft accepted."""
    facts = EngineFacts(model="t", speculation=True, token_ids=FACTS.token_ids)
    async with running() as stub:
        await run(stub, Cell(1, 100, 1), facts=facts)
        assert stub.of("/v1/completions")[0].json["prompt"][-3:].count(5) == 1


async def test_a_ramp_ends_one_request_after_the_other() -> None:
    """Request i generates ramp tokens more than request i - 1."""
    async with running() as stub:
        wave = await run(stub, Cell(4, 10, 3, ramp=2), Gait.LED)
        assert [r.completion_tokens for r in wave.results] == [3, 5, 7, 9]


async def test_led_lets_the_lead_go_first() -> None:
    """The rest follows after the pace's delay, all together; the spread is the rest's."""
    async with running() as stub:
        wave = await run(stub, Cell(4, 10, 1), Gait.LED, Pace(rest_after_s=0.3))
    lead, *rest = (r.sent_s for r in wave.results)
    assert lead >= 0
    assert all(max(0.3, lead) <= sent for sent in rest)
    assert wave.spread_s == pytest.approx(max(rest) - min(rest))
    assert wave.plug is None


async def test_held_waits_behind_a_plug() -> None:
    """The plug goes before the release, is no result of the wave, and all else goes together."""
    async with running() as stub:
        pace = Pace(plug_tokens=300, wave_after_s=0.05)
        wave = await run(stub, Cell(3, 10, 1), pace=pace)
        plug = stub.of("/v1/completions")[0].json
    assert (len(plug["prompt"]), plug["max_tokens"]) == (300, 1)
    assert wave.plug is not None
    assert wave.plug.prompt_tokens == 300
    assert wave.plug.let_go_s is not None
    assert wave.plug.let_go_s <= -0.05
    assert len(wave.results) == 3
    assert all(r.sent_s >= 0 for r in wave.results)


async def test_bodies_wait_at_the_engine_for_their_last_bytes() -> None:
    """Before the gun everything but the end is there; a scrape comes between the two."""
    seen: list[int] = []
    async with running() as stub:
        good = stub.handlers["/metrics"]

        async def metrics(asked: Asked, writer: asyncio.StreamWriter) -> None:
            seen.append(len(stub.of("/v1/completions")))
            assert stub.connections >= 4
            await good(asked, writer)

        stub.handlers["/metrics"] = metrics
        await run(stub, Cell(3, 5000, 1))
    assert seen[0] == 0
    assert seen[-1] == 3


async def test_every_request_has_a_connection_of_its_own() -> None:
    """A shared pool would let them go one after the other."""
    async with running() as stub:
        await run(stub, Cell(8, 10, 1))
        assert stub.connections == 8 + 1  # and the client's, for /metrics


async def test_what_the_engine_counted_is_told_when_it_agrees() -> None:
    """vLLM counts a few milliseconds late: scraped until it agrees, others' requests included."""
    async with running() as stub:
        counting(stub, lag=2)
        wave = await run(stub, Cell(2, 10, 3))
        assert wave.counters is not None
        figures = wave.counters
        assert (figures.requests, figures.prompt_tokens, figures.generation_tokens) == (2, 20, 6)
        assert len(stub.of("/metrics")) == 1 + 2 + 1
    async with running() as stub:
        counting(stub, foreign=5)
        wave = await run(stub, Cell(2, 10, 3))
        assert wave.counters is not None
        assert wave.counters.requests == 7


async def test_counters_that_never_agree_are_waited_for_one_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then what is there is told; no /metrics at all gives None."""
    monkeypatch.undo()
    assert 0.5 < sum(replay_module._COUNTERS_WAITS_S) <= replay_module._COUNTERS_AGREE_S
    async with running() as stub:
        wave = await run(stub, Cell(1, 10, 1))
        assert wave.counters is not None
        assert wave.counters.requests == 0
        stub.handlers.pop("/metrics")
        assert (await run(stub, Cell(1, 10, 1))).counters is None


async def test_a_token_is_stamped_when_it_arrives() -> None:
    """The second token comes 0.4 s after the first."""

    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        first, *others = stream(asked)
        writer.write(STREAM_HEAD + chunk(first))
        await writer.drain()
        await asyncio.sleep(0.4)
        writer.write(b"".join(map(chunk, others)) + b"0\r\n\r\n")

    async with running({"/v1/completions": slow}) as stub:
        wave = await run(stub, Cell(1, 10, 2))
    [result] = wave.results
    assert result.ttft_s is not None
    assert wave.g_s is not None
    assert wave.g_s >= 0.39
    assert 0 <= result.ttft_s <= wave.took_s - wave.g_s


TOKEN = event({"choices": [{"text": "x", "finish_reason": None}]})
ERROR = {"error": {"message": "Token id 9 is out of vocabulary", "code": 400}}
TOO_LONG = {"error": {"message": "Input length (9) exceeds 8", "type": "x", "code": 400}}


@pytest.mark.parametrize(
    ("handler", "outcome", "status", "message"),
    [
        (answer(400, TOO_LONG), Outcome.HTTP_ERROR, 400, "Input length (9) exceeds 8"),
        (answer(401, {"error": "Unauthorized"}), Outcome.HTTP_ERROR, 401, "Unauthorized"),
        (answer(503, b"<html>"), Outcome.HTTP_ERROR, 503, "a body of application/json"),
        (answer(307, location="http://x/"), Outcome.HTTP_ERROR, 307, "a body of"),
        (streams(event(ERROR), event(b"[DONE]")), Outcome.STREAM_ERROR, 400, "out of vocabulary"),
        (streams(TOKEN, TOKEN), Outcome.BROKEN, 200, "after 2 events, before [DONE]"),
        (streams(TOKEN, end=False), Outcome.BROKEN, 200, "closed after 1 events, before [DONE]"),
        (streams(b"data: {nope\n\n"), Outcome.BROKEN, 200, "not JSON: '{nope'"),
        (streams(b"data: " + b"x" * (2 << 20)), Outcome.BROKEN, 200, "bytes of answer came back"),
        (answer(200, b"<html>", "text/html"), Outcome.BROKEN, 200, "200 with text/html"),
        (answer(200, {"choices": []}), Outcome.BROKEN, 200, "200 with application/json"),
    ],
    ids=[
        *("400", "401", "503", "redirect", "in-stream", "no-done", "cut", "garbage"),
        *("endless-line", "html", "json"),
    ],
)
async def test_a_request_that_fails_is_a_result(
    handler: Handler, outcome: Outcome, status: int, message: str
) -> None:
    """Status and one sentence, and nothing is sent a second time."""
    async with running({"/v1/completions": handler}) as stub:
        wave = await run(stub, Cell(2, 10, 2))
        assert len(stub.of("/v1/completions")) == 2
    for result in wave.results:
        assert (result.outcome, result.status) == (outcome, status)
        assert result.misread is (outcome is Outcome.BROKEN and "[DONE]" not in message)
        assert message in result.message
        assert "\n" not in result.message


async def test_no_http_and_no_answer_are_results_too() -> None:
    """Something that speaks another protocol, and a connection that is dropped."""

    async def ssh(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-x\r\n")

    async def drop(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def head(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000)

    for handler, message in ((ssh, "no HTTP"), (drop, "connection"), (head, "head of an answer")):
        async with running({"/v1/completions": handler}) as stub:
            [result] = (await run(stub, Cell(1, 10, 1))).results
            assert (result.outcome, result.status) == (Outcome.BROKEN, None)
            assert message in result.message


async def test_an_endless_stream_ends_at_its_bound() -> None:
    """Well-formed events for ever: given up when they exceed what the request could earn."""

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        while not writer.transport.is_closing():
            writer.write(chunk(TOKEN * 100))
            await writer.drain()

    async with running({"/v1/completions": endless}) as stub:
        [result] = (await run(stub, Cell(1, 10, 1))).results
    assert result.outcome is Outcome.BROKEN
    told = re.fullmatch(r"more than (\d+) bytes of answer came back", result.message)
    assert told is not None
    # 256 KiB, 8 KiB for its token, and four times the prompt, which may be repeated
    assert 270_336 < int(told[1]) < 271_000


async def test_a_request_has_a_limit_of_time() -> None:
    """The others of the wave are not disturbed."""

    async def one_hangs(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (hang if asked.headers["x-request-id"].endswith("-1") else generate)(asked, writer)

    async with running({"/v1/completions": one_hangs}) as stub:
        wave = await run(stub, Cell(3, 10, 1), timeout_s=2.0)
    outcomes = [r.outcome for r in wave.results]
    assert outcomes == [Outcome.OK, Outcome.TIMEOUT, Outcome.OK]
    assert wave.results[1].message == "no end of the answer within 2 s"
    assert wave.f_s is None


async def test_done_is_the_end_even_if_the_connection_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A proxy that keeps the stream open is not waited for."""

    async def open_ended(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + b"".join(map(chunk, stream(asked))))
        await writer.drain()
        await asked.reader.read()

    monkeypatch.setattr(wire_module, "_DONE_GRACE_S", 0.05)
    async with running({"/v1/completions": open_ended}) as stub:
        wave = await run(stub, Cell(2, 10, 2), timeout_s=60)
    assert [r.outcome for r in wave.results] == [Outcome.OK] * 2
    assert wave.took_s < 30


async def test_nobody_there_is_a_result_for_each_request() -> None:
    """The engine died between two waves."""
    async with running() as stub:
        pass
    wave = await run(stub, Cell(3, 10, 1))
    assert [r.outcome for r in wave.results] == [Outcome.BROKEN] * 3
    assert "no connection" in wave.results[0].message


async def test_an_answer_before_the_gun_is_kept() -> None:
    """vLLM refuses a wrong key at the headers, before the body has come."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await answer(401, {"error": "Unauthorized"})(Asked("", "", {}, b"", reader), writer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(early, "127.0.0.1", 0)
    stub = Stub(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
    wave = await run(stub, Cell(1, 5000, 1))
    server.close()
    await server.wait_closed()
    [result] = wave.results
    assert (result.outcome, result.status) == (Outcome.HTTP_ERROR, 401)


async def test_cancelling_a_wave_closes_its_connections() -> None:
    """SIGTERM: vLLM drops a request whose client goes away."""
    all_asked = asyncio.Event()

    async def fourth(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if len(stub.of("/v1/completions")) == 4:
            all_asked.set()
        await hang(asked, writer)

    async with running({"/v1/completions": fourth}) as stub:
        engine = Engine(stub.url)
        replay = Replay(engine, FACTS, FixedPacer(Pace()), "n")
        task = asyncio.create_task(replay.run([Look(Cell(4, 10, 1), Gait.HELD)]))
        async with asyncio.timeout(60):
            await all_asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await engine.aclose()
        async with asyncio.timeout(60):
            await stub.all_closed.wait()


async def test_an_engine_that_takes_no_body_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that accepts and reads nothing: the wave is given up with a sentence."""
    monkeypatch.setattr(replay_module, "_PREPARE_TIMEOUT_S", 0.3)
    release = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        await release.wait()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    stub = Stub(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
    wave = await run(stub, Cell(1, 1_000_000, 1))
    release.set()
    server.close()
    await server.wait_closed()
    assert "no connection or no body in time" in wave.results[0].message


async def test_a_wave_over_tls_with_a_key(certificate: tuple[Path, ssl.SSLContext]) -> None:
    """Large bodies too; the key goes along with every request."""
    cert, context = certificate
    async with running(tls=context) as stub:
        wave = await run(
            stub,
            Cell(3, 20_000, 2),
            pace=Pace(plug_tokens=1000, wave_after_s=0.01),
            tls_ca_file=str(cert),
            api_key="sekret",
        )
        assert [r.outcome for r in wave.results] == [Outcome.OK] * 3
        sent = stub.of("/v1/completions")
        assert {one.headers["authorization"] for one in sent} == {"bearer sekret"}


async def test_the_event_loop_breathes_while_long_prompts_are_made() -> None:
    """Probes are answered while 4 x 131,072 tokens are prepared; no tick is long, by the time that
    this process had a core, in whatever thread. The figure is benchmarks/wave.py's."""
    async with running() as stub:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                started = time.process_time()
                await asyncio.sleep(0)
                longest = max(longest, time.process_time() - started)

        engine = Engine(stub.url)
        replay = Replay(engine, FACTS, FixedPacer(Pace()), "n")
        watcher = asyncio.create_task(watch())
        requests = (await replay._bodies.wave(Cell(4, 131_072, 1), 1)).requests
        watcher.cancel()
        await engine.aclose()
    assert all(len(json.loads(request.body)["prompt"]) == 131_072 for request in requests)
    assert longest < 0.5


async def test_the_pacer_learns_from_every_wave() -> None:
    """What ran is fed to it, once."""
    async with running() as stub:
        engine = Engine(stub.url)
        pacer = FixedPacer(Pace())
        (wave,) = await Replay(engine, FACTS, pacer, "n").run([Look(Cell(1, 10, 1), Gait.LED)])
        await engine.aclose()
    assert pacer.fed == [wave]


async def test_a_wave_goes_to_every_rank_at_the_same_time() -> None:
    """Each with its rank in the header, the plug too, and judged by what its own rank counted."""
    looks = [Look(Cell(2, tokens, 3, rank=rank), Gait.HELD) for rank, tokens in ((0, 10), (1, 20))]
    async with running() as stub:
        both = asyncio.Event()

        async def together(asked: Asked, writer: asyncio.StreamWriter) -> None:
            """Nobody is answered before both ranks were asked."""
            ranks = {one.headers["x-data-parallel-rank"] for one in stub.of("/v1/completions")}
            if len(ranks) == 2:
                both.set()
            async with asyncio.timeout(60):
                await both.wait()
            await generate(asked, writer)

        async def metrics(asked: Asked, writer: asyncio.StreamWriter) -> None:
            done = stub.of("/v1/completions")
            lines = ""
            for rank in ("0", "1"):
                prompts = [
                    len(one.json["prompt"])
                    for one in done
                    if one.headers["x-data-parallel-rank"] == rank
                ]
                lines += f'vllm:prompt_tokens_total{{engine="{int(rank) + 4}"}} {sum(prompts)}\n'
            await answer(200, lines.encode(), "text/plain")(asked, writer)

        stub.handlers["/metrics"] = metrics
        stub.handlers["/v1/completions"] = together
        engine = Engine(stub.url)
        try:
            replay = Replay(engine, FACTS, FixedPacer(Pace(plug_tokens=30)), "n")
            waves = await replay.run(looks)
        finally:
            await engine.aclose()
        plugs = [one for one in stub.of("/v1/completions") if one.json["max_tokens"] == 1]
    assert [wave.look for wave in waves] == looks
    assert [[r.prompt_tokens for r in wave.results] for wave in waves] == [[10] * 2, [20] * 2]
    assert {one.headers["x-data-parallel-rank"] for one in plugs} == {"0", "1"}
    counted = [wave.counters.prompt_tokens for wave in waves if wave.counters is not None]
    assert counted == [30 + 2 * 10, 30 + 2 * 20]


async def test_a_wave_without_a_rank_sends_no_header() -> None:
    """Where there is no choice, the engine's own balancing stays."""
    async with running() as stub:
        await run(stub, Cell(1, 10, 1))
        [sent] = stub.of("/v1/completions")
    assert "x-data-parallel-rank" not in sent.headers


async def test_what_is_open_as_a_later_boot_begins_is_freed_once_it_ends() -> None:
    """An engine that starts anew for months costs no memory: a closed connection is garbage."""
    engine = Engine("http://127.0.0.1:9")

    class Connection:
        def __init__(self) -> None:
            self.on_data = self.close

        def close(self) -> None: ...

    try:
        Replay(engine, FACTS, FixedPacer(Pace()), "first boot")
        connection = Connection()
        freed = weakref.ref(connection)
        Replay(engine, FACTS, FixedPacer(Pace()), "second boot")
        del connection
        gc.collect()
        assert freed() is None
    finally:
        await engine.aclose()

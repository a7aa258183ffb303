"""A wave in virtual time: the simulated engine answers, and no clock runs."""

import random
from dataclasses import dataclass, field, replace

from benchmarks.draws import FEATURES, Case, Client, Traffic
from benchmarks.logged import VirtualLog
from sidecar.core.grid.cells import Cell, Gait, Look
from sidecar.core.judge.pacing import Pacer
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.wire.metrics import CounterDelta
from sidecar.simulator.engine import Counters, Emission, Engine, SimRequest

_LIMIT_S = 100_000.0


@dataclass(slots=True)
class _Stream:
    """What has come of one request, on the engine's clock."""

    index: int
    sent_s: float
    stamps: list[float] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    reason: str | None = None


class Outside:
    """Everybody else: sends their requests to the engine as time passes."""

    def __init__(self, traffic: Traffic | None, dice: random.Random) -> None:
        self._traffic = traffic
        self._dice = dice
        self._count = 0
        self._next_s = float("inf")
        if traffic is not None:
            self._next_s = dice.expovariate(traffic.rate)

    def play(self, engine: Engine, until_s: float | None, pending: set[str]) -> list[Emission]:
        """Advance to `until_s`, or until none of `pending` is left; emissions in order of time."""
        if self._traffic is None and until_s is None:
            return engine.run(_LIMIT_S + engine.now_s)
        out: list[Emission] = []
        limit_s = _LIMIT_S + engine.now_s if until_s is None else until_s
        left = set(pending)
        while (left or until_s is not None) and engine.now_s < limit_s:
            event_s = engine.next_event_s()
            at_s = min(event_s if event_s is not None else limit_s, self._next_s, limit_s)
            if at_s == self._next_s:
                self._submit(engine)
            for emission in engine.advance(at_s):
                out.append(emission)
                if emission.finished:
                    left.discard(emission.request_id)
        return out

    def _submit(self, engine: Engine) -> None:
        assert self._traffic is not None
        dice = self._dice
        self._count += 1
        tokens = int(4 * (self._traffic.longest / 4) ** dice.random())
        request = SimRequest(f"user-{self._count}", tokens, dice.randint(1, 60))
        engine.submit(request, self._next_s)
        self._next_s += dice.expovariate(self._traffic.rate)
        if self._next_s > self._traffic.until_s:
            self._next_s = float("inf")


class VirtualReplay:
    """Runs looks against an engine, as the real replay does, let go by the same Pacer."""

    def __init__(
        self, case: Case, engine: Engine, pacer: Pacer, log: VirtualLog | None = None
    ) -> None:
        self.case = case
        self.engine = engine
        self.pacer = pacer
        self.log = log
        self.outside = Outside(case.traffic, random.Random(f"outside {case.seed}"))
        self._dice = random.Random(f"replay {case.seed}")
        self._sent = 0
        self._broken = None if case.broken is None else case.shapes.cells[case.broken]

    def rest(self, wait_s: float) -> None:
        """Time passes without a wave."""
        self.outside.play(self.engine, self.engine.now_s + wait_s, set())

    def run(self, look: Look) -> WaveResult:
        """One wave. It is fed to the pacer too."""
        dice, client = self._dice, self.case.client
        self.rest(client.scrape_s / 2)
        fault = self._fault(look.cell)
        if fault is not None:
            return self._failed(look, *fault)
        pace = self.pacer.pace(look)
        if self.log is not None:
            self.log.begin(look, 0 if pace.plug_tokens is None else 1)
        before = _total(self.engine)
        start_s = self.engine.now_s
        streams: dict[str, _Stream] = {}
        release_s = start_s
        if pace.plug_tokens is not None:
            self._send(streams, -1, look.cell, pace.plug_tokens, 1, start_s)
            release_s = start_s + pace.wave_after_s + client.jitter_s * dice.random()
        at_s = release_s
        written: list[float] = []
        for index in range(look.cell.concurrency):
            if index == 1 and look.gait is Gait.LED:
                at_s += pace.rest_after_s + client.jitter_s * dice.random()
            tokens = look.cell.output_tokens_of(index)
            self._send(streams, index, look.cell, look.cell.prompt_tokens, tokens, at_s)
            written.append(at_s)
            at_s += client.body_s * (0.5 + dice.random())
        emissions = self.outside.play(self.engine, None, set(streams))
        _collect(streams, emissions, client, dice)
        wave = self._wave(look, streams, release_s, written, before, pace.plug_tokens)
        if self.log is not None:
            wave = replace(wave, log=self.log.end())
        self.rest(client.scrape_s / 2)
        self.pacer.feed(wave)
        return wave

    def _send(
        self,
        streams: dict[str, _Stream],
        index: int,
        cell: Cell,
        prompt_tokens: int,
        max_tokens: int,
        at_s: float,
    ) -> None:
        self._sent += 1
        id_ = f"ours-{self._sent}"
        streams[id_] = _Stream(index, at_s)
        way_s = self.case.client.jitter_s * self._dice.random() / 4
        self.engine.submit(
            request_of(self.case, cell, id_, prompt_tokens, max_tokens), at_s + way_s
        )

    def _wave(
        self,
        look: Look,
        streams: dict[str, _Stream],
        release_s: float,
        written: list[float],
        before: Counters,
        plug_tokens: int | None,
    ) -> WaveResult:
        ordered = sorted(streams.values(), key=lambda s: s.index)
        plug = None
        if plug_tokens is not None:
            plug = _result(ordered[0], release_s, plug_tokens)
            ordered = ordered[1:]
        results = tuple(_result(s, release_s, look.cell.prompt_tokens) for s in ordered)
        took_s = max((s.stamps[-1] for s in ordered if s.stamps), default=release_s) - release_s
        delta = _delta(before, _total(self.engine), bool(self.engine.config.draft_tokens))
        spread_s = written[-1] - written[0 if look.gait is Gait.HELD or len(written) < 2 else 1]
        return WaveResult(look, results, spread_s, took_s, release_s, plug, delta)

    # --- faults ---------------------------------------------------------------------------------

    def _fault(self, cell: Cell) -> tuple[int, str] | None:
        broken = self._broken
        if broken is not None and (broken.concurrency, broken.prompt_tokens) == (
            cell.concurrency,
            cell.prompt_tokens,
        ):
            return 500, "EngineCore encountered an issue"
        if self.case.refusals and self._dice.random() < self.case.refusals:
            return 503, "the queue is full"
        return None

    def _failed(self, look: Look, status: int, message: str) -> WaveResult:
        result = Result(Outcome.HTTP_ERROR, 0.0, status=status, message=message)
        return WaveResult(
            look, (result,) * look.cell.concurrency, 0.0, 0.01, self.engine.now_s, None, None
        )


def request_of(case: Case, cell: Cell, id_: str, prompt_tokens: int, max_tokens: int) -> SimRequest:
    return SimRequest(
        id_,
        prompt_tokens,
        max_tokens,
        features=FEATURES[cell.variant.name],
        rank=None,
        drafts_accepted=case.config.draft_tokens > 0,
    )


def _collect(
    streams: dict[str, _Stream], emissions: list[Emission], client: Client, dice: random.Random
) -> None:
    """Events as the client sees them: each on its way for a while, in order within a stream."""
    for emission in emissions:
        stream = streams.get(emission.request_id)
        if stream is None:
            continue
        at_s = emission.at_s + client.jitter_s * dice.random() / 4
        if stream.stamps and at_s <= stream.stamps[-1]:
            at_s = stream.stamps[-1] + 1e-6
        stream.stamps.append(at_s)
        stream.tokens += emission.tokens
        stream.cached += emission.cached_tokens
        stream.reason = emission.finish_reason


def _result(stream: _Stream, release_s: float, prompt_tokens: int) -> Result:
    if not stream.stamps:
        return Result(Outcome.TIMEOUT, stream.sent_s - release_s)
    return Result(
        Outcome.OK,
        stream.sent_s - release_s,
        tuple(s - release_s for s in stream.stamps),
        prompt_tokens,
        stream.tokens,
        stream.cached,
        stream.reason,
        200,
    )


def _total(engine: Engine) -> Counters:
    total = Counters()
    for counters in engine.counters:
        total = total + counters
    return total


def _delta(before: Counters, after: Counters, speculates: bool) -> CounterDelta:
    def since(name: str) -> float:
        return float(getattr(after, name) - getattr(before, name))

    return CounterDelta(
        requests=float(sum(after.success.values()) - sum(before.success.values())),
        prompt_tokens=since("prompt_tokens"),
        generation_tokens=since("generation_tokens"),
        computed_tokens=since("computed_tokens"),
        cached_tokens=since("prefix_hits"),
        preemptions=since("preemptions"),
        drafts=since("drafts") if speculates else None,
        draft_tokens=since("draft_tokens") if speculates else None,
        accepted_tokens=since("accepted_tokens") if speculates else None,
    )

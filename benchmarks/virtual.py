"""Waves in virtual time: the simulated engine answers, and no clock runs."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from benchmarks.draws import FEATURES, Case, Client
from benchmarks.logged import VirtualLog
from benchmarks.outside import Outside
from sidecar.core.grid.cells import Cell, Drafts, Gait, Look, Variant
from sidecar.core.judge.pacing import Pace, Pacer
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.wire.metrics import CounterDelta
from sidecar.simulator.bodies import features
from sidecar.simulator.engine import Counters, Emission, Engine, SimRequest

PREFIX_BLOCKS = 1 << 20
"""More than any prompt has: a salt has so many hashes of its own, and as many beyond its prefix."""


@dataclass(slots=True)
class _Stream:
    """What has come of one request, on the engine's clock."""

    index: int
    sent_s: float
    prompt_tokens: int
    is_streamed: bool
    stamps: list[float] = field(default_factory=list)
    tokens: int = 0
    cached: int = 0
    reason: str | None = None


@dataclass(slots=True)
class _Shot:
    """One wave on its way. In `streams`, by request id, the plug's index is -1."""

    look: Look
    pace: Pace
    salts: Sequence[int]
    """Of its requests, by index."""
    primes: tuple[Result, ...]
    before: Counters
    release_s: float
    streams: dict[str, _Stream] = field(default_factory=dict)
    written: list[float] = field(default_factory=list)
    awaited: set[str] = field(default_factory=set)
    """The arriving prompt is sent when each of these has its first token."""


class VirtualReplay:
    """Runs looks against an engine, as the real replay does, let go by the same Pacer."""

    def __init__(
        self,
        case: Case,
        engine: Engine,
        pacer: Pacer,
        log: VirtualLog | None = None,
        made: Callable[[Cell], Cell] = lambda cell: cell,
    ) -> None:
        """`made` is what its requests are made for: another cell only in a planted fault."""
        self._made = made
        self.case = case
        self.engine = engine
        self.pacer = pacer
        self.log = log
        self.outside = Outside(case.traffic, random.Random(f"outside {case.seed}"))
        self._dice = random.Random(f"replay {case.seed}")
        self._numbers = count(1)
        self._salts = count(1)
        self._broken = None if case.broken is None else case.shapes.cells[case.broken]

    def rest(self, wait_s: float) -> None:
        """Time passes without a wave."""
        self.outside.rest(self.engine, self.engine.now_s + wait_s)

    def run(self, looks: Sequence[Look]) -> tuple[WaveResult, ...]:
        """One wave of each look at the same time, on ranks of their own. Fed to the pacer too."""
        self.rest(self.case.client.scrape_s / 2)
        for look in looks:
            fault = self._fault(look.cell)
            if fault is not None:
                return tuple(self._failed(each, *fault) for each in looks)
        shots = [self._load(look) for look in looks]
        if self.log is not None:
            self.log.begin(looks, sum(shot.pace.plug_tokens is not None for shot in shots))
        start_s = self.engine.now_s
        for shot in shots:
            shot.before = _counted(self.engine, shot.look)
            self._let_go(shot, start_s)
        self._listen(shots)
        waves = [self._wave(shot) for shot in shots]
        if self.log is not None:
            heard = self.log.end()
            waves = [replace(w, log=heard.of_engine(self._label(w.look))) for w in waves]
        self.rest(self.case.client.scrape_s / 2)
        for wave in waves:
            self.pacer.feed(wave)
        return tuple(waves)

    def _load(self, look: Look) -> _Shot:
        cell = look.cell
        salts = [next(self._salts) for _ in range(cell.requests)]
        primed = salts[: cell.concurrency] if self._made(cell).prefix_tokens else []
        primes = tuple(self._prime(cell, salt) for salt in primed)
        return _Shot(look, self.pacer.pace(look), salts, primes, Counters(), self.engine.now_s)

    def _prime(self, cell: Cell, salt: int) -> Result:
        """Put the prefix of one request into the cache."""
        shot = _Shot(Look(cell, Gait.LED), Pace(), [salt], (), Counters(), self.engine.now_s)
        id_ = self._send(shot, 0, cell.prefix_tokens, 1, shot.release_s)
        self._listen([shot])
        return _result(shot.streams[id_], shot.release_s)

    def _let_go(self, shot: _Shot, start_s: float) -> None:
        dice, client = self._dice, self.case.client
        cell, gait, pace = shot.look.cell, shot.look.gait, shot.pace
        shot.release_s = start_s
        if pace.plug_tokens is not None:
            self._send(shot, -1, pace.plug_tokens, 1, start_s)
            shot.release_s += pace.wave_after_s + client.jitter_s * dice.random()
        at_s = shot.release_s
        for index in range(cell.concurrency):
            if index == 1 and gait is Gait.LED:
                at_s += pace.rest_after_s + client.jitter_s * dice.random()
            tokens = cell.output_tokens_of(index) + pace.more_tokens
            id_ = self._send(shot, index, cell.prompt_tokens, tokens, at_s)
            if gait is Gait.MIXED:
                shot.awaited.add(id_)
            shot.written.append(at_s)
            at_s += client.body_s * (0.5 + dice.random())

    def _arrive(self, shot: _Shot) -> str:
        """As soon as the client has seen the last first token."""
        cell = shot.look.cell
        firsts = [s.stamps[0] for s in shot.streams.values() if s.index >= 0]
        at_s = max(firsts) + self.case.client.jitter_s * self._dice.random() + 1e-6
        return self._send(shot, cell.concurrency, cell.arriving_tokens, 1, at_s)

    def _send(
        self,
        shot: _Shot,
        index: int,
        prompt_tokens: int,
        max_tokens: int,
        at_s: float,
    ) -> str:
        cell, blocks = self._made(shot.look.cell), None
        if index >= 0 and cell.prefix_tokens:
            blocks = blocks_of(self.case, shot.salts[index], prompt_tokens, cell.prefix_tokens)
        id_ = f"ours-{next(self._numbers)}"
        shot.streams[id_] = _Stream(index, at_s, prompt_tokens, cell.variant.is_streamed)
        way_s = self.case.client.jitter_s * self._dice.random() / 4
        request = request_of(self.case, cell, id_, prompt_tokens, max_tokens, blocks)
        self.engine.submit(request, at_s + way_s)
        return id_

    def _listen(self, shots: Sequence[_Shot]) -> None:
        """Until all of theirs has come."""
        of = {id_: shot for shot in shots for id_ in shot.streams}

        def heard(emission: Emission) -> set[str]:
            shot = of.get(emission.request_id)
            if shot is None:
                return set()
            _collect(shot.streams[emission.request_id], emission, self.case.client, self._dice)
            if emission.request_id not in shot.awaited:
                return set()
            shot.awaited.discard(emission.request_id)
            if shot.awaited:
                return set()
            arriving = self._arrive(shot)
            of[arriving] = shot
            return {arriving}

        answers = any(shot.awaited for shot in shots)
        self.outside.play(self.engine, set(of), heard, answers=answers)

    def _wave(self, shot: _Shot) -> WaveResult:
        look, release_s = shot.look, shot.release_s
        ordered = sorted(shot.streams.values(), key=lambda s: s.index)
        plug = None
        if shot.pace.plug_tokens is not None:
            plug = _result(ordered.pop(0), release_s)
        ends = [s.stamps[-1] for s in ordered if s.stamps]
        written = shot.written[1 if look.gait is Gait.LED and len(shot.written) > 1 else 0 :]
        speculates = bool(self.engine.config.draft_tokens)
        return WaveResult(
            look,
            tuple(_result(s, release_s) for s in ordered),
            written[-1] - written[0],
            max(ends, default=release_s) - release_s,
            release_s,
            plug,
            _delta(shot.before, _counted(self.engine, look), speculates),
            primes=shot.primes,
            more_tokens=shot.pace.more_tokens,
        )

    def _label(self, look: Look) -> str | None:
        return None if look.cell.rank is None else str(look.cell.rank)

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
            look, (result,) * look.cell.requests, 0.0, 0.01, self.engine.now_s, None, None
        )


def request_of(
    case: Case,
    cell: Cell,
    id_: str,
    prompt_tokens: int,
    max_tokens: int,
    blocks: tuple[int, ...] | None = None,
) -> SimRequest:
    """One request of a cell, or its plug, as the scheduler sees it."""
    accepted = cell.drafts is not Drafts.REJECTED
    return SimRequest(
        id_,
        prompt_tokens,
        max_tokens,
        blocks,
        features=features_of(cell.variant),
        rank=cell.rank,
        drafts_accepted=case.config.draft_tokens > 0 and accepted,
    )


def features_of(variant: Variant) -> frozenset[str]:
    """What its requests carry: by name, or as the simulated server reads its fields."""
    found = FEATURES.get(variant.name)
    return features(variant.fields) if found is None else found


def blocks_of(case: Case, salt: int, prompt_tokens: int, prefix_tokens: int) -> tuple[int, ...]:
    """Hashes of a prompt's whole blocks: those of its prefix are the same for the same salt."""
    size = case.config.block_size
    first, shared = 2 * salt * PREFIX_BLOCKS, prefix_tokens // size
    fresh = range(first + PREFIX_BLOCKS, first + PREFIX_BLOCKS + prompt_tokens // size - shared)
    return (*range(first, first + shared), *fresh)


def _collect(stream: _Stream, emission: Emission, client: Client, dice: random.Random) -> None:
    """As the client sees it: each event on its way for a while, in order within a stream."""
    at_s = emission.at_s + client.jitter_s * dice.random() / 4
    if stream.stamps and at_s <= stream.stamps[-1]:
        at_s = stream.stamps[-1] + 1e-6
    if not stream.is_streamed:
        stream.stamps.clear()  # it comes as a whole, when it has ended
    stream.stamps.append(at_s)
    stream.tokens += emission.tokens
    stream.cached += emission.cached_tokens
    stream.reason = emission.finish_reason


def _result(stream: _Stream, release_s: float) -> Result:
    if not stream.stamps:
        return Result(Outcome.TIMEOUT, stream.sent_s - release_s)
    return Result(
        Outcome.OK,
        stream.sent_s - release_s,
        tuple(s - release_s for s in stream.stamps),
        stream.prompt_tokens,
        stream.tokens,
        stream.cached,
        stream.reason,
        200,
    )


def _counted(engine: Engine, look: Look) -> Counters:
    """By the rank that is asked, or by all of them."""
    rank = look.cell.rank
    total = Counters()
    for counters in engine.counters if rank is None else engine.counters[rank : rank + 1]:
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

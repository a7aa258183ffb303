"""What a wave of a special cell has to show: a hit, an arrival, a decode batch."""

from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Converge, Gait, Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.calls import Call, Standing
from sidecar.core.judge.misses import Miss
from sidecar.core.judge.pacing import Pacer, WarmTtft
from sidecar.core.judge.shown import miss
from sidecar.core.judge.validity import examine
from sidecar.core.judge.verdict import Judge
from sidecar.core.logs.events import Step
from sidecar.core.logs.evidence import LogEvidence, summed
from sidecar.core.logs.head import Origin
from sidecar.core.logs.window import Completeness
from sidecar.core.results import Outcome, Result, WaveResult
from tests.core.waves import STEP_S, cell, counters, held, led, result

PLUG = 2048
HIT = cell(1, 1350, 9, prefix_tokens=992, least_hit=992)
MIXED = Cell(2, 16, 24, gaits=(Gait.MIXED,), arriving_tokens=5000)
GRAPH = Cell(4, 16, 9, gaits=(Gait.HELD,), captured=True)


def plan_of(*cells: Cell, **facts) -> Plan:
    learned = EngineFacts(**facts)
    return Plan(cells, plug_tokens=PLUG, batched_tokens_known=True, facts=learned)


def judge_of(*cells: Cell) -> Judge:
    plan = plan_of(*cells)
    return Judge(plan, plan.facts, Converge())


# --- prefix hits ---------------------------------------------------------------------------------


def hit(of: Cell = HIT, *, usage: int | None = 992, found: float | None = 992, **more):
    """A wave of one; `usage` is what its answer says was cached, `found` what was counted."""
    computed = None if found is None else of.wave_prompt_tokens - found
    delta = counters(of, cached_tokens=found, computed_tokens=computed)
    ran = led(of, delta=delta, **more)
    return replace(ran, results=tuple(replace(r, cached_tokens=usage) for r in ran.results))


def test_a_hit_is_valid_by_what_came_from_the_cache():
    """Exactly its whole blocks, said by the answer, by the counters, or by both."""
    for ran in (hit(), hit(usage=None), hit(found=None)):
        assert examine(ran).invalid_because == ()
        assert examine(ran).unknowable == ()
    assert examine(led(HIT)).invalid_because  # as any other cell's wave: nothing was found


@pytest.mark.parametrize(
    ("ran", "words"),
    [
        (hit(usage=None, found=0), "the prefix was not in the cache: none of its 992 tokens"),
        (hit(usage=0), "the prefix was not in the cache: none of its 992 tokens of a prompt"),
        (hit(usage=976), "976 tokens of a prompt came from the cache, and its prefix has 992"),
        (hit(usage=1008, found=1008), "1008 tokens of a prompt came from the cache"),
        (hit(usage=None, found=500), "500 tokens of the wave came from the cache"),
        (hit(found=2000), "2000 tokens of the wave came from the cache"),
    ],
)
def test_what_was_no_hit_proves_nothing(ran: WaveResult, words: str):
    """A wave whose prefix did not come from the cache, or not as declared, is invalid."""
    (because,) = examine(ran).invalid_because
    assert words in because


def test_one_answer_without_cached_tokens_was_no_hit():
    """vLLM leaves the figure out where it is 0: beside one that has it, that is a miss."""
    of = cell(2, 1350, 9, prefix_tokens=992, least_hit=992)
    ran = hit(of, found=None)
    results = (ran.results[0], replace(ran.results[1], cached_tokens=None))
    assert "the prefix was not in" in examine(replace(ran, results=results)).invalid_because[0]


def test_an_unknown_block_leaves_room():
    """Where the size of a block is not known, more than nothing and no more than the prefix."""
    of = replace(HIT, prefix_tokens=1000, least_hit=1)
    for found in (1, 992, 1000):
        assert examine(hit(of, usage=None, found=found)).invalid_because == ()
    for found in (0, 1001):
        assert examine(hit(of, usage=None, found=found)).invalid_because != ()


def test_a_hit_that_nobody_tells_of_is_unknown():
    """Neither usage nor counters: the wave is valid and proves no more than unknown."""
    checked = examine(hit(usage=None, found=None))
    assert checked.invalid_because == ()
    assert checked.unknowable == (
        "whether prompts came from a cache (no cache counters in /metrics)",
    )


def test_a_cell_of_hits_is_warm_by_hits_alone():
    """Two quiet waves that hit make it warm; waves that missed are told as what is lacking."""
    judge = judge_of(HIT)
    for _ in range(2):
        judge.feed(hit(usage=None, found=0))
    (told,) = judge.verdict().cells
    assert told.call is Call.NOT_YET
    assert "the prefix was not in the cache" in told.reasons[0]
    for _ in range(2):
        judge.feed(hit())
    assert judge.verdict().cells[0].call is Call.WARM


def test_what_a_prime_pays_may_have_made_others_cold():
    """It is in no figure of its wave: the others need a quiet wave after it all the same."""
    other = cell(1, 100, 9)
    judge = judge_of(HIT, other)
    prime = Result(Outcome.OK, 0.0, (0.05,), 992, 1, None, "length", 200)
    for ran in (hit(), hit(), hit()):
        judge.feed(replace(ran, primes=(prime,)))
    for _ in range(2):
        judge.feed(led(other))
    judge.feed(replace(hit(), primes=(prime,)))
    assert judge.verdict().call is Call.WARM
    judge.feed(replace(hit(), primes=(replace(prime, token_s=(3.0,)),)))
    assert {c.cell.id: bool(c.reasons) for c in judge.verdict().cells} == {
        HIT.id: True,
        other.id: True,
    }


def test_what_is_computed_counts_for_the_batch():
    """4 x 358 computed tokens share a step of 2,048, whatever their prefixes have; and the time of
    such a prompt tells nothing of one that computes all of its 1,350."""
    of = cell(4, 1350, 9, prefix_tokens=992, least_hit=992)
    plan = plan_of(of)
    assert miss(led(of), plan, 0.05) is None
    assert miss(led(replace(of, prefix_tokens=0)), plan, 0.05) is Miss.REST_SPLIT
    warm = WarmTtft(plan)
    warm.feed(hit(ttft_s=0.02))
    assert warm.of(cell(1, 1350)) is None
    assert warm.of(HIT) == pytest.approx(0.02)


def test_a_batch_of_hits_is_shown_by_the_log():
    """The engine's step lines have what it computed, and not what it found."""
    of = cell(2, 1350, 9, prefix_tokens=992, least_hit=992)
    steps = (step(1, 1, PLUG, 0), step(2, 2, 2 * 358, 0), step(3, 0, 0, 2))
    log = LogEvidence(Completeness.COMPLETE, steps=summed(steps))
    assert miss(replace(held(of, split=1), log=log), plan_of(of), None) is None
    log = LogEvidence(
        Completeness.COMPLETE,
        steps=summed((steps[0], step(2, 1, 358, 0), step(3, 1, 358, 1), step(4, 0, 0, 2))),
    )
    assert miss(replace(held(of), log=log), plan_of(of), None) is Miss.SPLIT


# --- mixed steps ---------------------------------------------------------------------------------


def mixed(
    of: Cell = MIXED,
    *,
    sent_s: float = 0.1,
    ttft_s: float = 0.1,
    cold_s: float = 0.0,
    gap_s: float = 0.0,
    split: int = 0,
    more_tokens: int = 0,
    **more,
) -> WaveResult:
    """Those that decode as a held wave, first tokens at 30 ms behind the plug's 10, and one that
    arrives. `cold_s` delays those that decode, `gap_s` stalls them and the one that arrives."""
    asked = replace(of, arriving_tokens=0, output_tokens=of.output_tokens + more_tokens)
    ran = held(asked, plug_s=0.01, step_s=0.02, cold_s=cold_s, gap_s=gap_s, split=split)
    first_s = sent_s + ttft_s + gap_s
    arriving = Result(
        Outcome.OK, sent_s, (first_s,), of.arriving_tokens, 1, None, "length", 200, **more
    )
    generated = of.wave_output_tokens + of.concurrency * more_tokens
    delta = counters(of, PLUG if of.concurrency > 1 else None, generation_tokens=generated + 1)
    return replace(
        ran,
        look=Look(of, Gait.MIXED),
        results=(*ran.results, arriving),
        counters=delta,
        more_tokens=more_tokens,
    )


def test_a_mixed_wave_is_as_declared():
    """Its requests, lengths and counts, the arriving one's and the added tokens among them."""
    assert examine(mixed()).invalid_because == ()
    assert examine(mixed(more_tokens=32)).invalid_because == ()
    assert (
        "24 output tokens, not 56" in (examine(replace(mixed(), more_tokens=32)).invalid_because[0])
    )
    without = replace(mixed(), results=mixed().results[:-1])
    assert examine(without).invalid_because == ("2 of 3 requests ran",)


@pytest.mark.parametrize(
    ("ran", "missed"),
    [
        (mixed(), None),
        (mixed(sent_s=0.02), Miss.ARRIVED_EARLY),
        (mixed(ttft_s=0.3), Miss.OUTRUN),  # those that decode end after 30 + 23 x 10 ms
        (mixed(split=1), Miss.SPLIT),
        (mixed(replace(MIXED, concurrency=1)), None),
    ],
)
def test_a_mixed_step_is_shown_by_the_stamps(ran: WaveResult, missed: Miss | None):
    """The other was sent once all decoded, was computed while all still did, and those that decode
    began in one step."""
    assert miss(ran, plan_of(ran.look.cell), None) is missed


def step(number: int, requests: int, tokens: int, decoding: int) -> Step:
    return Step(Origin("APIServer", 1), 0, number, requests, tokens, decoding, decoding, 0.0)


STEPS = (
    step(1, 1, 2048, 0),  # the plug
    step(2, 2, 32, 0),
    step(3, 0, 0, 2),
    step(4, 1, 2046, 2),
    step(5, 1, 2046, 2),
    step(6, 1, 908, 2),
)


@pytest.mark.parametrize(
    ("steps", "missed"),
    [
        (STEPS, None),
        ((*STEPS[:5], replace(STEPS[5], generation_requests=1)), Miss.OUTRUN),
        ((STEPS[0], step(2, 1, 16, 0), step(3, 1, 16, 1), *STEPS[3:]), Miss.SPLIT),
        ((*STEPS[:3], step(4, 2, 5000, 2)), Miss.ARRIVED_EARLY),
    ],
)
def test_a_mixed_step_is_shown_by_the_log(steps: tuple[Step, ...], missed: Miss | None):
    """Iteration details tell it where a whole window has them: the stamps here say otherwise."""
    log = LogEvidence(Completeness.COMPLETE, steps=summed(steps))
    ran = replace(mixed(ttft_s=0.3), log=log)
    assert miss(ran, plan_of(MIXED), None) is missed


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ({"ttft_s": 3.0}, "took 3.000 s to the last first token, 0.100 s at best"),
        ({"gap_s": 3.0}, "stalled 3.010 s between two tokens|3.100 s to the last first token"),
        ({"cold_s": 3.0, "sent_s": 3.1}, "decode in its last wave took 3.020 s to their last"),
    ],
)
def test_whatever_a_mixed_wave_pays_is_loud(slow: dict, words: str):
    """The one that arrives, the others while it does, and the others before: none is unseen."""
    of = replace(MIXED, output_tokens=500)
    judge = judge_of(of)
    for ran in (mixed(of), mixed(of), mixed(of, **slow)):
        judge.feed(ran)
    (told,) = judge.verdict().cells
    assert told.standing is Standing.COLD
    assert any(word in told.reasons[0] for word in words.split("|")), told.reasons
    for _ in range(2):
        judge.feed(mixed(of))
    assert judge.verdict().call is Call.WARM


def test_f_of_a_mixed_wave_counts_from_its_own_release():
    """And G begins when the last of those that decode has its first token."""
    ran = mixed(sent_s=0.2, ttft_s=0.1)
    assert ran.f_s == pytest.approx(0.1)
    assert ran.g_s == pytest.approx(STEP_S)
    assert ran.all_decode_s == pytest.approx(0.03)
    stalled = mixed(sent_s=0.05, ttft_s=0.5, gap_s=1.0)  # the gap begins at 60 ms
    assert stalled.g_s == pytest.approx(1.0 + STEP_S)


def test_those_that_decode_are_given_more_tokens_until_they_outlast_it():
    """Twice as many after each wave that was outrun, as far as the engine takes."""
    look = Look(MIXED, Gait.MIXED)
    pacer = Pacer(plan_of(MIXED, max_model_len=300, kv_cache_tokens=100_000))
    assert pacer.pace(look).plug_tokens == PLUG
    seen = []
    for _ in range(5):
        seen.append(pacer.pace(look).more_tokens)
        pacer.feed(mixed(ttft_s=9.0))
    assert seen == [0, 16, 32, 64, 128]
    for _ in range(3):
        pacer.feed(mixed(ttft_s=9.0))
    assert pacer.pace(look).more_tokens == 300 - 16 - 24


def test_a_mixed_wave_of_one_needs_no_plug():
    """One request that decodes shares its first step with nobody."""
    of = replace(MIXED, concurrency=1)
    assert Pacer(plan_of(of)).pace(Look(of, Gait.MIXED)).plug_tokens is None


# --- decode batches ------------------------------------------------------------------------------


def test_a_decode_batch_is_shown_however_it_came_together():
    """A split prefill is no matter, as long as all decode together for some steps."""
    plan = plan_of(GRAPH)
    assert miss(held(GRAPH, split=2), plan, 0.001) is None
    assert miss(held(replace(GRAPH, captured=False), split=2), plan, 0.001) is Miss.SPLIT
    ran = held(GRAPH)
    late = result(ran.results[0].token_s[-1] - 1.5 * STEP_S, cell=GRAPH)
    apart = replace(ran, results=(*ran.results[:-1], late))
    assert miss(apart, plan, 0.001) is Miss.NO_OVERLAP


def test_a_decode_batch_is_shown_by_the_log():
    """A step in which all of them decoded, and no matter which steps took their prompts."""
    steps = (step(1, 1, PLUG, 0), step(2, 3, 48, 0), step(3, 1, 16, 3), step(4, 0, 0, 4))
    log = LogEvidence(Completeness.COMPLETE, steps=summed(steps))
    assert miss(replace(held(GRAPH), log=log), plan_of(GRAPH), None) is None
    log = LogEvidence(Completeness.COMPLETE, steps=summed(steps[:-1]))
    assert miss(replace(held(GRAPH), log=log), plan_of(GRAPH), None) is Miss.NO_OVERLAP


def test_a_decode_batch_that_never_was_is_given_more_tokens():
    """Requests that ended before the last had begun get more to decode."""
    look, pacer = Look(GRAPH, Gait.HELD), Pacer(plan_of(GRAPH))
    ran = held(GRAPH)
    late = result(ran.results[0].token_s[-1] + 1, cell=GRAPH)
    pacer.feed(replace(ran, results=(*ran.results[:-1], late)))
    assert pacer.pace(look).more_tokens == 16

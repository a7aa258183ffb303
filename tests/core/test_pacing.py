"""When the parts of a wave are let go (R3)."""

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Gait, Look
from sidecar.core.grid.plan import Plan
from sidecar.core.judge.pacing import Pacer
from sidecar.core.judge.shown import Miss, miss, packing
from sidecar.core.results import Outcome, Result
from tests.core.waves import STEP_S, cell, held, led, result, wave

FOUR = cell(4, 100)
FACTS = EngineFacts(max_model_len=20_000, kv_cache_tokens=40_000)
PLAN = Plan((FOUR, cell(1, 100)), plug_tokens=2048, batched_tokens_known=True, facts=FACTS)
HELD, LED = Look(FOUR, Gait.HELD), Look(FOUR, Gait.LED)


def test_wave_of_one_needs_no_pace():
    """A wave of one goes at once, without plug and without rest."""
    pace = Pacer(PLAN).pace(Look(cell(1), Gait.LED))
    assert (pace.plug_tokens, pace.rest_after_s, pace.wave_after_s) == (None, 0.0, 0.0)


def test_rest_aims_into_the_first_step():
    """The rest is let go within the lead's warm time to first token, sooner for long prompts."""
    pacer = Pacer(PLAN)
    pacer.feed(led(FOUR, ttft_s=0.16))
    long = cell(4, 8192)
    pacer.feed(led(cell(1, 8192), ttft_s=0.16))
    pacer.feed(led(cell(4, 9000), ttft_s=40.0))
    assert pacer.pace(LED).rest_after_s == pytest.approx(0.04)
    assert pacer.pace(Look(long, Gait.LED)).rest_after_s == pytest.approx(0.01)
    assert (
        pacer.pace(Look(cell(4, 9000), Gait.LED)).rest_after_s == 0.05
    )  # cold: no need to wait on


def test_a_length_seen_cold_is_not_taken_at_its_word():
    """A longer prompt takes no less, and a plug's chunks tell what a step of B tokens takes."""
    pacer = Pacer(PLAN)
    pacer.feed(led(FOUR, ttft_s=9.0))
    assert pacer.pace(LED).rest_after_s == 0.05
    pacer.feed(led(cell(1, 500), ttft_s=0.08))
    assert pacer.pace(LED).rest_after_s == pytest.approx(0.02)
    pacer.feed(held(FOUR, plug_s=0.03))  # sent 10 ms before the release: 40 ms a chunk
    assert pacer.pace(LED).rest_after_s == pytest.approx(0.01)
    assert pacer.pace(Look(cell(4, 9000), Gait.LED)).rest_after_s == pytest.approx(0.01)


def test_rest_that_missed_the_first_chunk_is_late():
    """The rest of a lead of several chunks must come before the first ends, not only the last."""
    long = cell(2, 4096)
    ran = led(long, ttft_s=0.1)  # the rest is sent after 5 ms
    plan = Plan((long,), batched_tokens_known=True)
    assert miss(ran, plan, 0.008) is Miss.REST_LATE
    assert miss(ran, plan, 0.012) is not Miss.REST_LATE


def test_plug_outlasts_twice_the_spread():
    """The plug has as many whole chunks as last longer than twice the measured spread."""
    pacer = Pacer(PLAN)
    assert pacer.pace(HELD).plug_tokens == 2048
    slow = held(FOUR, plug_s=0.05)
    pacer.feed(wave(FOUR, Gait.HELD, slow.results, plug=slow.plug, spread_s=0.1))
    assert pacer.pace(HELD).plug_tokens == 4 * 2048  # 60 ms a chunk, 200 ms needed


def test_plug_doubles_until_shown_and_stops_at_what_fits():
    """A held wave that was not shown doubles the plug, up to the longest prompt that fits."""
    pacer = Pacer(PLAN)
    lengths = []
    for _ in range(6):
        lengths.append(pacer.pace(HELD).plug_tokens // 2048)
        pacer.feed(held(FOUR, split=1))
    assert lengths == [1, 2, 4, 8, 9, 9]


def test_plug_of_a_small_engine_is_one_step():
    """Where no whole chunk fits max_model_len, the plug stays the prompt that the plan names."""
    small = Plan(
        (FOUR,),
        plug_tokens=1023,
        batched_tokens_known=True,
        facts=EngineFacts(max_model_len=1024),
    )
    pacer = Pacer(small)
    pacer.feed(held(FOUR, split=1, plug_tokens=1023))
    assert pacer.pace(HELD).plug_tokens == 1023


def test_plug_for_an_unknown_b_is_a_power_of_two():
    """Where B is not known, the plug is whole chunks of every power of two that B may be."""
    pacer = Pacer(Plan((FOUR,), plug_tokens=2047, facts=EngineFacts(max_model_len=2048)))
    assert pacer.pace(HELD).plug_tokens == 1024


def test_plug_leaves_the_kv_cache_to_the_wave():
    """Plug and wave fit the KV cache together."""
    pacer = Pacer(
        Plan(
            (FOUR,),
            plug_tokens=2048,
            facts=EngineFacts(max_model_len=20_000, kv_cache_tokens=5_000),
        )
    )
    for _ in range(3):
        pacer.feed(held(FOUR, split=1))
    assert pacer.pace(HELD).plug_tokens == 2 * 2048


@pytest.mark.parametrize(
    ("ran", "expected"),
    [
        (led(cell(1)), None),
        (held(FOUR), None),
        (held(FOUR, split=1), Miss.SPLIT),
        (held(FOUR, plug_s=0.0005), Miss.PLUG_GONE),
        (held(FOUR, step_s=0.0, plug_tokens=1000), Miss.PLUG_SHARED),
        (led(FOUR), None),
        (led(FOUR, firsts=[0.05, 0.05, 0.06, 0.06]), Miss.LEAD_NOT_ALONE),
        (led(FOUR, firsts=[0.05, 0.06, 0.06, 0.07]), Miss.REST_SPLIT),
        (led(FOUR, firsts=[0.05, 0.07, 0.07, 0.07]), None),
        (led(FOUR, firsts=[0.004, 0.014, 0.014, 0.014]), Miss.REST_LATE),
        (led(FOUR, firsts=[0.05, 0.06, 0.06, 0.5]), Miss.NO_OVERLAP),
    ],
)
def test_streams_tell_the_steps(ran, expected):
    """Which requests shared a step is told from the order of first and second tokens."""
    assert miss(ran, PLAN, None) is expected


def test_first_tokens_must_come_within_half_the_warm_ttft():
    """What the streams allow, the warm time of one such prompt may still contradict (R3)."""
    slow_to_send = held(FOUR, split=0)
    firsts = [0.23, 0.23, 0.23, 0.234]
    results = [result(f, cell=FOUR, sent_s=0.001) for f in firsts]
    ran = wave(FOUR, Gait.HELD, results, plug=slow_to_send.plug)
    assert miss(ran, PLAN, None) is None
    assert miss(ran, PLAN, 0.02) is None
    assert miss(ran, PLAN, 0.006) is Miss.SPLIT


def test_grouped_events_leave_the_bound_on_first_tokens():
    """Where events stand for several steps, half the warm TTFT decides, and nothing without it."""
    results = [
        result(0.1 + 0.02 * i, cell=FOUR, token_s=(0.1 + 0.02 * i, 0.3, 0.4)) for i in range(4)
    ]
    plug = held(FOUR, plug_s=0.05).plug
    ran = wave(FOUR, Gait.HELD, results, plug=plug)
    assert miss(ran, PLAN, 0.2) is None
    assert miss(ran, PLAN, 0.1) is Miss.SPLIT
    assert miss(ran, PLAN, None) is Miss.SPLIT


def test_packing_is_first_come_first_served():
    """The rest is packed into steps of B tokens, decodes first, chunks where a prompt won't fit."""
    assert packing(4, 100, 2048, 1) == [1, 1, 1]
    assert packing(4, 1000, 2048, 1) == [1, 1, 2]
    assert packing(3, 3000, 2048, 1) == [1, 3]
    assert packing(3, 100, 1, 1) == []  # decodes alone fill the step: nothing more is admitted


def test_rest_above_b_is_shown_by_its_packing():
    """Where the rest can't share a step, the lead's stream must count the steps of one queue."""
    big = cell(4, 1000)
    plan = Plan((big,), batched_tokens_known=True)
    at = [0.05 + STEP_S * n for n in (0, 1, 1, 2)]
    assert miss(led(big, firsts=at), plan, None) is None
    assert miss(led(big, firsts=[0.05, 0.06, 0.07, 0.08]), plan, None) is Miss.REST_SPLIT
    unknown = Plan((big,))
    assert miss(led(big, firsts=at), unknown, None) is Miss.B_UNKNOWN
    assert miss(led(big), unknown, None) is None  # all in one step: then it fits


def test_rest_is_let_go_sooner_or_later_as_the_lead_shows():
    """A rest that came late or apart is let go sooner next time; one that met the lead, later."""
    pacer = Pacer(PLAN)
    pacer.feed(led(FOUR, ttft_s=0.1))
    pacer.feed(led(FOUR, firsts=[0.1, 0.11, 0.11, 0.12]))
    assert pacer.pace(LED).rest_after_s == pytest.approx(0.0125)
    for _ in range(2):
        pacer.feed(led(FOUR, firsts=[0.1, 0.1, 0.11, 0.11]))
    assert pacer.pace(LED).rest_after_s == pytest.approx(0.0125 * 1.6**2)


def test_the_pacer_learns_nothing_from_failures():
    """A wave in which a request failed moves nothing."""
    pacer = Pacer(PLAN)
    broken = Result(Outcome.BROKEN, 0.0)
    pacer.feed(wave(FOUR, Gait.HELD, [broken] * 4, spread_s=9.0))
    assert pacer.pace(HELD).plug_tokens == 2048


def test_without_a_plug_a_held_wave_is_let_go_at_once():
    """Where no plug fits, a wave goes without, and is not shown."""
    plan = Plan((FOUR,))
    assert Pacer(plan).pace(HELD).plug_tokens is None
    assert miss(wave(FOUR, Gait.HELD, held(FOUR).results), plan, None) is Miss.PLUG_GONE


def test_grouped_led_events_leave_first_tokens_only():
    """With grouped events a led wave is shown by its first tokens, the lead's before the rest's."""

    def grouped(*firsts):
        results = [
            result(f, cell=FOUR, sent_s=0.0 if not i else 0.005, token_s=(f, 0.5, 0.6))
            for i, f in enumerate(firsts)
        ]
        return wave(FOUR, Gait.LED, results)

    assert miss(grouped(0.1, 0.2, 0.2, 0.21), PLAN, 0.1) is None
    assert miss(grouped(0.1, 0.2, 0.2, 0.28), PLAN, 0.1) is Miss.REST_SPLIT
    assert miss(grouped(0.1, 0.1, 0.2, 0.2), PLAN, 0.1) is Miss.LEAD_NOT_ALONE
    unfinished = wave(FOUR, Gait.LED, [Result(Outcome.TIMEOUT, 0.0)] * 4)
    assert miss(unfinished, PLAN, 0.1) is Miss.UNFINISHED

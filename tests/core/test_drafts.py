"""Cells that declare what becomes of an engine's drafts: their form, their fit, their proof."""

from dataclasses import replace

import pytest

from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Converge, Drafts, Role
from sidecar.core.grid.plan import Plan, expand
from sidecar.core.grid.shapes import parse
from sidecar.core.judge.validity import examine
from sidecar.core.judge.verdict import Call, CellVerdict, Judge, Standing
from sidecar.core.results import WaveResult
from tests.core.waves import cell, counters, held, led

SPECULATING = EngineFacts(speculation=True, draft_tokens=2)
ACCEPTED, REJECTED = (cell(1, drafts=text) for text in Drafts)
FOUR = cell(4, drafts=Drafts.REJECTED)


def shapes(text: str) -> list[tuple[str, Drafts | None]]:
    return [(c.id, c.drafts) for c in parse(text, "f.yaml").cells]


def judged(of: Cell, *waves: WaveResult) -> CellVerdict:
    judge = Judge(Plan((of,), plug_tokens=2048), SPECULATING, Converge())
    for wave in waves:
        judge.feed(wave)
    return next(c for c in judge.verdict().cells if c.cell == of)


def test_a_grid_and_a_cell_declare_their_texts() -> None:
    """One cell for each text; without any, one that leaves it to the engine."""
    assert shapes(
        "grid: {concurrency: [1], prompt_tokens: [64], drafts: [rejected, accepted]}"
    ) == [
        ("completions-c1-p64-o16-rejected", Drafts.REJECTED),
        ("completions-c1-p64-o16-accepted", Drafts.ACCEPTED),
    ]
    assert shapes("cells: [{prompt_tokens: 9, drafts: [accepted]}, {prompt_tokens: 9}]") == [
        ("completions-c1-p9-o16-accepted", Drafts.ACCEPTED),
        ("completions-c1-p9-o16", None),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cells: [{prompt_tokens: 9, drafts: [accepted, accepted]}]", 'accepted" twice'),
        ("cells: [{prompt_tokens: 9, drafts: [accepting]}]", "'accepted' or 'rejected'"),
        ("cells: [{prompt_tokens: 9, drafts: accepted}]", "drafts: must be a list"),
        ("cells:\n- {prompt_tokens: 9, output_tokens: 1, drafts: [rejected]}", "output_tokens"),
        (
            "grid: {concurrency: [1], prompt_tokens: [9], output_tokens: [1], drafts: [rejected]}",
            "output_tokens to 2 or more",
        ),
    ],
)
def test_wrong_drafts_get_one_sentence(text: str, says: str) -> None:
    """Twice the same, another word, no list, nothing to decode."""
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.yaml")
    assert says in str(caught.value)
    assert str(caught.value).startswith("f.yaml:")


@pytest.mark.parametrize(("skip", "refused"), [("fail", True), ("skip", False)])
def test_an_engine_without_speculation_is_unfit(skip: str, refused: bool) -> None:
    """The cell is named with the flag; `on_unfit` says whether that is a failure."""
    text = (
        f"cells: [{{prompt_tokens: 9}}, {{prompt_tokens: 9, drafts: [accepted]}}]\non_unfit: {skip}"
    )
    plan = expand(
        parse(text, "f.yaml"),
        EngineFacts(speculation=False, draft_tokens=0, sources={"speculation": "/metrics"}),
    )
    (unfit,) = plan.unfit
    assert unfit.cell.drafts is Drafts.ACCEPTED
    assert "started without speculation (from /metrics)" in unfit.reason
    assert "--speculative-config" in unfit.remedy
    assert bool(plan.refusal) is refused
    assert [c.drafts for c in plan.cells] == [None]


def test_where_speculation_is_not_known_the_cell_is_sent() -> None:
    """Its counters will tell."""
    shapes = parse("cells: [{prompt_tokens: 9, drafts: [rejected]}]", "f.yaml")
    assert not expand(shapes, EngineFacts()).unfit


@pytest.mark.parametrize(
    ("of", "drafts", "drafted", "accepted", "says"),
    [
        (ACCEPTED, 4, 8, 5, None),
        (ACCEPTED, 4, 8, 0, "no draft was accepted, and the cell is one of accepted drafts (8 "),
        (ACCEPTED, 0, 0, 0, "(0 tokens were drafted)"),
        (REJECTED, 8, 16, 0, None),
        (REJECTED, 0, 0, 0, None),
        (REJECTED, 100, 200, 10, None),
        (
            REJECTED,
            100,
            200,
            11,
            "11 drafted tokens were accepted, and the cell is one of rejected",
        ),
        (cell(1), 8, 16, 16, None),
    ],
)
def test_counters_say_whether_drafts_are_what_is_declared(
    of: Cell, drafts: float, drafted: float, accepted: float, says: str | None
) -> None:
    """Accepted: at least one was. Rejected: one in twenty at most was. Else the wave is invalid."""
    delta = counters(of, drafts=drafts, draft_tokens=drafted, accepted_tokens=accepted)
    invalid = examine(led(of, delta=delta)).invalid_because
    assert bool(invalid) is (says is not None)
    assert says is None or says in invalid[0]


def test_without_the_counters_it_can_t_be_known() -> None:
    """Declared drafts on a page without spec_decode families are unknowable, not invalid."""
    checked = examine(led(REJECTED))
    assert not checked.invalid_because
    assert "whether drafts were rejected" in checked.unknowable[0]


def test_rejected_drafts_can_be_proven_for_several_requests() -> None:
    """With none accepted each wave decodes in the same steps, so two quiet ones tell."""
    none = {"drafts": 32, "draft_tokens": 64, "accepted_tokens": 0}
    waves = []
    for _ in range(2):
        waves.append(held(FOUR, delta=counters(FOUR, 2048, **none)))
        waves.append(led(FOUR, delta=counters(FOUR, **none)))
    assert judged(FOUR, *waves, waves[0]).call is Call.WARM


@pytest.mark.parametrize(
    "second",
    [
        {"drafts": 32, "draft_tokens": 64, "accepted_tokens": 1},
        {"drafts": 31, "draft_tokens": 62, "accepted_tokens": 0},
    ],
)
def test_a_wave_that_decoded_otherwise_leaves_it_unknown(second: dict[str, float]) -> None:
    """One draft accepted, or another number of them made: the next may meet another batch."""
    first = {"drafts": 32, "draft_tokens": 64, "accepted_tokens": 0}
    waves = [
        each
        for some in (first, first, second)
        for each in (
            held(FOUR, delta=counters(FOUR, 2048, **some)),
            led(FOUR, delta=counters(FOUR, **some)),
        )
    ]
    verdict = judged(FOUR, *waves)
    assert (verdict.call, verdict.standing) == (Call.UNKNOWN, Standing.UNPROVEN)
    assert "differ in the drafts that were made or accepted" in verdict.reasons[0]


def test_chance_drafts_prove_nothing_for_several_requests() -> None:
    """A few drafts in each wave, as n-gram lookup makes for random text, stand at other places in
    the next."""
    some = {"drafts": 3, "draft_tokens": 6, "accepted_tokens": 0}
    waves = []
    for _ in range(3):
        waves.append(held(FOUR, delta=counters(FOUR, 2048, **some)))
        waves.append(led(FOUR, delta=counters(FOUR, **some)))
    assert judged(FOUR, *waves).call is Call.UNKNOWN


def test_rejected_drafts_of_one_request_are_proven_by_quiet_waves() -> None:
    """Alone there is nobody to decode with: no draft need be accepted, nor made."""
    delta = counters(REJECTED, drafts=0, draft_tokens=0, accepted_tokens=0)
    assert (
        judged(REJECTED, led(REJECTED, delta=delta), led(REJECTED, delta=delta)).call is Call.WARM
    )
    assert replace(REJECTED, role=Role.HEAVIEST).id.endswith("-heaviest-rejected")


def test_waves_that_show_no_batch_say_nothing_of_drafts() -> None:
    """What can't be known of them is their batch."""
    none = {"drafts": 32, "draft_tokens": 64, "accepted_tokens": 0}
    wave = held(FOUR, split=1, delta=counters(FOUR, 2048, **none))
    reasons = " ".join(judged(FOUR, *[wave] * 6).reasons)
    assert "batch not shown" in reasons
    assert "drafts" not in reasons

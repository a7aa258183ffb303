"""The report: its table, its text, and that JSON brings it back as it was."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Endpoint, Gait, Look, Role, Variant
from sidecar.core.grid.plan import Unfit
from sidecar.core.judge.calls import CellLog
from sidecar.core.judge.verdict import (
    Call,
    CellVerdict,
    GaitFigures,
    GridVerdict,
    Judged,
    Kernel,
    Opening,
    Standing,
)
from sidecar.core.logs.evidence import Hearing
from sidecar.core.report import Report, from_json, rows, to_json, to_text
from sidecar.core.results import Outcome, Result, WaveResult
from sidecar.core.tally import Totals, WaveOutcome, WaveRow, row_of
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.escapes import Escape

CHAT = Variant("thinking", Endpoint.CHAT, {"chat_template_kwargs": {"thinking": True}})
COLD = Cell(4, 350, 16, CHAT, gaits=(Gait.LED, Gait.HELD))
FIRST = Cell(1, 4096, 1, role=Role.HIGH_WATER)


def figures(gait, first, baseline, last, *, waves=3, first_g=0.01):
    return GaitFigures(
        gait=gait,
        waves=waves,
        valid=waves,
        first_f_s=first,
        baseline_f_s=baseline,
        last_f_s=last,
        first_g_s=first_g,
        baseline_g_s=0.01,
        last_g_s=0.01,
        last_is_loud=False,
    )


VERDICT = GridVerdict(
    call=Call.NOT_YET,
    cells=(
        CellVerdict(
            FIRST,
            Call.PASSED,
            Standing.DONE,
            (),
            None,
            (figures(Gait.LED, 2.0, 2.0, 2.0, waves=1),),
        ),
        CellVerdict(
            COLD,
            Call.NOT_YET,
            Standing.COLD,
            ("held: its last wave was cold",),
            0.1,
            (
                figures(Gait.LED, 3.5, 0.4, 0.41),
                figures(Gait.HELD, 0.5, 0.5, 0.5, first_g=7.01),
            ),
        ),
    ),
    reasons=("1 of 2 cells is cold",),
    resolution_s=0.1,
)

KERNELS = (Kernel("Triton", "moe", 2, 3.1), Kernel("Triton", "topk", 1, None))

REPORT = Report(
    sidecar_version="0.1.0",
    url="http://vllm:8000",
    facts=EngineFacts(
        version="0.33.0",
        models=("tiny", "other"),
        model="tiny",
        max_model_len=8192,
        request_fields={Endpoint.CHAT: frozenset({"messages", "stream"})},
        sources={"max_model_len": "/v1/models"},
    ),
    boot=BootMark(process_start_s=1_700_000_000.5, requests=17.0, models=("tiny",)),
    began=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ended=datetime(2026, 1, 2, 3, 5, 5, 500_000, tzinfo=UTC),
    nonce="ab12cd34",
    verdict=VERDICT,
    opening=Opening(open=False, proven=False, reasons=("thinking is cold",)),
    unfit=(Unfit(Cell(64, 8000, 16), "concurrency is above max_num_seqs 8", "--max-num-seqs 64"),),
    totals=Totals(
        waves={WaveOutcome.VALID: 7},
        requests={Outcome.OK: 25},
        prompt_tokens=9001,
        output_tokens=42,
    ),
    waves=(
        WaveRow(
            COLD.id, Gait.HELD, 1_700_000_001.0, WaveOutcome.VALID, (), True, 0.5, 0.1, 1, 0, 4
        ),
    ),
    warnings=("max_num_seqs is not known",),
)


def test_fields_come_in_the_same_order_in_every_report():
    """Two reports of the same engine can be compared line by line."""
    names = frozenset(f"field_{i}" for i in range(50))
    report = replace(REPORT, facts=replace(REPORT.facts, request_fields={Endpoint.CHAT: names}))
    (told,) = json.loads(to_json(report))["facts"]["request_fields"].values()
    assert told == sorted(names)


def test_json_brings_the_report_back_as_it_was():
    """What is written is what is read, to the last field."""
    assert from_json(to_json(REPORT)) == REPORT
    assert from_json(to_json(REPORT, indent=2).encode()) == REPORT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the top"),
        ("[]", "the top"),
        ("{", "the top"),
        ('{"sidecar_version": 3}', "sidecar_version"),
        (to_json(replace(REPORT, format=2)), "format 2"),
    ],
)
def test_a_text_that_is_no_report_is_said_in_a_sentence(text, said):
    """Garbage, another document or a later format: one ConfigError that says where."""
    with pytest.raises(ConfigError, match=said):
        from_json(text)


@pytest.mark.parametrize("moment", ["1e20", "-1.0", "NaN"])
def test_a_moment_that_no_calendar_has_is_damage(moment):
    """It is said where the report is read, and nothing stumbles over it later."""
    escape = Escape(123456789.0, "file:///a", "Triton", "", "k", "", None)
    text = to_json(replace(REPORT, escapes=(escape,)))
    assert from_json(text).escapes == (escape,)
    with pytest.raises(ConfigError, match=r"at escapes.0.at"):
        from_json(text.replace("123456789.0", moment))


def test_the_table_tells_what_the_first_wave_cost():
    """Cost is the worse of F's and G's excess; a wave alone has nothing to be compared with."""
    first, led, held = rows(VERDICT)
    assert first.cost_s is None
    assert led.cost_s == pytest.approx(3.1)
    assert held.cost_s == pytest.approx(7.0)


def test_a_gait_without_waves_has_no_figures_in_the_table():
    """What wasn't measured is a dash, never a zero."""
    empty = replace(figures(Gait.LED, None, None, None, waves=0), first_g_s=None, last_g_s=None)
    cell = replace(VERDICT.cells[1], figures=(empty,))
    (row,) = rows(replace(VERDICT, cells=(cell,)))
    assert row.cost_s is None
    text = to_text(replace(REPORT, verdict=replace(VERDICT, cells=(cell,))))
    line = next(line for line in text.splitlines() if line.startswith(COLD.id) and "led" in line)
    assert "0.0" not in line
    assert line.count("-") >= 5


def test_the_text_has_what_a_person_asks_for():
    """Verdict, gate, cells that are short, what does not fit, the window and the totals."""
    text = to_text(REPORT)
    for said in (
        "tiny on vLLM 0.33.0 at http://vllm:8000",
        "not_yet",
        "gate shut",
        "thinking is cold",
        f"{COLD.id}: not_yet: held: its last wave was cold",
        "--max-num-seqs 64",
        "25 requests in 7 waves, 9001 prompt tokens, 42 output tokens",
        "warmup-ab12cd34-",
        "from 2026-01-02 03:04:05 to 2026-01-02 03:05:05 UTC (60.5 s)",
    ):
        assert said in text, said
    assert all(len(line) == len(line.rstrip()) for line in text.splitlines())


def test_an_open_gate_says_whether_it_is_proven():
    """Open with proof and open without are not the same words."""
    opened = replace(REPORT, opening=Opening(open=True, proven=True, reasons=()))
    assert "gate open, proven" in to_text(opened)
    unproven = replace(REPORT, opening=Opening(open=True, proven=False, reasons=("unproven",)))
    assert "gate open, NOT proven" in to_text(unproven)


def test_json_holds_no_surprise_for_scripts():
    """The fields that scripts read are where they were."""
    body = json.loads(to_json(REPORT))
    assert body["verdict"]["call"] == "not_yet"
    assert body["opening"]["open"] is False
    assert body["totals"]["prompt_tokens"] == 9001
    assert body["began"] == "2026-01-02T03:04:05Z"
    assert body["verdict"]["cells"][1]["figures"][0]["first_f_s"] == 3.5


LED = Look(Cell(2, 100, 4), Gait.LED)


def judged(results, look=LED, **kind):
    wave = WaveResult(look, tuple(results), 0.0, 1.0, 0.0, plug=kind.pop("plug", None))
    valid = {"valid": True, "invalid_because": (), "shown": True, "foreign": False, "failed": None}
    return Judged(wave=wave, **{**valid, **kind})


def result(outcome=Outcome.OK, prompt=100, output=4, tokens=2):
    return Result(
        outcome,
        0.0,
        tuple(0.1 * i for i in range(tokens)),
        prompt_tokens=prompt,
        completion_tokens=output,
    )


def test_totals_count_every_request_that_was_sent():
    """Plugs are requests too; of a stream that broke, what had surely been computed counts."""
    plug = result(prompt=2048, output=1)
    broken = result(Outcome.BROKEN, prompt=None, output=None, tokens=3)
    unheard = result(Outcome.TIMEOUT, prompt=None, output=None, tokens=0)
    totals = Totals().with_wave(judged([result(), result()], plug=plug))
    totals = totals.with_wave(judged([broken, unheard], failed="cut off", valid=False))
    mixed = Look(Cell(1, 100, 4, arriving_tokens=700), Gait.MIXED)
    totals = totals.with_wave(judged([broken, broken], mixed, failed="cut off", valid=False))
    totals = totals.with_cancelled().with_boot().with_passes(2)
    assert totals == Totals(
        boots=1,
        passes=2,
        waves={WaveOutcome.VALID: 1, WaveOutcome.FAILED: 2, WaveOutcome.CANCELLED: 1},
        requests={Outcome.OK: 3, Outcome.BROKEN: 3, Outcome.TIMEOUT: 1},
        prompt_tokens=100 + 100 + 2048 + 100 + 100 + 700,
        output_tokens=4 + 4 + 1 + 3 + 3 + 3,
    )


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ({}, WaveOutcome.VALID),
        ({"valid": False, "invalid_because": ("preempted",)}, WaveOutcome.INVALID),
        ({"valid": False, "foreign": True}, WaveOutcome.FOREIGN),
        ({"valid": False, "foreign": True, "failed": "500"}, WaveOutcome.FAILED),
    ],
)
def test_a_wave_has_the_worst_word_that_holds(kind, word):
    """Failed before foreign before invalid."""
    row = row_of(judged([result()], **kind), at=5.0)
    assert (row.outcome, row.at, row.requests) == (word, 5.0, 1)
    assert set(row.because) == {
        *kind.get("invalid_because", ()),
        *filter(None, [kind.get("failed")]),
    }


def test_what_compiled_stands_in_the_text_and_comes_back_from_json():
    """By cell, with the seconds; and how far the log carries the verdict."""
    cell = replace(VERDICT.cells[1], kernels=KERNELS, compile_s=3.1)
    log = CellLog(Hearing.SOME_RANKS, "1 of 2 ranks seen")
    verdict = replace(
        VERDICT, cells=(VERDICT.cells[0], cell), log=log, evidence="log+latency+metrics"
    )
    report = replace(REPORT, verdict=verdict)
    text = to_text(report)
    assert "log: 1 of 2 ranks seen" in text
    assert f"{COLD.id} (3.100): moe (Triton) x 2, topk (Triton)" in text
    assert from_json(to_json(report)) == report

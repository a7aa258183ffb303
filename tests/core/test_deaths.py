"""Cells that an engine died on."""

from dataclasses import replace

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Cell, Gait, Role
from sidecar.core.grid.plan import Plan
from sidecar.core.logs.events import Complaint, Trouble
from sidecar.core.logs.head import Origin
from sidecar.core.logs.items import Ended
from sidecar.core.watch.boot import BootMark
from sidecar.core.watch.deaths import (
    MAX_DEATHS,
    Cause,
    Death,
    InFlight,
    cause_of,
    death_of,
    deaths_from_json,
    deaths_to_json,
    held,
    is_death,
    told,
    wave_from_json,
    wave_to_json,
    without,
)

CELLS = (Cell(8, 4096, 16), Cell(1, 64, 2))
FIRST = Cell(1, 8191, 1, role=Role.HIGH_WATER)
PLAN = Plan(cells=CELLS, first=FIRST, heaviest=None, facts=EngineFacts(model="tiny"))
WAVE = InFlight(
    cell=CELLS[0].id,
    gait=Gait.HELD,
    at=1_700_000_000.0,
    boot=BootMark(process_start_s=5.0, requests=3.0),
    url="http://vllm:8000",
    model="tiny",
    version="0.33.0",
)
DEATH = death_of(replace(WAVE, cause=Cause.OUT_OF_MEMORY))


def trouble(complaint):
    return Trouble(Origin(), complaint, "…")


def ended(code, *, oom=False):
    return Ended(1.0, "abc", "exit", exit_code=code, oom_killed=oom)


def test_the_same_boot_did_not_die_whatever_happened_to_the_sidecar():
    """Kill -9 of the sidecar alone in the middle of a wave blames no cell."""
    still = BootMark(process_start_s=5.0, requests=9.0)
    assert not is_death(WAVE, still)
    assert not is_death(replace(WAVE, lost=True), still)


def test_another_boot_after_a_wave_in_flight_is_a_death():
    """Seen by a sidecar that lived, or found in the folder by the next one."""
    other = BootMark(process_start_s=6.0)
    assert is_death(WAVE, other)
    assert is_death(replace(WAVE, lost=True), other)
    assert not is_death(replace(WAVE, cause=Cause.STOPPED), other), "ended in order"


def test_boots_that_can_not_be_told_apart_count_only_where_the_end_was_seen():
    """Without a start time and counters the word of a sidecar that lived decides."""
    untold = replace(WAVE, boot=BootMark())
    assert not is_death(untold, BootMark())
    assert is_death(replace(untold, lost=True), BootMark())


@pytest.mark.parametrize(
    ("signs", "says_dead", "failure", "cause"),
    [
        ((), False, "", Cause.UNKNOWN),
        ((), True, "", Cause.ENGINE_DEAD),
        ((trouble(Complaint.ENGINE_DEAD), trouble(Complaint.OUT_OF_MEMORY)), True, "", "oom"),
        ((trouble(Complaint.STEP_TIMEOUT), trouble(Complaint.ENGINE_DEAD)), True, "", "timeout"),
        ((trouble(Complaint.STALLED),), False, "", Cause.UNKNOWN),
        ((ended(137),), False, "", Cause.KILLED),
        ((ended(137, oom=True),), False, "", "oom"),
        ((ended(0),), False, "", Cause.STOPPED),
        ((ended(143),), False, "", Cause.STOPPED),
        ((ended(0),), True, "", Cause.ENGINE_DEAD),
        ((ended(0), trouble(Complaint.OUT_OF_MEMORY)), False, "", "oom"),
        ((ended(1),), False, "", Cause.UNKNOWN),
        ((trouble(Complaint.STOPPING), trouble(Complaint.ENGINE_DEAD)), True, "", Cause.STOPPED),
        ((trouble(Complaint.OUT_OF_MEMORY), trouble(Complaint.STOPPING)), False, "", "oom"),
        ((ended(None),), False, "", Cause.UNKNOWN),
        ((), False, "c: its request got HTTP 500 (CUDA out of memory)", "oom"),
    ],
)
def test_the_most_telling_sign_is_the_cause(signs, says_dead, failure, cause):
    """A server that ended in order is no death; one that said that it is dead is, whatever code."""
    wanted = {"oom": Cause.OUT_OF_MEMORY, "timeout": Cause.STEP_TIMEOUT}.get(cause, cause)
    assert cause_of(signs, says_dead=says_dead, failure=failure) is wanted


def test_what_is_held_back_is_not_in_the_plan_and_the_rest_is():
    """Also the first prompt; each cell once, by its last death."""
    first = replace(DEATH, cell=FIRST.id)
    older = replace(DEATH, cause=Cause.UNKNOWN)
    found = held((older, DEATH, first, replace(DEATH, cell="not-in-this-plan")), PLAN)
    assert found == (DEATH, first)
    plan = without(PLAN, found)
    assert (plan.cells, plan.first) == ((CELLS[1],), None)


def test_another_models_death_holds_nothing_back():
    """An unknown name, then or now, is no other model."""
    assert held((replace(DEATH, model="other"),), PLAN) == ()
    assert held((replace(DEATH, model=None),), PLAN)
    assert held((DEATH,), replace(PLAN, facts=EngineFacts()))


@pytest.mark.parametrize(
    ("cause", "flag"),
    [
        (Cause.OUT_OF_MEMORY, "--gpu-memory-utilization"),
        (Cause.STEP_TIMEOUT, "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"),
        (Cause.KILLED, "memory"),
        (Cause.UNKNOWN, "--max-num-batched-tokens"),
        (Cause.UNKNOWN, "(cause not known: no log was read that tells it)"),
    ],
)
def test_the_operator_is_told_what_to_change(cause, flag):
    """The cell, when, what was said of it, the flag, and how to go on."""
    sentence = told(replace(DEATH, cause=cause))
    assert sentence.startswith("completions-c8-p4096-o16 is held back")
    assert "2023-11-14 22:13:20 UTC" in sentence
    assert flag in sentence
    assert "vllm-warmup state clear" in sentence


def test_both_files_are_read_as_they_were_written():
    """And what is damaged is a ValueError, never half a memory."""
    assert wave_from_json(wave_to_json(WAVE)) == WAVE
    assert deaths_from_json(deaths_to_json((DEATH, DEATH))) == (DEATH, DEATH)
    many = tuple(replace(DEATH, at=float(i)) for i in range(MAX_DEATHS + 5))
    kept: tuple[Death, ...] = deaths_from_json(deaths_to_json(many))
    assert (len(kept), kept[-1].at) == (MAX_DEATHS, MAX_DEATHS + 4)
    for text in ("", "{}", '{"cell": 1}', "[1]"):
        with pytest.raises(ValueError, match=r"^at (the top|cell|gait): \w"):
            wave_from_json(text)
    with pytest.raises(ValueError, match=r"^at 0.gait: \w"):
        deaths_from_json('[{"cell": "a"}]')
    for moment in ("1e20", "-1.0", "NaN"):
        text = deaths_to_json((replace(DEATH, at=1e9),)).replace("1000000000.0", moment)
        with pytest.raises(ValueError, match="at"):
            deaths_from_json(text)  # it could not be shown

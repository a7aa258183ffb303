"""R2 for variants: a constraint was in force, and every choice was counted."""

from dataclasses import replace
from typing import Any

import pytest

from sidecar.core.grid.cells import Endpoint, Variant
from sidecar.core.grid.readymade import CONSTRAINTS
from sidecar.core.judge.unruly import unruly
from sidecar.core.judge.validity import examine
from tests.core.waves import cell, counters, led, result

NAMED = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array"}}}


def said(text: str, *, thought: bool = False, **fields: Any) -> str | None:
    """What is wrong with an answer that begins with `text`."""
    one = result(0.1, cell=cell(), begins=text, thought=thought)
    return unruly(one, Variant("v", Endpoint.CHAT, fields))


OBEYED = [
    ({"structured_outputs": CONSTRAINTS["json"]}, ' \n {"ste', "plain text"),
    ({"structured_outputs": CONSTRAINTS["regex"]}, "00132", " and 42"),
    ({"structured_outputs": CONSTRAINTS["choice"]}, "0 1 2 3", "1 2"),
    ({"structured_outputs": CONSTRAINTS["grammar"]}, " norm is\n", "Norm"),
    ({"structured_outputs": {"json_object": True}}, "{", "["),
    ({"structured_outputs": {"json": '{"type": "string"}'}}, ' "x', "x"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "no and so on", "maybe"),
    ({"response_format": {"type": "json_object"}}, "{", "Sure! {"),
    ({"response_format": SCHEMA}, "[", "{"),
]


@pytest.mark.parametrize(("fields", "good", "bad"), OBEYED)
def test_an_answer_shows_whether_it_was_constrained(
    fields: dict[str, Any], good: str, bad: str
) -> None:
    """One that can't begin so was not, and the sentence says what to change."""
    assert said(good, **fields) is None
    assert "endpoint: chat with thinking off" in str(said(bad, **fields))
    assert said("  ", **fields) is None


@pytest.mark.parametrize(
    "fields",
    [{"structured_outputs": {"regex": "a+"}}, {"tool_choice": NAMED}, {"tool_choice": "required"}],
)
def test_nothing_is_constrained_while_it_thinks(fields: dict[str, Any]) -> None:
    """Whatever the constraint: a wave is over before the thought is."""
    assert "switch thinking off" in str(said("", thought=True, **fields))
    assert said("whatever", **fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {"structural_tag": "{}"}},
        {"structured_outputs": {"json": "no schema"}},
    ],
)
def test_what_can_t_be_told_is_not_held_against_it(fields: dict[str, Any]) -> None:
    """Free answers, and constraints whose first characters nobody knows."""
    assert said("anything", **fields) is None


def test_a_wave_without_its_constraint_is_invalid() -> None:
    """It left the kernel cold that its cell is for."""
    fields = {"structured_outputs": CONSTRAINTS["regex"]}
    wave = led(cell(variant=Variant("v", Endpoint.CHAT, fields)))
    assert examine(wave).invalid_because == ()
    free = replace(wave, results=tuple(replace(r, begins="Well") for r in wave.results))
    assert "not constrained" in examine(free).invalid_because[0]


FOUR = cell(prompt_tokens=700, output_tokens=5, variant=Variant("n", fields={"n": 4}))
SHARED = {"requests": 4, "prompt_tokens": 2800, "generation_tokens": 20}


def four(**delta: Any) -> tuple[str, ...]:
    """What is wrong with a wave of one request for four choices."""
    wave = led(FOUR, delta=counters(FOUR, **{**SHARED, **delta}))
    one = replace(wave.results[0], completion_tokens=20, choices=4)
    return examine(replace(wave, results=(one,))).invalid_because


def test_the_choices_of_a_request_share_its_prompt() -> None:
    """The engine counts each as a request; what the others find in the cache is no fault, as long
    as one of them was computed whole (figures of vLLM 0.32: 1,920 of 2,800 tokens were found)."""
    assert four(computed_tokens=880, cached_tokens=1920) == ()
    assert four(computed_tokens=2800, cached_tokens=0) == ()
    assert four(computed_tokens=640, cached_tokens=2160) == (
        "only 640 of 700 tokens were computed",
    )


def test_a_choice_that_lacks_is_missed() -> None:
    """In the counters and in usage."""
    assert four(requests=3, computed_tokens=880) == ("the engine counted 3 requests of 4",)
    wave = led(FOUR, delta=counters(FOUR, **SHARED))
    few = replace(wave.results[0], completion_tokens=15, choices=4)
    assert (
        "usage says 15 output tokens, not 20"
        in examine(replace(wave, results=(few,))).invalid_because
    )

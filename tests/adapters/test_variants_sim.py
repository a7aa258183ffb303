"""Every kind of variant as a wave against the simulated engine: valid, and counted to the token."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import get_args

import pytest

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.plan import expand
from sidecar.core.grid.profiles import Profile
from sidecar.core.grid.readymade import Constraint, Sampling
from sidecar.core.grid.shapes import parse
from sidecar.core.judge.validity import examine
from tests.adapters.test_replay_sim import FAST, Bench, bench

TOOLS = "tools: [{type: function, function: {name: look, parameters: {type: object}}}]"
DIRECT = "chat_template_kwargs: {enable_thinking: false}"
VARIANTS = [
    *(f"{{sampling: {name}}}" for name in get_args(Sampling)),
    *(f"{{structured_outputs: {name}}}" for name in get_args(Constraint)),
    *(f"{{endpoint: chat, structured_outputs: {name}, {DIRECT}}}" for name in get_args(Constraint)),
    "{logprobs: 5}",
    "{endpoint: chat, logprobs: 0}",
    "{endpoint: chat, logprobs: 20, sampling: n}",
    "{prompt_logprobs: 1}",
    "{endpoint: chat, prompt_logprobs: 0, n: 2, temperature: 1.0}",
    "{response_format: {type: json_object}}",
    "{endpoint: chat, response_format: {type: json_schema, json_schema: {name: x, schema: "
    f"{{type: object}}}}}}, {DIRECT}}}",
    f"{{endpoint: chat, {TOOLS}, tool_choice: none}}",
    f"{{endpoint: chat, {TOOLS}, tool_choice: required, {DIRECT}}}",
    "{endpoint: chat, reasoning_effort: none, include_reasoning: true}",
    "{endpoint: chat, thinking_token_budget: 4}",
    f"{{endpoint: chat, {DIRECT}}}",
]


@pytest.fixture(scope="module")
async def on() -> AsyncIterator[Bench]:
    async with bench() as here:
        yield here


@pytest.mark.parametrize("variant", VARIANTS)
async def test_a_wave_of_each_variant_is_valid(on: Bench, variant: str) -> None:
    """It is listed by the engine, planned, sent, answered and counted as its cell says."""
    text = f"variants: {{v: {variant}}}\ncells: [{{prompt_tokens: 350, variant: v}}]\n"
    plan = expand(parse(text, "f.yaml"), on.facts)
    assert plan.refusal is None
    (cell,) = plan.cells
    wave = await on.run(cell)
    assert examine(wave).invalid_because == ()
    assert wave.counters is not None
    assert wave.counters.requests == cell.variant.choices
    assert wave.f_s is not None


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("{structured_outputs: regex}", "endpoint: chat with thinking off"),
        ("{endpoint: chat, structured_outputs: json}", "switch thinking off"),
        (f"{{endpoint: chat, structured_outputs: json, {DIRECT}}}", None),
        ("{endpoint: chat}", None),
    ],
)
async def test_a_constraint_that_waits_for_a_thought_is_not_proved(
    variant: str, says: str | None
) -> None:
    """With a reasoning parser nothing is constrained before it ends: the wave is invalid."""
    text = f"variants: {{v: {variant}}}\ncells: [{{prompt_tokens: 350, variant: v}}]\n"
    async with bench(replace(FAST, is_reasoning=True)) as here:
        wave = await here.run(expand(parse(text, "f.yaml"), here.facts).cells[0])
    invalid = examine(wave).invalid_because
    assert (says in " ".join(invalid)) if says else invalid == ()


@pytest.mark.parametrize("name", get_args(Profile))
async def test_a_profile_s_cells_run(on: Bench, name: Profile) -> None:
    """One wave of each cell of one request that fits: all are valid."""
    plan = expand(parse(f"profiles: [{name}]\n", "f.yaml"), on.facts)
    assert plan.refusal is None
    alone = [cell for cell in plan.cells if cell.requests == 1]
    assert len(alone) >= 3
    for cell in alone:
        assert examine(await on.run(cell)).invalid_because == (), cell.id


def misfit(variant: str, listed: frozenset[str]) -> str:
    """The refusal of a variant by an engine whose /openapi.json lists these fields."""
    text = f"variants: {{v: {variant}}}\ncells: [{{prompt_tokens: 350, variant: v}}]\n"
    shapes = parse(text, "f.yaml")
    endpoint = shapes.cells[0].variant.endpoint
    return str(expand(shapes, EngineFacts(request_fields={endpoint: listed})).refusal)


async def test_what_an_engine_does_not_list_is_refused(on: Bench) -> None:
    """A field, an inner field and a word: with the nearest, or with all words."""
    fields = on.facts.request_fields or {}
    listed = next(names for endpoint, names in fields.items() if endpoint == "chat")
    chat = "{endpoint: chat, "
    assert "None" in misfit(chat + "reasoning_effort: max}", listed)
    old = listed - {"reasoning_effort=max", "thinking_token_budget", "structured_outputs.regex"}
    assert 'sets "reasoning_effort: max"' in misfit(chat + "reasoning_effort: max}", old)
    assert "; use high, low, medium, minimal, none, xhigh" in misfit(
        chat + "reasoning_effort: max}", old
    )
    assert 'sets "structured_outputs.regex"' in misfit(chat + "structured_outputs: regex}", old)
    assert 'sets "thinking_token_budget"' in misfit(chat + "thinking_token_budget: 3}", old)

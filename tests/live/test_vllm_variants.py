"""Variants on a real server: each is valid to the token, and what starts cold by one is proved.

The compile cache is empty at each start (it lies in TMPDIR, which is a new folder): the helper that
ranks logprobs is compiled at its first use, by g++, for seconds and without a line in the log.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from sidecar.core.grid.readymade import Constraint, Sampling
from tests.live.sidecar import Done, vllm_warmup
from tests.live.user import ttft_s
from tests.live.vllm import Installation, VllmServer

COLD_S = 3.0
"""The first request with logprobs took 9 to 15 s with an empty cache, a warm one 0.03 s."""

# One request at a time, a second of tolerance: the machine may be busy, and the cold cost is ten.
PLAIN = """
converge: {floor_s: 1.0}
grid: {concurrency: [1], prompt_tokens: [64, 350], output_tokens: [8]}
"""
WITH_LOGPROBS = f"""{PLAIN}
variants:
  scored: {{logprobs: 1}}
cells:
- {{prompt_tokens: 64, output_tokens: 8, variant: scored}}
"""
PARSERS = (
    *("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes"),
    "--enable-auto-tool-choice",
)
TOOL = (
    "{function: {name: look, description: Looks., parameters: {type: object, "
    "properties: {place: {type: string, minLength: 3000}}, required: [place]}}}"
)
WAITING = """
variants:
  v: {structured_outputs: regex}
  w: {endpoint: chat, structured_outputs: json}
cells:
- {prompt_tokens: 64, output_tokens: 4, variant: v}
- {prompt_tokens: 64, output_tokens: 4, variant: w}
"""
DIRECT = "chat_template_kwargs: {enable_thinking: false}"


@pytest.fixture(scope="module")
def cold_vllm(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """A fresh server, nothing compiled."""
    folder = tmp_path_factory.mktemp("variants")
    with VllmServer(vllm_installation, folder, flags=("--enable-prompt-tokens-details",)) as server:
        yield server


def once(server: VllmServer, folder: Path, shapes: str) -> Done:
    """One whole warm-up, with its report as JSON."""
    path = folder / "shapes.yaml"
    path.write_text(shapes)
    return vllm_warmup(
        *("once", "--json", "--engine-url", server.url, "--shapes", str(path)), limit_s=500
    )


def by_variant(report: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The verdict's cells of the grid."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in report["verdict"]["cells"]:
        if cell["cell"]["role"] == "grid":
            found.setdefault(cell["cell"]["variant"]["name"], []).append(cell)
    return found


def cold_s(cell: Mapping[str, Any]) -> float:
    """What its first wave paid above the baseline."""
    return max(f["first_f_s"] - f["baseline_f_s"] for f in cell["figures"])


def test_logprobs_are_cold_on_a_warm_server_until_they_are_declared(
    cold_vllm: VllmServer, tmp_path: Path
) -> None:
    """A warm-up without them is warm and leaves them cold; the report of the next, which declares
    them, shows what that was, and proves that it is gone; then a user with logprobs waits for
    nothing."""
    first = once(cold_vllm, tmp_path, PLAIN)
    assert first.code == 0, first.err
    assert {c["call"] for c in by_variant(first.json)["completions"]} == {"warm"}

    second = once(cold_vllm, tmp_path, WITH_LOGPROBS)
    assert second.code == 0, second.err
    cells = by_variant(second.json)
    (scored,) = cells["scored"]
    assert scored["call"] == "warm"
    assert cold_s(scored) > COLD_S
    assert all(cold_s(plain) < COLD_S for plain in cells["completions"])

    assert ttft_s(cold_vllm.url, 64, logprobs=1) < COLD_S


def all_warm(server: VllmServer, folder: Path, variants: Mapping[str, str], tokens: int) -> None:
    """Warm one cell of each variant; each must be proved, and its last waves valid."""
    lines = [f"  {name}: {fields}" for name, fields in variants.items()]
    cells = [
        f"- {{prompt_tokens: {tokens}, output_tokens: 8, variant: {name}}}" for name in variants
    ]
    text = "\n".join(
        [
            "converge: {floor_s: 1.0}",
            "variants:",
            *lines,
            "cells:",
            *cells,
            "budget: {total_s: 300}",
        ]
    )
    done = once(server, folder, text)
    assert done.code == 0, done.err
    calls = {
        name: (cell["call"], cell["reasons"])
        for name, cells in by_variant(done.json).items()
        for cell in cells
    }
    assert calls == dict.fromkeys(variants, ("warm", []))


def test_every_way_to_sample_is_valid_and_proved(cold_vllm: VllmServer, tmp_path: Path) -> None:
    """Prompts longer than a block, so that the choices of `n` share theirs through the cache."""
    ways = {f"s-{name}".replace("_", "-"): f"{{sampling: {name}}}" for name in get_args(Sampling)}
    scored = {
        "scored-5": "{endpoint: chat, logprobs: 5}",
        "scored-prompt": "{prompt_logprobs: 1}",
        "scored-n": "{sampling: n, logprobs: 2}",
    }
    all_warm(cold_vllm, tmp_path, ways | scored, 400)


def test_constraints_are_proved(cold_vllm: VllmServer, tmp_path: Path) -> None:
    """Each ready-made one, and a response_format, at the endpoint that users ask."""
    ready = {
        f"{endpoint}-{name}": f"{{endpoint: {endpoint}, structured_outputs: {name}}}"
        for name in get_args(Constraint)
        for endpoint in ("completions", "chat")
    }
    schema = "{type: json_schema, json_schema: {name: x, schema: {type: object}}}"
    all_warm(
        cold_vllm,
        tmp_path,
        ready | {"form": f"{{endpoint: chat, response_format: {schema}}}"},
        350,
    )


def test_controls_of_thinking_and_tools(vllm_installation: Installation, tmp_path: Path) -> None:
    """On a server that parses thoughts and calls: each control is valid and proved, a call is
    timed by its tokens, and a constraint that waits for a thought is named."""
    folder = tmp_path / "vllm"
    folder.mkdir()
    with VllmServer(vllm_installation, folder, flags=PARSERS) as server:
        all_warm(
            server,
            tmp_path,
            {
                "thinking": "{endpoint: chat, chat_template_kwargs: {enable_thinking: true}}",
                "direct": f"{{endpoint: chat, {DIRECT}}}",
                "effort": "{endpoint: chat, reasoning_effort: high, include_reasoning: true}",
                "effort-none": "{endpoint: chat, reasoning_effort: none}",
                "bounded": "{endpoint: chat, thinking_token_budget: 4}",
                "tools": f"{{endpoint: chat, tools: [{TOOL}], {DIRECT}}}",
                "called": f"{{endpoint: chat, tools: [{TOOL}], {DIRECT}, tool_choice: required}}",
                "named": f"{{endpoint: chat, tools: [{TOOL}], {DIRECT}, "
                "tool_choice: {function: {name: look}}}",
                "json": f"{{endpoint: chat, structured_outputs: json, {DIRECT}}}",
            },
            350,
        )
        free = once(server, tmp_path, WAITING)
    calls = by_variant(free.json)
    assert {cell["call"] for cells in calls.values() for cell in cells} == {"unknown"}
    assert "use endpoint: chat with thinking off" in str(calls["v"][0]["reasons"])
    assert "switch thinking off" in str(calls["w"][0]["reasons"])

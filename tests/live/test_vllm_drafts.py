"""n-gram speculation on a real server: whose drafts are accepted, and what the cells say of it.

A model of random weights goes on with a repeated phrase only where it is greedy, and repeats itself
unless it is hot and told not to; so the variants here choose how to sample. A served model needs
none of them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.sidecar import vllm_warmup
from tests.live.user import counter
from tests.live.vllm import Installation, VllmServer

SPECULATION = (
    "--speculative-config",
    '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, '
    '"prompt_lookup_min": 2}',
)
SHAPES = """
grid:
  concurrency: [1]
  prompt_tokens: [64]
  output_tokens: [80] # by then a greedy model of random weights goes in circles
  variants: [VARIANT, VARIANT-chat]
  drafts: [DRAFTS]
variants:
  greedy: {temperature: 0}
  greedy-chat: {endpoint: chat, temperature: 0}
  hot: {temperature: 2, repetition_penalty: 2}
  hot-chat: {endpoint: chat, temperature: 2, repetition_penalty: 2}
engine: {max_num_batched_tokens: 2048}
converge: {floor_s: 3}
"""


@pytest.fixture(scope="module")
def speculating_vllm(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """One thread for numba: its pool would take the cores from the engine's own."""
    folder = tmp_path_factory.mktemp("speculating")
    with VllmServer(
        vllm_installation, folder, flags=SPECULATION, env={"NUMBA_NUM_THREADS": "1"}
    ) as server:
        yield server


def accepted_tokens(server: VllmServer) -> float:
    return counter(server.url, "vllm:spec_decode_num_accepted_tokens_total")


def warmed(server: VllmServer, folder: Path, variant: str, drafts: str) -> dict[str, Any]:
    """The report of one run over the cells of a variant with these drafts."""
    shapes = folder / f"{variant}-{drafts}.yaml"
    shapes.write_text(SHAPES.replace("VARIANT", variant).replace("DRAFTS", drafts))
    done = vllm_warmup(
        *("once", "--json", "--engine-url", server.url, "--shapes", str(shapes)), limit_s=500
    )
    assert done.code == 0, done.err
    return dict(done.json)


def calls(report: dict[str, Any], drafts: str) -> list[str]:
    """What is said of the cells that declare these drafts."""
    cells = report["verdict"]["cells"]
    return [cell["call"] for cell in cells if cell["cell"]["drafts"] == drafts]


def test_drafts_of_a_repeated_text_are_accepted(
    speculating_vllm: VllmServer, tmp_path: Path
) -> None:
    """By both endpoints; the counters move, and the cells are warm."""
    before = accepted_tokens(speculating_vllm)
    report = warmed(speculating_vllm, tmp_path, "greedy", "accepted")
    assert accepted_tokens(speculating_vllm) > before
    assert calls(report, "accepted") == ["warm", "warm"], report["verdict"]


def test_drafts_of_random_text_are_not(speculating_vllm: VllmServer, tmp_path: Path) -> None:
    """Random ids and random words: not one is accepted, and the cells are warm."""
    before = accepted_tokens(speculating_vllm)
    report = warmed(speculating_vllm, tmp_path, "hot", "rejected")
    assert accepted_tokens(speculating_vllm) == before
    assert calls(report, "rejected") == ["warm", "warm"], report["verdict"]


def test_a_text_that_the_model_does_not_go_on_with_is_named(
    speculating_vllm: VllmServer, tmp_path: Path
) -> None:
    """Declared accepted, and none is: not warm, and the reason is that."""
    report = warmed(speculating_vllm, tmp_path, "hot", "accepted")
    assert "warm" not in calls(report, "accepted")
    reasons = [r for cell in report["verdict"]["cells"] for r in cell["reasons"]]
    assert any("no draft was accepted" in reason for reason in reasons), reasons

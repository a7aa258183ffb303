"""An older vLLM, behind an API key."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.sidecar import Sidecar, vllm_warmup
from tests.live.vllm import Installation, VllmServer

KEY = "sk-live-tier-7f3a"
SHAPES = """
grid:
  concurrency: [1, 2]
  prompt_tokens: [64, 350]
  output_tokens: [4]
  variants: [completions, chat]
converge: {floor_s: 0.3}
"""


@pytest.fixture(scope="module")
def guarded(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    """vLLM 0.28.0 with an API key; four releases older than the other tests' server."""
    folder = tmp_path_factory.mktemp("guarded")
    with VllmServer(vllm_installation, folder, version="0.28.0", api_key=KEY) as engine:
        yield engine


@pytest.mark.parametrize("settings", [{}, {"WARMUP_API_KEY": "sk-wrong"}], ids=["none", "wrong"])
def test_a_key_that_lacks_is_said_at_once(
    guarded: VllmServer, tmp_path: Path, settings: dict[str, str]
) -> None:
    """401 is neither "not up yet" nor "dead": the operator reads which setting to mend."""
    with Sidecar(guarded.url, tmp_path, SHAPES, **settings) as sidecar:
        sidecar.wait_until(
            "it names the setting and the status",
            lambda: any("401" in r and "WARMUP_API_KEY" in r for r in sidecar.reasons()),
            limit_s=120,
        )


def test_a_model_that_is_not_served_is_named(guarded: VllmServer, tmp_path: Path) -> None:
    """The sentence has the name that was asked for and those that there are."""
    settings = {"WARMUP_API_KEY": KEY, "WARMUP_MODEL": "nobody"}
    with Sidecar(guarded.url, tmp_path, SHAPES, **settings) as sidecar:
        sidecar.wait_until(
            "it names both",
            lambda: any("nobody" in r and "tiny" in r for r in sidecar.reasons()),
            limit_s=120,
        )


def test_an_older_vllm_is_warmed_with_a_key_from_a_file(
    guarded: VllmServer, tmp_path: Path
) -> None:
    """A secret's file is enough, and the key appears nowhere."""
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "shapes.yaml").write_text(SHAPES)
    done = vllm_warmup(
        *("once", "--json", "--engine-url", guarded.url, "--shapes", str(tmp_path / "shapes.yaml")),
        limit_s=500,
        WARMUP_API_KEY_FILE=str(tmp_path / "key"),
    )
    assert done.code == 0, done.err
    assert done.json["facts"]["version"] == "0.28.0"
    assert {cell["call"] for cell in done.json["verdict"]["cells"]} == {"warm", "passed"}
    assert KEY not in done.out + done.err

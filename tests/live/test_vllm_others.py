"""A warmed-up engine that others use, and lengths from one token to the limit."""

import re
from pathlib import Path

from tests.live.sidecar import Sidecar, vllm_warmup
from tests.live.user import Traffic
from tests.live.vllm import MAX_MODEL_LEN, VllmServer

SHAPES = """
grid: {concurrency: [1, 2], prompt_tokens: [64, 350], output_tokens: [4]}
engine: {max_num_batched_tokens: 2048}
converge: {floor_s: 0.3}
on_unproven: closed
"""


LONGEST = MAX_MODEL_LEN - 9
"""R4 raises the output tokens: eight more than the steps of the prefill."""
CHAT = "\n".join(
    f"  - {{concurrency: 1, prompt_tokens: {tokens}, output_tokens: 1, variant: {variant}}}"
    for variant, lengths in {
        "chat": (29, 30, 31, 100, 255, 256, 1001, 5000),
        "unthinking": (49, 50, 513),
    }.items()
    for tokens in lengths
)


def test_user_traffic_is_named_and_then_forgotten(real_vllm: VllmServer, tmp_path: Path) -> None:
    """While others use the engine the verdict is unknown and says so; once they stop, it opens."""
    with Sidecar(real_vllm.url, tmp_path, SHAPES) as sidecar:
        with Traffic(real_vllm.url) as traffic:
            sidecar.wait_until(
                "it names the others",
                lambda: any(re.search("serve[sd] others", r) for r in sidecar.reasons()),
                limit_s=240,
            )
            assert traffic.sent > 0
        ready = sidecar.wait_for("ready", limit_s=400)
        assert ready["proven"] is True, ready


def test_lengths_are_exact_from_one_token_to_the_limit(
    real_vllm: VllmServer, tmp_path: Path
) -> None:
    """Completions and chat are sent with the declared number of tokens, whatever it is."""
    shapes = tmp_path / "lengths.yaml"
    shapes.write_text(
        f"""
grid: {{concurrency: [1], prompt_tokens: [1, 2, 3, 15, 16, 17, 127, 1000, 4097, {LONGEST}],
       output_tokens: [1]}}
variants:
  unthinking: {{endpoint: chat, chat_template_kwargs: {{enable_thinking: false}}}}
cells:
{CHAT}
converge: {{floor_s: 0.3}}
"""
    )
    done = vllm_warmup(
        *("once", "--json", "--engine-url", real_vllm.url, "--shapes", str(shapes)), limit_s=600
    )
    assert done.code == 0, done.err
    # Counters are waited for, but for a second only: who stood still may have counted later.
    doubts = [why for wave in done.json["waves"] for why in wave["because"]]
    assert all("the engine counted" in why or "the engine served" in why for why in doubts), doubts
    lengths = {cell["cell"]["prompt_tokens"] for cell in done.json["verdict"]["cells"]}
    assert {1, 17, 29, 1001, LONGEST, MAX_MODEL_LEN - 1} <= lengths, "the first prompt is longest"

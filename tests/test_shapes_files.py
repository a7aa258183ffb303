"""The shipped shapes files: each loads, keeps its promise, and its schema is current."""

import json
import re
from pathlib import Path

import pytest

from sidecar.adapters.shapesfile import find, read, read_text, shipped
from sidecar.core.errors import ConfigError
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.cells import Endpoint, Gait
from sidecar.core.grid.cost import Speed, plan_cost
from sidecar.core.grid.plan import expand
from sidecar.core.grid.shapes import parse
from sidecar.core.grid.shapesfile import schema

SHAPES = Path(__file__).resolve().parents[1] / "shapes"

ENGINES = {
    "nothing known": EngineFacts(),
    "tiny on a CPU": EngineFacts(max_model_len=8192, kv_cache_tokens=65_536),
    "one GPU": EngineFacts(
        max_model_len=131_072, max_num_seqs=1024, max_num_batched_tokens=8192, draft_tokens=0
    ),
    "largest defaults": EngineFacts(
        max_model_len=131_072, max_num_seqs=1024, max_num_batched_tokens=16_384, draft_tokens=5
    ),
}


@pytest.mark.parametrize("name", ["default", "tiny"])
@pytest.mark.parametrize("facts", ENGINES.values(), ids=ENGINES)
def test_default_and_tiny_fit_and_stay_cheap(name: str, facts: EngineFacts) -> None:
    """At most 40 waves and 200,000 prompt tokens a pass, plugs and the first prompt included."""
    plan = expand(read(name), facts)
    assert plan.refusal is None
    assert plan.cells
    cost = plan_cost(plan, Speed())
    assert (cost.a_pass + cost.once).waves <= 40
    assert (cost.a_pass + cost.once).prompt_tokens <= 200_000


def test_default_leaves_nothing_out_on_a_small_server() -> None:
    """A model of 8192 tokens with 65,536 tokens of KV cache runs all of it."""
    assert expand(read("default"), ENGINES["tiny on a CPU"]).unfit == ()


def test_default_holds_what_was_seen_to_be_cold() -> None:
    """Odd and even, one above the largest graph, several at once, decode sizes, long, chat."""
    cells = expand(read("default"), ENGINES["one GPU"]).cells
    lengths = {c.prompt_tokens for c in cells if c.concurrency == 1}
    assert {513, 350, 1024} <= lengths
    assert any(n % 2 for n in lengths)
    assert max(lengths) > 4096
    assert any(c.ramp and c.concurrency >= 32 for c in cells)
    assert any(Gait.HELD in c.gaits and c.variant.endpoint is Endpoint.CHAT for c in cells)
    assert any("logprobs" in c.variant.fields for c in cells)


def test_default_samples_scores_and_writes_json() -> None:
    """On an H200 that was otherwise warm logprobs and JSON cost 0.5 s each, and min_p 0.1 s."""
    fields = {name for cell in read("default").cells for name in cell.variant.fields}
    assert {"logprobs", "structured_outputs", "min_p", "temperature"} <= fields


@pytest.mark.parametrize("name", ["agents", "rag"])
@pytest.mark.parametrize("facts", ENGINES.values(), ids=ENGINES)
def test_the_files_for_users_of_a_kind(name: str, facts: EngineFacts) -> None:
    """They fit every engine, hold prefix hits and constraints, and stay below three minutes."""
    plan = expand(read(name), facts)
    assert plan.refusal is None
    assert any(cell.prefix_tokens for cell in plan.cells)
    assert any("structured_outputs" in cell.variant.fields for cell in plan.cells)
    assert plan_cost(plan, Speed()).total.seconds < 180


@pytest.mark.parametrize("name", ["default", "agents", "rag"])
def test_what_a_file_suggests_in_comments_is_right(name: str) -> None:
    """Lines to uncomment are good YAML of the form, together with the rest of the file."""
    text = read_text(name)
    offered = re.compile(r"^# (?=(engine|heaviest|variants):|  )", re.MULTILINE)
    assert offered.search(text)
    shapes = parse(offered.sub("", text), "f.yaml")
    assert shapes.heaviest is not None or name == "default"


def test_the_readme_s_shapes_are_right() -> None:
    """What can be copied out of either page is a good file, or a piece of one."""
    pages = (SHAPES.parent / "README.md").read_text() + (SHAPES / "README.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", pages, re.MULTILINE | re.DOTALL)
    shapes = [b for b in blocks if re.match(r"# yaml-language|(variants|special|grid|cells):", b)]
    assert len(shapes) >= 3
    for block in shapes:
        grid = (
            ""
            if re.search("^grid:", block, re.M)
            else "grid: {concurrency: [1], prompt_tokens: [350]}\n"
        )
        assert parse(block + grid, "README.md").cells


def test_tiny_has_a_chat_and_a_held_cell_and_is_done_in_seconds() -> None:
    """It is what the demo and the tests warm."""
    plan = expand(read("tiny"), ENGINES["tiny on a CPU"])
    assert any(c.variant.endpoint is Endpoint.CHAT for c in plan.cells)
    assert any(Gait.HELD in c.gaits for c in plan.cells)
    assert plan_cost(plan, Speed()).total.seconds < 10


def test_the_gb10_file() -> None:
    """Eight at most, five drafts, concurrency 1, 4 and 8, thinking at its maximum, one long."""
    shapes = read("deepseek-v4-flash-gb10-tp2")
    assert (shapes.engine.max_num_seqs, shapes.engine.draft_tokens) == (8, 5)
    assert {c.concurrency for c in shapes.cells} == {1, 4, 8}
    assert shapes.cells[0].variant.fields["reasoning_effort"] == "max"
    plan = expand(shapes, EngineFacts(max_model_len=131_072))
    assert plan.refusal is None
    assert plan.heaviest is not None
    assert min(c.output_tokens for c in plan.cells if c.concurrency > 1) >= 8 * 6


def test_the_rtx_pro_6000_file() -> None:
    """The heaviest path is a prompt of 130,000 tokens in a context of 250,000."""
    shapes = read("deepseek-v4-flash-nvfp4-rtx-pro-6000-tp2")
    assert (shapes.engine.max_model_len, shapes.engine.max_num_batched_tokens) == (250_000, 4096)
    plan = expand(shapes, EngineFacts(max_model_len=250_000))
    assert plan.refusal is None
    assert plan.heaviest is not None
    assert plan.heaviest.prompt_tokens == 130_000
    assert any(c.wave_prompt_tokens <= 4096 and c.concurrency == 8 for c in plan.cells)


@pytest.mark.parametrize("name", shipped())
def test_each_file_names_its_schema_for_editors(name: str) -> None:
    """The first line tells an editor where the schema is."""
    assert read_text(name).startswith("# yaml-language-server: $schema=./schema.json\n")


def test_the_schema_is_current() -> None:
    """`vllm-warmup shapes schema > shapes/schema.json` after a change of the form."""
    assert json.loads((SHAPES / "schema.json").read_text()) == schema()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "defualt",
            r'no shapes file is called "defualt" \(did you mean "default"\?\); give a path',
        ),
        ("/nowhere/s.yaml", "/nowhere/s.yaml: can't be read .no such file or directory.*"),
        ("/", "/: can't be read .is a directory.*"),
        ("/dev/zero", "/dev/zero: larger than 256 KiB; .*"),
    ],
)
def test_a_file_that_is_not_there(name: str, sentence: str) -> None:
    """Neither a path nor a shipped name: one sentence, and endless files end."""
    with pytest.raises(ConfigError, match=sentence):
        read(name)


def test_a_file_of_other_text(tmp_path: Path) -> None:
    """Latin-1 is refused with its line; a byte order mark is not."""
    (tmp_path / "l.yaml").write_bytes("name: a\n# für\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"l.yaml:2: not UTF-8 text"):
        read(str(tmp_path / "l.yaml"))
    (tmp_path / "b.yaml").write_bytes("cells: [{prompt_tokens: 5}]\n".encode("utf-8-sig"))
    assert read(str(tmp_path / "b.yaml")).cells
    assert find("tiny").name == "tiny.yaml"

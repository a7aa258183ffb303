"""deploy/README.md: what it says you will read is what the sidecar says; links lead somewhere."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "deploy" / "README.md").read_text()
REASONS = [
    reason
    for head in ("It stays 503", "When it says unknown")
    for reason in re.findall(
        r"^\| (`.+?) \|", TEXT.partition(f"## {head}")[2].partition("\n## ")[0], re.MULTILINE
    )
]


@cache
def said() -> str:
    """Every text in the sidecar's sources, one a line."""
    texts = []
    for path in (ROOT / "sidecar").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_is_one_that_the_sidecar_gives(reason: str) -> None:
    """Somebody who searches the page for what he reads must find it."""
    for quoted in re.findall(r"`([^`]+)`", reason):
        if quoted.startswith("on_"):
            continue
        for part in quoted.split("…"):
            assert part.strip() in said(), part


def test_links_lead_somewhere() -> None:
    """Relative ones, in every page of the project, and to a heading that is there."""
    pages = (*ROOT.glob("*.md"), *(ROOT / "deploy").rglob("*.md"), *(ROOT / "shapes").glob("*.md"))
    for page in pages:
        for link, head in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
            there = page.parent / link if link else page
            assert there.exists(), f"{page.name}: {link}"
            assert not head or head in heads(there), f"{page.name}: {link}#{head}"


def heads(page: Path) -> list[str]:
    """As they stand behind a # in a link."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in found]

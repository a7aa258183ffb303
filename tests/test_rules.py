"""The rules of the house, so that nobody has to remember them."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from sidecar.core.errors import ExitCode
from sidecar.core.grid.shapes import parse
from sidecar.settings import describe

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PACKAGE = ROOT / "sidecar"
LONGEST = 350
"""Lines of a module; past it there are two nouns in it."""

LAYERS = {
    # layer: (its modules, whom it may import beside itself)
    "core": (("core",), ()),
    "adapters": (("adapters",), ("core",)),
    "simulator": (("simulator",), ("core",)),
    "conductor": (
        ("warmup", "warming", "watch", "search", "attempt", "boot", "door", "ear", "record"),
        ("core",),
    ),
    "web": (("web", "exposition"), ("core",)),
    "settings": (("settings",), ("core",)),
    "wiring": (
        ("wiring", "running"),
        ("core", "adapters", "conductor", "web", "settings"),
    ),
    "check": (("check",), ()),
    "cli": (
        ("cli", "__main__"),
        ("core", "adapters", "settings", "wiring", "simulator", "check"),
    ),
}
"""Imports point down only: cli → wiring → web, conductor, adapters → core."""

IMPURE = {
    *("asyncio", "anyio", "concurrent", "multiprocessing", "threading", "subprocess", "signal"),
    *("socket", "ssl", "http", "urllib.request", "httpx", "httptools", "fastapi", "uvicorn"),
    *("os", "pathlib", "shutil", "tempfile", "time", "logging", "tenacity", "rich"),
}
"""What `core` may not import: it decides, others act; time comes in as numbers."""

ONLY_HERE = {
    "os.environ": ("settings", "check"),
    "os.getenv": ("settings", "check"),
    "httpx": ("adapters",),
    "tenacity": ("adapters",),
    "fastapi": ("web", "simulator"),
    "prometheus_client": ("exposition", "web", "core/wire/metrics", "simulator"),
    "yaml": ("core", "settings", "simulator"),
    "rich": ("cli",),
    "argparse": ("cli", "simulator"),
    "time": ("adapters", "warmup", "attempt", "search", "watch", "simulator"),
    "datetime.now": ("adapters", "warmup", "watch", "wiring", "simulator"),
    "print": ("cli", "check", "simulator"),
}
"""name → the modules (or folders) in which it may be used. `check` starts every few seconds and
reads its two variables itself, so that nothing else of the package has to be imported for it."""


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package, parsed."""

    name: str
    """As a path without suffix, from the package: `core/watch/gate`."""
    tree: ast.Module
    lines: int

    def is_one_of(self, places: tuple[str, ...]) -> bool:
        return any(
            self.name == place
            or self.name.startswith(f"{place}/")
            or (place.endswith("*") and self.name.startswith(place[:-1]))
            for place in places
        )

    def imports(self) -> Iterator[str]:
        """Dotted names; of `from a import b` both `a` and `a.b`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.name}: say where from, no relative imports"
                yield node.module or ""
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    def uses(self) -> Iterator[str]:
        """Imports, `a.b` wherever it is read, and names that are called."""
        yield from self.imports()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                yield f"{node.value.id}.{node.attr}"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.func.id


@cache
def modules() -> tuple[Module, ...]:
    """Not before a test asks for them: every run, of whatever tests, collects this file."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        found.append(Module(name, ast.parse(text), text.count("\n")))
    return tuple(found)


def is_under(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")


@cache
def layer_of(name: str) -> str | None:
    probe = Module(name, ast.Module([], []), 0)
    return next((layer for layer, (places, _) in LAYERS.items() if probe.is_one_of(places)), None)


def test_imports_point_down() -> None:
    """A module imports only from its own layer and from those below it."""
    wrong = []
    for module in modules():
        if module.name == "__init__":
            assert not list(module.imports()), "sidecar/__init__.py holds the version, nothing else"
            continue
        layer = layer_of(module.name)
        assert layer is not None, f"sidecar/{module.name}.py belongs to no layer: name it in LAYERS"
        allowed = {layer, *LAYERS[layer][1]}
        for name in module.imports():
            if not name.startswith("sidecar."):
                continue
            target = layer_of(name.removeprefix("sidecar.").replace(".", "/"))
            if target is not None and target not in allowed:  # None: `from sidecar import …`
                wrong.append(f"sidecar/{module.name}.py ({layer}) may not import {name}")
    assert wrong == []


def test_core_is_pure() -> None:
    """Nothing in core reaches a socket, file, clock, environment or event loop."""
    wrong = []
    for module in modules():
        if module.is_one_of(("core",)):
            impure = [n for n in module.imports() if any(is_under(n, bad) for bad in IMPURE)]
            wrong += [f"sidecar/{module.name}.py imports {name}" for name in impure]
            if "open" in module.uses():
                wrong.append(f"sidecar/{module.name}.py opens a file")
    assert wrong == []


def test_a_thing_is_used_only_where_it_belongs() -> None:
    """The environment, the clock, the printer and each big library have their one place."""
    wrong = []
    for module in modules():
        used = set(module.uses())
        for thing, places in ONLY_HERE.items():
            if not module.is_one_of(places) and any(is_under(name, thing) for name in used):
                wrong.append(f"sidecar/{module.name}.py uses {thing}; only {places} may")
    assert wrong == []


def test_check_imports_the_standard_library_only() -> None:
    """It runs every few seconds beside the waves, so it must start fast."""
    check = next(module for module in modules() if module.name == "check")
    foreign = [n for n in check.imports() if n.split(".")[0] not in sys.stdlib_module_names]
    assert not foreign, f"sidecar/check.py imports {foreign}"


def test_a_module_has_one_noun() -> None:
    """No module is longer than can be read in one go."""
    assert {module.name: module.lines for module in modules() if module.lines > LONGEST} == {}


def test_names_say_what_a_thing_is() -> None:
    """No Manager, Helper, Utils, Base or Factory."""
    vague = re.compile(r"(Manager|Helper|Utils?|Base|Factory)$|^utils?$")
    wrong = []
    for module in modules():
        names = [node.name for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
        named = [name for name in (*names, module.name.split("/")[-1]) if vague.search(name)]
        wrong += [f"sidecar/{module.name}.py: {name}" for name in named]
    assert wrong == []


def tracked_files() -> list[Path]:
    """What is in the repository; in an unpacked release, whatever is there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_the_repository_names_no_machine() -> None:
    """No path of a developer's machine and no package registry stands in a file."""
    machine = re.compile(
        r"(?<![\w.:/*-])/(?:home|root|Users|work)/\w"
        r"|(?:extra-)?index-url\s*[= ]\s*https?:"
        r"|registry\s*[=:]\s*\"?https?:"
    )
    for path in tracked_files():
        text = path.read_text(errors="replace")
        found = machine.search(text)
        assert not found, f"{path.relative_to(ROOT)}: {found and found.group()}"


def test_readme_lists_every_setting() -> None:
    """The README's table of variables is what `settings` knows, word for word."""
    table = [
        f"| `{s.name}` | {f'`{s.default}`' if s.default else ''} | {s.text} |" for s in describe()
    ]
    missing = [row for row in table if row not in README.splitlines()]
    assert not missing, "rows of README.md to mend:\n" + "\n".join(missing)
    named = set(re.findall(r"^\| `(WARMUP_\w+)`", README, re.MULTILINE))
    assert named == {setting.name for setting in describe()}


def test_readme_lists_every_exit_code() -> None:
    """Scripts branch on them."""
    named = {int(code) for code in re.findall(r"^\| `?(\d)`? \|", README, re.MULTILINE)}
    assert named == set(map(int, ExitCode))


@pytest.mark.parametrize("path", sorted((ROOT / "shapes").glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_shapes_load(path: Path) -> None:
    """Whoever names a shipped file gets it, and editors find its schema."""
    text = path.read_text()
    assert parse(text, path.name).cells
    assert text.startswith("# yaml-language-server: $schema=./schema.json"), path.name


def test_readme_shows_the_compose_file_in_ten_lines() -> None:
    """Whoever copies them has what the file is without its variables: nothing else than there."""
    text = (ROOT / "compose.override.yaml").read_text()
    file = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    (shown,) = re.findall(r"```yaml\n(services:.*?)```", README, re.DOTALL)
    assert len(shown.splitlines()) == 10
    short = yaml.safe_load(shown)
    warmup, whole = short["services"].pop("warmup"), file["services"]["warmup"]
    assert warmup.pop("environment").items() <= whole["environment"].items()
    assert {name: whole[name] for name in warmup} == warmup
    assert short == {"services": {}, "volumes": {"warmup-state": {}}}


def test_readme_shows_shapes_that_load() -> None:
    """Whoever copies the example gets what it says."""
    (example,) = re.findall(r"```yaml\n(# yaml-language-server.*?)```", README, re.DOTALL)
    assert len(parse(example, "README.md").cells) == 15
    page = (ROOT / "shapes" / "README.md").read_text()
    (special,) = re.findall(r"```yaml\n(special:.*?)```", page, re.DOTALL)
    shapes = parse(f"grid: {{concurrency: [4], prompt_tokens: [512]}}\n{special}", "README.md")
    assert (len(shapes.cells), len(shapes.derived.beside)) == (3, 3)

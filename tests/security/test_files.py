"""S8, S9: files that the sidecar writes, and files that it reads."""

import stat

import pytest

from sidecar.adapters.atomic import write_atomically
from sidecar.adapters.readyfile import ReadyFile
from sidecar.adapters.state import StateDir
from sidecar.core import yamltext
from sidecar.core.errors import ConfigError
from sidecar.core.grid.shapes import parse
from sidecar.settings import load
from sidecar.simulator.server import simulator
from tests.core.test_report import REPORT
from tests.service.running import WARM, serving


async def test_s8_only_its_user_may_read_the_state(tmp_path):
    """The folder that it makes, and each file in it."""
    folder = tmp_path / "state"
    async with simulator(WARM) as sim, serving(sim.url, state_dir=folder) as sidecar:
        await sidecar.until_ready()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert {"verdict.json", "last-report.json", "history.jsonl"} <= set(modes)
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_s8_a_planted_link_is_never_written_through(tmp_path):
    """Whoever may write into a shared folder must not choose what the sidecar overwrites."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    mode = stat.S_IMODE(victim.stat().st_mode)
    folder = tmp_path / "state"
    folder.mkdir()
    for name in ("verdict.json", "mark.json", "last-report.json", "history.jsonl", "ready"):
        (folder / name).symlink_to(victim)
    file = ReadyFile(folder / "ready")
    await file.write()
    state = StateDir(folder)
    await state.add_report(REPORT)
    await file.remove()
    assert victim.read_text() == "precious"
    assert stat.S_IMODE(victim.stat().st_mode) == mode
    assert any("history.jsonl" in trouble for trouble in state.troubles)
    write_atomically(folder / "verdict.json", "ours")
    assert not (folder / "verdict.json").is_symlink()


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)
HOSTILE = {
    "aliases": BOMB,
    "depth": "[" * 100_000,
    "size": "a: " + "x" * 10_000_000,
    "python": "a: !!python/object/apply:os.system ['true']",
    "merge": "grid: &a {concurrency: [1]}\nother: {<<: *a}",
    "itself": "a: &a [*a]",
    "number": "grid: {concurrency: [1" + "0" * 5000 + "]}",
    "cells": "grid: {concurrency: [1], prompt_tokens: ["
    + ",".join(map(str, range(1, 15_000)))
    + "], output_tokens: [1]}",
    "path": "cells: [{concurrency: 1, prompt_tokens: 1, output_tokens: 1, variant: ../../etc/x}]",
    "escape": 'cells: [{concurrency: 1, prompt_tokens: 1, output_tokens: 1, variant: "\\e[2J"}]',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_s9_a_hostile_yaml_file_is_refused_at_once(kind, tmp_path):
    """As shapes and as settings: one printable sentence, whatever the file wants to unfold to."""
    with pytest.raises(ConfigError) as refused:
        parse(HOSTILE[kind], "shapes.yaml")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 600
    file = tmp_path / "settings.yaml"
    file.write_text(HOSTILE[kind])
    with pytest.raises(ConfigError):
        load(settings_file=str(file))
    assert yamltext.MAX_BYTES < 1 << 20

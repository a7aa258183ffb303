"""systemd units as far as the tests run them: sections, lists, drop-ins, and a command line."""

import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.manifests import ROOT
from tests.live.process import Process

UNITS = ROOT / "deploy" / "systemd"

WARMUP = Path(sys.executable).with_name("vllm-warmup")


@dataclass(frozen=True, slots=True)
class Unit:
    """Its directives by name, each a list in the order of the lines, drop-ins behind the unit."""

    name: str
    values: Mapping[str, list[str]]

    def one(self, directive: str) -> str:
        return self.values[directive][-1]

    def words(self, directive: str) -> list[str]:
        return " ".join(self.values[directive]).split()


def read(name: str, *drop_ins: str) -> Unit:
    """A unit with those of its drop-ins that are named."""
    values: defaultdict[str, list[str]] = defaultdict(list)
    for path in (UNITS / name, *(UNITS / f"{name}.d" / each for each in drop_ins)):
        for line in path.read_text().splitlines():
            if line and line[0] not in "#[":
                directive, _, value = line.partition("=")
                values[directive].append(value)
    return Unit(name, values)


@dataclass(slots=True)
class Machine:
    """A folder in place of the root directory, ephemeral ports, and `vllm` as some script."""

    folder: Path
    engine_port: int
    vllm: Path
    more: dict[str, str] = field(default_factory=dict)
    """Settings in place of those in warmup.env that a test can't use."""

    def placed(self, text: str) -> str:
        text = text.replace("8000", self._port)
        for path in ("/etc/", "/var/", "/run/"):
            if text.startswith(path) or f"//{path}" in text or f"={path}" in text:
                text = text.replace(path, f"{self.folder}{path}", 1)
        # last: this checkout may itself lie below one of these folders
        text = text.replace("/opt/vllm-warmup/bin/vllm-warmup", str(WARMUP))
        return text.replace("/opt/vllm/bin/vllm", str(self.vllm))

    @property
    def _port(self) -> str:
        return str(self.engine_port)

    def environment(self, unit: Unit) -> dict[str, str]:
        """What systemd would give: little of this process's own, the unit's, its file's."""
        pairs = [pair for line in unit.values["Environment"] for pair in shlex.split(line)]
        for path in unit.values["EnvironmentFile"]:
            file = UNITS / Path(path.removeprefix("-")).name
            if file.exists() or not path.startswith("-"):
                pairs += [line for line in file.read_text().splitlines() if line and line[0] != "#"]
        given = {name: self.placed(value) for name, _, value in (p.partition("=") for p in pairs)}
        return {"PATH": os.environ["PATH"], "SIM_PORT": self._port} | given | self.more

    def start(self, unit: Unit) -> Process:
        """Run its command line as it stands there, with what its directories promise."""
        for kind, root in (("State", "var/lib"), ("Runtime", "run"), ("Logs", "var/log")):
            for name in unit.values[f"{kind}Directory"]:
                (self.folder / root / name).mkdir(parents=True, exist_ok=True)
        output = unit.values["StandardOutput"] or [f"append:/{unit.name}.log"]
        log = Path(self.placed(output[0].removeprefix("append:")))
        if not log.is_relative_to(self.folder):
            log = self.folder / log.name
        [command] = unit.values["ExecStart"]
        words = [self.placed(word) for word in shlex.split(command)]
        return Process(words, log, env=self.environment(unit))

    def output(self, unit: Unit) -> str:
        return (self.folder / f"{unit.name}.log").read_text(errors="replace")

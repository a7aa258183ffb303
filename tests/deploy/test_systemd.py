"""The units: valid for systemd, and their command lines run in the order that they ask for."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar import settings
from sidecar.adapters.shapesfile import read as read_shapes
from sidecar.core.errors import ExitCode
from tests.deploy.manifests import tool
from tests.deploy.units import UNITS, WARMUP, Machine, read
from tests.live.process import Process, free_port

pytestmark = pytest.mark.programs

SIMULATOR = f"""\
#!/bin/sh
exec {sys.executable} -m sidecar sim --port "$SIM_PORT" --time-scale 0.05 --start-delay-s 0.2
"""

SHAPES = """\
cells: [{concurrency: 1, prompt_tokens: 350, output_tokens: 8}]
converge: {floor_s: 1}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    vllm, shapes = tmp_path / "vllm", tmp_path / "shapes.yaml"
    vllm.write_text(SIMULATOR)
    vllm.chmod(0o755)
    shapes.write_text(SHAPES)
    more = {"WARMUP_SHAPES": str(shapes), "WARMUP_PORT": str(free_port())}
    return Machine(tmp_path, free_port(), vllm, more)


def until(what: str, is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, f"after {limit_s:.0f} s still not: {what}"
        time.sleep(0.05)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:  # 503 is one too
        return False


def ended(process: Process, limit_s: float = 60.0) -> int:
    until("it has ended", lambda: process.code is not None, limit_s)
    assert process.code is not None
    return process.code


def test_systemd_takes_them(tmp_path: Path) -> None:
    """systemd itself reads every unit and drop-in without a word of complaint."""
    verify = tool("systemd-analyze", "Debian: systemd")
    for path in UNITS.rglob("*"):
        if path.suffix in {".service", ".conf"}:
            text = path.read_text().replace("/opt/vllm/bin/vllm ", "/bin/true ")
            text = text.replace("/opt/vllm-warmup/bin/vllm-warmup", "/bin/true")
            copy = tmp_path / path.relative_to(UNITS)
            copy.parent.mkdir(exist_ok=True)
            copy.write_text(text)
    (tmp_path / "haproxy.service").write_text("[Service]\nExecStart=/bin/true\n")
    done = subprocess.run(
        [verify, "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))],
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_settings_are_known(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name in the environment file, commented ones too, and in the units is a setting."""
    text = (UNITS / "warmup.env").read_text()
    known = {each.name for each in settings.describe()}
    assert set(re.findall(r"^#?(\w+)=", text, re.MULTILINE)) <= known
    for name, value in machine.environment(read("vllm-warmup.service")).items():
        if name.startswith("WARMUP_"):
            monkeypatch.setenv(name, value)
    assert settings.load().log.startswith("file://")


def test_log_is_where_vllm_writes_it() -> None:
    """The sidecar follows the file that vllm.service writes, in the folder that it makes."""
    log = read("vllm.service").one("StandardOutput").removeprefix("append:")
    assert f"WARMUP_LOG=file://{log}\n" in (UNITS / "warmup.env").read_text()
    assert log.startswith(f"/var/log/{read('vllm.service').one('LogsDirectory')}/")


@pytest.mark.parametrize(
    ("unit", "drop_in"), [("vllm-warmup-once.service", None), ("vllm.service", "warm.conf")]
)
def test_start_may_take_its_time(unit: str, drop_in: str | None) -> None:
    """systemd waits longer for a warm-up than the warm-up itself ever takes."""
    defaults = {each.name: each.default for each in settings.describe()}
    longest = float(defaults["WARMUP_START_DEADLINE_S"]) + read_shapes("default").budget.total_s
    of_unit = read(unit, *([drop_in] if drop_in else []))
    assert int(of_unit.one("TimeoutStartSec")) > longest


def test_order() -> None:
    """The proxy needs the warm-up, the warm-up the engine, and a restart goes the whole way."""
    once = read("vllm-warmup-once.service", "proxy.conf")
    assert once.values["BindsTo"] == ["vllm.service"]
    assert "vllm.service" in once.words("After")
    assert once.values["WantedBy"] == ["vllm.service"]
    assert (once.one("Type"), once.one("RemainAfterExit")) == ("oneshot", "yes")
    proxy = (UNITS / "haproxy.service.d" / "after-warmup.conf").read_text()
    assert "Requires=vllm-warmup-once.service\nAfter=vllm-warmup-once.service\n" in proxy
    assert once.values["Wants"] == ["haproxy.service"]
    assert read("vllm.service").one("Restart") == "always"  # vLLM exits 0 when its engine dies


def test_hopeless_ends_are_not_repeated() -> None:
    """What another start can't mend stops systemd from trying; what it can does not."""
    mistake = str(int(ExitCode.CONFIG))
    assert read("vllm-warmup.service").words("RestartPreventExitStatus") == [mistake]
    assert read("vllm.service", "warm.conf").words("RestartPreventExitStatus") == [mistake]
    once = set(read("vllm-warmup-once.service").words("RestartPreventExitStatus"))
    assert once == {mistake, str(int(ExitCode.EVIDENCE_MISSING))}


@pytest.mark.timeout(120)
def test_once_is_active_when_warm(machine: Machine) -> None:
    """The command ends with 0 when the engine is warm, having read its log, and not before."""
    engine, once = read("vllm.service"), read("vllm-warmup-once.service")
    with machine.start(engine), machine.start(once) as warming:
        assert ended(warming, 90) == 0, machine.output(once)
        assert "grid: warm" in machine.output(once)
    log = machine.folder / "var/log/vllm/vllm.log"
    assert "warmup_fence" in log.read_text()
    assert read("vllm.service", "warm.conf").one("ExecStartPost") == once.one("ExecStart")


@pytest.mark.timeout(120)
def test_gate(machine: Machine) -> None:
    """serve opens, the ready file is there, and is gone when SIGTERM has ended it with 0."""
    engine, sidecar = read("vllm.service"), read("vllm-warmup.service")
    ready = machine.folder / "run/vllm-warmup/ready"
    with machine.start(engine), machine.start(sidecar) as serving:
        until("the ready file is there", ready.exists, 90)
        url = f"http://127.0.0.1:{machine.more['WARMUP_PORT']}/ready"
        until("/ready is 200", lambda: is_ready(url))
        os.kill(serving.pid, signal.SIGTERM)
        assert ended(serving) == 0
        assert not ready.exists()
    assert any((machine.folder / "var/lib/vllm-warmup").iterdir())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"WARMUP_SHAPE": "tiny"}, ExitCode.CONFIG),
        ({"WARMUP_START_DEADLINE_S": "1"}, ExitCode.ENGINE_UNAVAILABLE),
    ],
)
def test_exit_codes(machine: Machine, changes: dict[str, str], code: ExitCode) -> None:
    """A misspelt setting is 2, an engine that isn't there 4: what the units' lists rest on."""
    machine.more |= changes
    once = read("vllm-warmup-once.service")
    with machine.start(once) as warming:
        assert ended(warming) == code, machine.output(once)


def test_the_command_is_installed() -> None:
    """The units' path ends in the command that the package installs."""
    assert WARMUP.exists()
    for name in ("vllm-warmup.service", "vllm-warmup-once.service"):
        assert read(name).one("ExecStart").split()[0].endswith(f"/bin/{WARMUP.name}")

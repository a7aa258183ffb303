"""`start-vllm.sh` run for real: vLLM is the simulator, users' way a small shell script."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT
from tests.live.process import Process, free_port

pytestmark = pytest.mark.programs

SCRIPT = ROOT / "deploy" / "scripts" / "start-vllm.sh"

SIMULATOR = f"""\
#!/bin/sh
echo "$@" > vllm.arguments
exec {shlex.quote(sys.executable)} -m sidecar sim --port "$SIM_PORT" --time-scale 0.05 \\
  --start-delay-s 0.2
"""

SHAPES = """\
cells: [{concurrency: 1, prompt_tokens: 350, output_tokens: 8}]
converge: {floor_s: 1}
"""

PROXY = "trap 'echo proxy ends; exit 0' TERM; echo proxy starts; while :; do sleep 0.05; done"


class Script:
    """The start script in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        (folder / "shapes.yaml").write_text(SHAPES)
        self.vllm(SIMULATOR)

    def vllm(self, text: str) -> None:
        path = self._folder / "bin" / "vllm"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *arguments: str, **settings: str) -> Process:
        beside = Path(sys.executable).parent  # vllm-warmup
        plain = {k: v for k, v in os.environ.items() if not k.startswith("WARMUP_")}
        env = plain | {
            "PATH": f"{self._folder / 'bin'}:{beside}:{os.environ['PATH']}",
            "SIM_PORT": str(self._port),
            "WARMUP_ENGINE_URL": f"http://127.0.0.1:{self._port}",
            "WARMUP_SHAPES": str(self._folder / "shapes.yaml"),
            **settings,
        }
        log = self._folder / "log"
        return Process([str(SCRIPT), *arguments], log, env=env, cwd=self._folder)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def file(self, name: str) -> str:
        return (self._folder / name).read_text()

    def until(self, what: str, is_so: Callable[[], bool], limit_s: float = 90.0) -> None:
        end = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < end, f"after {limit_s:.0f} s still not: {what}\n{self.log}"
            time.sleep(0.05)

    def ended(self, process: Process) -> int:
        self.until("it has ended", lambda: process.code is not None)
        assert process.code is not None
        return process.code


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.mark.timeout(150)
def test_warm_first_then_users(script: Script) -> None:
    """The command starts once the engine is warm; a signal ends it first and vLLM last."""
    with script.start("model", "--port", "8000", "--", "sh", "-c", PROXY) as running:
        script.until("the command runs", lambda: "proxy starts" in script.log)
        assert script.log.index("start-vllm: warm") < script.log.index("proxy starts")
        assert "grid: warm" in script.log
        assert script.file("vllm.arguments") == "serve model --port 8000\n"
        os.kill(running.pid, signal.SIGTERM)
        assert script.ended(running) == 128 + signal.SIGTERM
    assert "proxy ends" in script.log


@pytest.mark.timeout(150)
def test_the_command_ends(script: Script) -> None:
    """The exit code of the command is that of the script, and vLLM is ended with it."""
    with script.start("model", "--", "sh", "-c", "exit 9") as running:
        assert script.ended(running) == 9
    assert "`sh` ended with exit code 9" in script.log


@pytest.mark.parametrize(
    ("vllm", "code"), [("#!/bin/sh\nexit 0\n", 4), ("#!/bin/sh\nexit 6\n", 6)], ids=["0", "6"]
)
def test_vllm_ends_cold(script: Script, vllm: str, code: int) -> None:
    """A vLLM that ends is never taken for a good end, and the command is not started."""
    script.vllm(vllm)
    with script.start("model", "--", "echo", "proxy starts") as running:
        assert script.ended(running) == code
    assert "vLLM ended before it was warm" in script.log
    assert "proxy starts" not in script.log


@pytest.mark.timeout(150)
def test_vllm_ends_while_it_serves(script: Script) -> None:
    """A vLLM that is gone takes the command with it: nobody is sent to a dead port."""
    script.vllm(SIMULATOR.replace("echo", "echo $$ > vllm.pid; echo", 1))
    with script.start("model", "--", "sh", "-c", PROXY) as running:
        script.until("the command runs", lambda: "proxy starts" in script.log)
        os.kill(int(script.file("vllm.pid")), signal.SIGTERM)
        assert script.ended(running) == 4  # the simulator ends with 0, as vLLM does
    assert "vLLM ended while it served with exit code 0" in script.log
    assert "proxy ends" in script.log


@pytest.mark.parametrize(
    ("settings", "code"),
    [({"WARMUP_SHAPES": "nowhere"}, 2), ({"WARMUP_ENGINE_URL": "http://127.0.0.1:1"}, 4)],
    ids=["configuration", "no engine"],
)
def test_not_warm(script: Script, settings: dict[str, str], code: int) -> None:
    """The warm-up's exit code is the script's, and users are not let in."""
    more = {"WARMUP_START_DEADLINE_S": "1", **settings}
    with script.start("model", "--", "echo", "proxy starts", **more) as running:
        assert script.ended(running) == code
    assert f"the warm-up ended with exit code {code}" in script.log
    assert "proxy starts" not in script.log


def test_no_model(script: Script) -> None:
    """Without arguments for vLLM it says what to give."""
    with script.start("--", "true") as running:
        assert script.ended(running) == 2
    assert "give at least a model" in script.log

"""The Pod's two containers, run as processes with their own command lines.

What Kubernetes would do is done by hand: volumes are folders, the two share a loopback. Only what
a machine without it lacks is put in place: ports are ephemeral, and `vllm` is the simulator.
"""

import json
import os
import shlex
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import BASE, NATIVE, Object, containers, environment, objects, pod
from tests.live.process import Process, free_port

pytestmark = pytest.mark.programs

KEY = "key-of-the-test"

SIMULATOR = f"""\
#!/bin/sh
printf '%s\\n' "$@" > "$RECORD"
exec {shlex.quote(sys.executable)} -m sidecar sim --port "$SIM_PORT" --time-scale 0.05 \\
  --start-delay-s 0.2 --api-key "$VLLM_API_KEY"
"""


SHAPES = """\
cells: [{concurrency: 1, prompt_tokens: 350, output_tokens: 8}]
converge: {floor_s: 1}
"""
"""Instead of the example's grid: this is about the Pod, and has to end on a busy machine too."""


class Pod:
    """Folders for the volumes of one Pod, and its containers as processes."""

    def __init__(self, manifests: Path, folder: Path) -> None:
        self.manifests = manifests
        self.engine_port, self.port = free_port(), free_port()
        self._containers = containers(manifests)
        self._folder = folder
        self._bin = folder / "bin"
        self._bin.mkdir()
        maps = {each["metadata"]["name"]: each for each in objects(manifests)}
        for volume in pod(manifests)["volumes"]:
            place = self.volume(volume["name"])
            place.mkdir()
            if "configMap" in volume:
                for name, text in maps[volume["configMap"]["name"]]["data"].items():
                    (place / name).write_text(text)
            if volume["name"] == "shapes":
                (place / "shapes.yaml").write_text(SHAPES)
            if "secret" in volume:
                (place / "api-key").write_text(KEY + "\n")

    def volume(self, name: str) -> Path:
        return self._folder / name

    @property
    def log(self) -> str:
        """What vLLM printed, as the sidecar reads it."""
        path = self.volume("logs") / "vllm.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def console(self, name: str) -> str:
        """What `kubectl logs` would show."""
        return (self._folder / f"{name}.console").read_text(errors="replace")

    def start(self, name: str, vllm: str = SIMULATOR, **more: str) -> Process:
        """Start a container's command as it stands in the manifest."""
        shim = self._bin / "vllm"
        shim.write_text(vllm)
        shim.chmod(0o755)
        container = self._containers[name]
        # the image's entrypoint is `vllm-warmup`
        command = container.get("command", [sys.executable, "-m", "sidecar"])
        return Process(
            [self._placed(container, word) for word in (*command, *container["args"])],
            self._folder / f"{name}.console",
            env=self._environment(container) | more,
        )

    def _environment(self, container: Object) -> dict[str, str]:
        here = {key: value for key, value in os.environ.items() if not key.startswith("WARMUP_")}
        theirs = {
            name: self._placed(container, value).replace(":8000", f":{self.engine_port}")
            for name, value in environment(container).items()
        }
        ours = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "SIM_PORT": str(self.engine_port),
            "RECORD": str(self._folder / "arguments"),
        }
        if container["name"] == "warmup":
            ours["WARMUP_PORT"] = str(self.port)
        return here | theirs | ours

    def _placed(self, container: Object, text: str) -> str:
        """With the paths of mounts turned into those of the folders."""
        for mount in container["volumeMounts"]:
            path = mount["mountPath"]
            text = text.replace(f"{path}/", f"{self.volume(mount['name'])}/")
        return text

    def get(self, path: str, port: int | None = None) -> tuple[int, Any]:
        """Status and JSON body; status 0 while nothing answers."""
        url = f"http://127.0.0.1:{port or self.port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, json.loads(problem.read() or b"null")
        except OSError:
            return 0, None

    def until(self, what: str, is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
        until = time.monotonic() + limit_s
        while not is_so():
            assert time.monotonic() < until, (
                f"after {limit_s:.0f} s still not: {what}; /ready: {self.get('/ready')}"
            )
            time.sleep(0.05)


@pytest.mark.timeout(180)
def test_pod_becomes_ready_and_drains(tmp_path: Path) -> None:
    """The sidecar is up before the engine, opens on the engine's log, and shuts before it ends."""
    here = Pod(BASE, tmp_path)
    with here.start("warmup") as sidecar:
        here.until("/startup is 200", lambda: here.get("/startup")[0] == 200)
        assert here.get("/ready")[0] == 503
        with here.start("vllm") as vllm:
            here.until("/ready is 200", lambda: here.get("/ready")[0] == 200, limit_s=120)
            assert here.get("/status")[1]["log"] not in {None, "none"}
            served = here.get("/openapi.json")[1]["paths"]
            for container, port in (("warmup", here.port), ("vllm", here.engine_port)):
                for probe in probes(container):
                    here.until(f"{probe} is 200", lambda: here.get(probe, port)[0] == 200)  # noqa: B023
                    assert container == "vllm" or probe in served
            given = (tmp_path / "arguments").read_text().splitlines()
            assert given == ["serve", *containers(BASE)["vllm"]["args"]]
            assert "warmup_fence" in here.log
            here.until("both have all of it", lambda: here.console("vllm") == here.log)
            assert KEY not in here.log + here.console("warmup")

            # Deletion: both are told at once, but vLLM only after its preStop.
            os.kill(sidecar.pid, signal.SIGTERM)
            here.until("the gate is gone", lambda: here.get("/ready")[0] != 200)
            assert here.get("/health", here.engine_port)[0] == 200
            here.until("the sidecar has ended", lambda: sidecar.code is not None)
            assert sidecar.code == 0
            os.kill(vllm.pid, signal.SIGTERM)
            here.until("vLLM has ended", lambda: vllm.code is not None)
            assert vllm.code == 0


def probes(container: str) -> list[str]:
    spec = containers(BASE)[container]
    return [spec[kind]["httpGet"]["path"] for kind in spec if kind.endswith("Probe")]


@pytest.mark.timeout(180)
def test_native_sidecar_lets_the_engine_start(tmp_path: Path) -> None:
    """Its startup probe succeeds with no engine there; by /ready it never would."""
    here = Pod(NATIVE, tmp_path)
    with here.start("warmup"):
        probe = containers(NATIVE)["warmup"]["startupProbe"]["httpGet"]["path"]
        here.until("started", lambda: here.get(probe)[0] == 200)
        assert here.get("/ready")[0] == 503


ENDS = """\
#!/bin/sh
trap 'echo told to end; sleep 0.3; echo last line; exit 7' TERM
echo started
while :; do sleep 0.05; done
"""


def test_start_script_keeps_code_and_last_line(tmp_path: Path) -> None:
    """SIGTERM reaches vLLM, its exit code is the container's, its last line is in both logs."""
    here = Pod(BASE, tmp_path)
    with here.start("vllm", ENDS) as vllm:
        here.until("it runs", lambda: "started" in here.log)
        os.kill(vllm.pid, signal.SIGTERM)
        here.until("it has ended", lambda: vllm.code is not None)
        assert vllm.code == 7
    assert here.log == here.console("vllm") == "started\ntold to end\nlast line\n"


def test_start_script_takes_over_the_end(tmp_path: Path) -> None:
    """A vLLM that ends by itself ends the container, with its code; the log goes on, not anew."""
    here = Pod(BASE, tmp_path)
    for _ in range(2):
        with here.start("vllm", "#!/bin/sh\necho crashed >&2\nexit 3\n") as vllm:
            here.until("it has ended", lambda: vllm.code is not None)
            assert vllm.code == 3
    assert here.log == "crashed\n" * 2


CHATTY = """\
#!/bin/sh
trap 'exit 0' TERM
while :; do echo 0123456789; sleep 0.01; done
"""


def test_start_script_bounds_the_log(tmp_path: Path) -> None:
    """The file is emptied when it is full, and written on from its start."""
    here = Pod(BASE, tmp_path)
    bounds: Mapping[str, str] = {"LOG_MAX_BYTES": "500", "LOG_CHECK_S": "0.1"}
    with here.start("vllm", CHATTY, **bounds):
        here.until("there is more than a file may hold", lambda: len(here.console("vllm")) > 3000)
        here.until("the file is small again", lambda: len(here.log) < 500)
        assert "\0" not in here.log


def test_start_script_without_key(tmp_path: Path) -> None:
    """A key file that can't be read ends the container; vLLM never runs without its key."""
    here = Pod(BASE, tmp_path)
    (here.volume("api-key") / "api-key").unlink()
    with here.start("vllm") as vllm:
        here.until("it has ended", lambda: vllm.code is not None)
        assert vllm.code == 2
    assert "api-key" in here.console("vllm")
    assert not (tmp_path / "arguments").exists()

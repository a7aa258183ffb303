"""A real vLLM server on the CPU as a context manager.

    with VllmServer(Installation.find(), tmp_path, model="qwen3") as engine:
        httpx.get(f"{engine.url}/v1/models")

The server is started in a process group of its own and the whole group is ended: SIGKILL of the
API server alone would leave its EngineCore behind. Healthy after 15-25 s on two cores, about
1 GiB of memory. `VLLM_CPU_CI_ENV=1` (the default here: `cold=True`) leaves out vLLM's own warm-up
at start, so that every start is cold again.
"""

import os
import signal
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.live.process import Process, free_port
from tests.live.sidecar import wait_until

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(os.environ.get("WARMUP_TEST_VLLM", ROOT / ".vllm"))
MODELS = Path(os.environ.get("WARMUP_TEST_MODELS", ROOT / ".models"))

SERVED_NAME = "tiny"
MAX_MODEL_LEN = 8192
START_LIMIT_S = 300.0
"""A start takes 15-25 s on an idle machine; two cores may be shared."""


class NotInstalled(Exception):
    """There is no real vLLM here; says how to get one."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where the real vLLM and the tiny models are."""

    python: Path
    version: str
    """Of the one that the venv holds."""
    overlays: Mapping[str, Path]
    """Other versions that share its torch: version → folder that goes before it on the path."""
    models: Path

    @classmethod
    def find(cls) -> Self:
        """Raises NotInstalled where `make vllm` has not been run."""
        python = HOME / "bin" / "python"
        # the metadata-only distribution `vllm`, which tests/live/install.py writes last
        known = sorted(HOME.glob("lib/python3*/site-packages/vllm-*.dist-info"))
        if not python.exists() or not known:
            raise NotInstalled(f"no real vLLM in {HOME.name}/: `make vllm` builds one (2.5 GB)")
        if not (MODELS / "qwen3" / "config.json").exists():
            raise NotInstalled(f"no tiny models in {MODELS.name}/: `make vllm` makes them")
        overlays = {
            folder.name: folder
            for folder in sorted((HOME / "overlays").glob("*"))
            if any(folder.glob("vllm-*.dist-info"))
        }
        return cls(python, known[0].name.split("-")[1].split("+")[0], overlays, MODELS)


class VllmServer:
    """One real server on an ephemeral port of loopback; `start` again after `kill` or `stop`."""

    def __init__(
        self,
        installation: Installation,
        folder: Path,
        *,
        model: str = "qwen3",
        version: str | None = None,
        served_name: str = SERVED_NAME,
        max_model_len: int = MAX_MODEL_LEN,
        kv_cache_memory: str = "64M",
        api_key: str | None = None,
        cold: bool = True,
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.installation = installation
        self.version = version or installation.version
        self.served_name = served_name
        self.api_key = api_key
        self.log_path = folder / "vllm.log"
        self._folder = folder
        self._port = free_port()
        self._process: Process | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._command = [
            *(str(installation.python), "-m", "vllm.entrypoints.cli.main", "serve"),
            str(installation.models / model),
            *("--served-model-name", served_name, "--host", "127.0.0.1", "--port", str(self._port)),
            *("--max-model-len", str(max_model_len), "--kv-cache-memory-bytes", kv_cache_memory),
            *("--distributed-executor-backend", "uni"),
            *(("--api-key", api_key) if api_key else ()),
            *flags,
        ]
        self._env = dict(env or {})
        if cold:
            self._env["VLLM_CPU_CI_ENV"] = "1"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the API server, which leads the process group."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything written so far, over all starts."""
        return self.log_path.read_text(errors="replace")

    def start(self, *, wait: bool = True, limit_s: float = START_LIMIT_S) -> None:
        """Start it on the same port as before; with `wait`, return once /health answers 200."""
        assert self._process is None, "the server runs already"
        # short: Unix sockets are made in it, whose paths may have 107 bytes at most
        self._scratch = tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True)
        self._process = Process(
            self._command,
            self.log_path,
            env=self._environment(Path(self._scratch.name)),
            cwd=self._folder,
        )
        if wait:
            try:
                self.wait_healthy(limit_s)
            except BaseException:
                self.kill()
                raise

    def wait_healthy(self, limit_s: float = START_LIMIT_S) -> None:
        """Raises AssertionError with the log's end if it dies or is not healthy in time."""
        assert self._process is not None, "the server was not started"
        process = self._process

        def is_healthy() -> bool:
            assert process.code is None, f"vLLM ended with {process.code}"
            return self._answers()

        try:
            wait_until("vLLM is healthy", is_healthy, limit_s)
        except AssertionError as problem:
            tail = "\n".join(self.log.splitlines()[-25:])
            raise AssertionError(f"{problem}\n{tail}") from None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False

    def stop(self, limit_s: float = 20.0) -> None:
        """SIGTERM, as an orchestrator would; SIGKILL to what is left after `limit_s`."""
        self._end(signal.SIGTERM, limit_s)

    def kill(self) -> None:
        """SIGKILL to the whole group: the crash of an engine."""
        self._end(signal.SIGKILL, 10.0)

    def _end(self, how: signal.Signals, limit_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.end(how, limit_s=limit_s)
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _environment(self, scratch: Path) -> dict[str, str]:
        overlay = self.installation.overlays.get(self.version)
        if overlay is None and self.version != self.installation.version:
            raise NotInstalled(f"no vLLM {self.version} here: `make vllm` builds one")
        keep = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG")}
        return {
            **keep,
            "HOME": str(self._folder),
            **({"PYTHONPATH": str(overlay)} if overlay else {}),
            "TMPDIR": str(scratch),
            "VLLM_RPC_BASE_PATH": str(scratch),
            "VLLM_CACHE_ROOT": str(self._folder / "cache"),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # one process less: on two cores the worker's spinning bunches the stream's chunks
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            **self._env,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

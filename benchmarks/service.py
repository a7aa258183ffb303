"""What the sidecar costs as a process, against the simulated engine.

    python -m benchmarks.service

Start to /health, memory when idle, CPU of one `check`, a plan of a thousand cells, and how long
the default grid takes to be warm beside what its cold costs and warm passes alone would take. The
bounds are the project's; a broken one makes the exit code 1.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.plan import expand
from sidecar.core.grid.shapes import parse
from tests.live.process import Process, free_port
from tests.live.sidecar import Sidecar, environment

ROOT = Path(__file__).resolve().parents[1]
REPEAT = 5
THOUSAND = """
grid:
  concurrency: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
  prompt_tokens: [16, 17, 32, 33, 64, 65, 128, 129, 256, 257]
  output_tokens: [16, 24, 32, 48, 64]
  variants: [completions, chat]
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    what: str
    value: float
    unit: str
    bound: float

    @property
    def holds(self) -> bool:
        return self.value <= self.bound

    def __str__(self) -> str:
        mark = "ok" if self.holds else "BROKEN"
        return f"{self.what:<52} {self.value:9.3f} {self.unit:<4} ≤ {self.bound:g} {mark}"


@contextmanager
def simulated(folder: Path) -> Iterator[str]:
    port = free_port()
    command = (sys.executable, "-m", "sidecar", "sim", "--port", str(port))
    with Process(command, folder / "engine.log"):
        yield f"http://127.0.0.1:{port}"


def start_to_health(folder: Path) -> Figure:
    """The median of a few starts, from exec to the first 200."""
    took = []
    for number in range(REPEAT):
        own = folder / f"start-{number}"
        own.mkdir()
        began = time.monotonic()
        with Sidecar("http://127.0.0.1:9", own, THOUSAND) as sidecar:
            assert sidecar.get("/health")
            took.append(time.monotonic() - began)
    return Figure("process start to /health 200, median", statistics.median(took), "s", 1.0)


def cost_of_check(url: str) -> Figure:
    """CPU, user and system, of the whole process; the least of a few."""
    costs = []
    for _ in range(REPEAT):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "sidecar", "check"]
        subprocess.run(
            command,
            env=environment({"WARMUP_CHECK_URL": f"{url}/ready"}),
            capture_output=True,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return Figure("CPU of one `vllm-warmup check`", 1000 * min(costs), "ms", 100.0)


def plan_of_a_thousand() -> Figure:
    shapes = parse(THOUSAND, "thousand")
    assert len(shapes.cells) == 1000
    facts = EngineFacts(max_model_len=8192, max_num_seqs=16, max_num_batched_tokens=2048)
    took = []
    for _ in range(REPEAT):
        began = time.monotonic()
        assert len(expand(shapes, facts).cells) == 1000
        took.append(time.monotonic() - began)
    return Figure("a plan of 1,000 cells, median", statistics.median(took), "s", 0.2)


def resident_mib(pid: int) -> float:
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )
    return int(line.split()[1]) / 1024


def time_to_warm(status: dict[str, Any]) -> Figure:
    """Beside cold costs + (2 + f) warm passes, f the share of looks that paid.

    A look's warm time is the least that any of its waves took, and what a wave took above it is
    its cold cost.
    """
    looks: dict[tuple[str, str], list[float]] = {}
    for cell in status["cells"]:
        for wave in cell["waves"]:
            looks.setdefault((cell["id"], wave["gait"]), []).append(wave["took_s"])
    warm_pass_s = sum(min(took) for took in looks.values())
    paid = [took for took in looks.values() if took[0] > min(took) + max(0.1, min(took))]
    cold_s = sum(sum(took) - len(took) * min(took) for took in paid)
    ideal_s = cold_s + (2 + len(paid) / len(looks)) * warm_pass_s
    what = f"time to warm, against {ideal_s:.1f} s of cold costs and warm passes"
    return Figure(what, status["warmup_s"] / ideal_s, "×", 1.5)


def main() -> int:
    figures = [plan_of_a_thousand()]
    with tempfile.TemporaryDirectory(prefix="warmup-bench-") as scratch:
        folder = Path(scratch)
        figures.append(start_to_health(folder))
        shapes = (ROOT / "shapes" / "default.yaml").read_text()
        with simulated(folder) as url, Sidecar(url, folder, shapes) as sidecar:
            sidecar.wait_for("ready", limit_s=300)
            status = sidecar.get("/status")
            assert status
            figures.append(time_to_warm(status))
            time.sleep(5)
            figures.append(
                Figure("resident memory after that", resident_mib(sidecar.pid), "MiB", 80.0)
            )
            figures.append(cost_of_check(sidecar.url))
    for figure in figures:
        print(figure)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())

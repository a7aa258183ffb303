"""`make demo`: an engine, the sidecar beside it, the grid being warmed, the gate opening.

    python -m benchmarks.demo --engine sim     about 20 s
    python -m benchmarks.demo --engine vllm    a real vLLM on the CPU, started cold; about a minute

Starts both as processes of their own on ephemeral ports of loopback, shows what anybody could see
over HTTP, and stops them again.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tests.live.process import Process, free_port
from tests.live.sidecar import Sidecar
from tests.live.vllm import Installation, NotInstalled, VllmServer

SHAPES = """
cells:
  - {concurrency: 1, prompt_tokens: 350, output_tokens: 8}
  - {concurrency: 1, prompt_tokens: 513, output_tokens: 8}
  - {concurrency: 4, prompt_tokens: 48, output_tokens: 8}
  - {concurrency: 1, prompt_tokens: 128, output_tokens: 8, variant: chat}
  - {concurrency: 1, prompt_tokens: 64, output_tokens: 8, variant: logprobs}
variants:
  logprobs: {logprobs: 1}
engine: {max_num_batched_tokens: 2048}
"""
LIMIT_S = 300.0
EVERY_S = 0.2


@contextmanager
def simulated(folder: Path) -> Iterator[str]:
    """`vllm-warmup sim`; its URL."""
    port = free_port()
    command = (sys.executable, "-m", "sidecar", "sim", "--host", "127.0.0.1", "--port", str(port))
    with Process(command, folder / "engine.log"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def real(folder: Path) -> Iterator[str]:
    """A real vLLM, not waited for: that is the sidecar's work."""
    flags = ("--max-num-batched-tokens", "2048")
    engine = VllmServer(Installation.find(), folder, model="qwen3_moe", flags=flags)
    engine.start(wait=False)
    try:
        yield engine.url
    finally:
        engine.stop()


def picture(status: dict[str, Any] | None, began: float) -> RenderableType:
    """What /status says, for a terminal."""
    clock = f"{time.monotonic() - began:5.1f} s"
    if status is None:
        return Text(f"{clock}  the sidecar starts")
    gate = Text(f"{clock}  /ready ")
    gate.append(
        "200 OPEN" if status["ready"] else "503 shut",
        style="bold green" if status["ready"] else "bold red",
    )
    gate.append(f"  {status['state']}")
    if progress := status["progress"]:
        done, total = progress["cells_done"], progress["cells_total"]
        gate.append(f"  {done}/{total} cells, pass {progress['pass']}")
    lines: list[RenderableType] = [gate]
    lines += [Text(f"         {reason}", style="dim") for reason in status["reasons"][:2]]
    if status["cells"]:
        lines.append(table(status["cells"]))
    return Group(*lines)


def table(cells: list[dict[str, Any]]) -> Table:
    """Cold against warm: each cell and gait with every first-token time it has had."""
    shown = Table(box=None, padding=(0, 2))
    for head in ("cell", "gait", "verdict"):
        shown.add_column(head, no_wrap=True)
    shown.add_column("slowest first token of each wave, s")
    for cell in cells:
        for figures in cell["figures"]:
            waves = [wave for wave in cell["waves"] if wave["gait"] == figures["gait"]]
            times = Text(" ").join(figure(wave["f_s"], figures["baseline_f_s"]) for wave in waves)
            verdict = Text(cell["verdict"], style=COLOURS.get(cell["verdict"], ""))
            shown.add_row(cell["id"], figures["gait"], verdict, times)
    return shown


COLOURS = {"warm": "green", "passed": "green", "not_yet": "yellow", "unknown": "magenta"}


def figure(f_s: float | None, baseline_s: float | None) -> Text:
    if f_s is None:
        return Text("failed", style="red")
    is_cold = baseline_s is not None and f_s > baseline_s + max(0.1, baseline_s)
    return Text(f"{f_s:.3f}", style="bold red" if is_cold else "green")


def _stage(status: dict[str, Any]) -> str:
    return str((status["state"], status["progress"]))


def watch(sidecar: Sidecar, console: Console) -> bool:
    """Show it until the gate is open; whether it opened in time."""
    began = time.monotonic()
    told = ""
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        while time.monotonic() - began < LIMIT_S:
            status = sidecar.get("/status")
            if console.is_terminal:
                live.update(picture(status, began))
            elif status and not status["ready"] and (now := _stage(status)) != told:
                told = now
                console.print(picture({**status, "cells": []}, began))
            if status and status["ready"]:
                break
            time.sleep(EVERY_S)
    if not console.is_terminal:
        console.print(picture(status, began))
    return bool(status and status["ready"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=["sim", "vllm"], default="sim")
    engine = {"sim": simulated, "vllm": real}[parser.parse_args().engine]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="warmup-demo-") as scratch:
        folder = Path(scratch)
        try:
            with engine(folder) as url:
                console.print(f"engine   {url}\n")
                with Sidecar(url, folder, SHAPES) as sidecar:
                    opened = watch(sidecar, console)
                    console.print(f"\n$ curl {sidecar.url}/ready")
                    console.print_json(data=sidecar.ready())
        except NotInstalled as problem:
            console.print(f"demo: {problem}")
            return 2
        except KeyboardInterrupt:
            console.print("demo: stopped")
            return 130
    console.print("The gate opened. Engine and sidecar are stopped." if opened else "NOT opened.")
    return 0 if opened else 1


if __name__ == "__main__":
    sys.exit(main())

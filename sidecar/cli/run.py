"""`serve` and `once`."""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from sidecar.cli.logformat import LineFormatter
from sidecar.cli.settings import settings_of
from sidecar.core.errors import ConfigError, ExitCode
from sidecar.core.watch.gate import Snapshot, State

if TYPE_CHECKING:
    from sidecar.core.report import Report
    from sidecar.running import Outcome
    from sidecar.settings import Settings

_ADOPTED = "adopted: warm since the run that is reported, nothing was sent"


def serve(options: argparse.Namespace) -> int:
    """Warm the engine, keep the gate, until a signal."""
    settings = settings_of(options)
    _end_at_sigterm(ExitCode.WARM)
    from sidecar import running
    from sidecar.adapters.shapesfile import read

    shapes = read(settings.shapes)
    _log_to_stderr(settings.log_level, settings.api_key)
    with asyncio.Runner() as runner:
        code = runner.run(running.serve(settings, shapes))
        _leave(code)
    return code


def once(options: argparse.Namespace) -> int:
    """Warm the engine once; the report goes to stdout, progress to stderr."""
    settings = settings_of(options)
    _end_at_sigterm(128 + signal.SIGTERM)
    from sidecar import running
    from sidecar.adapters.shapesfile import read
    from sidecar.core import report

    shapes = read(settings.shapes)
    on_terminal = sys.stderr.isatty()
    # The progress says what the log would: on a terminal only trouble is logged beside it.
    level = "warning" if settings.log_level == "info" else settings.log_level
    _log_to_stderr(level, settings.api_key)
    with _Bar() if on_terminal else _Lines() as view:
        outcome, runner = None, asyncio.Runner()
        try:
            outcome = runner.run(running.once(settings, shapes, show=view.show))
        finally:
            if outcome is None:
                runner.close()
    if settings.has_names:
        _print_each(_with_kept(settings, outcome), as_json=options.json)
    elif outcome.report is not None:
        print(
            report.to_json(outcome.report, indent=2)
            if options.json
            else report.to_text(outcome.report)
        )
    elif outcome.exit_code == ExitCode.WARM:
        _print_adopted(options)
    if outcome.exit_code != ExitCode.WARM:
        for reason in outcome.reasons or ("not warm",):
            print(f"vllm-warmup: {reason}", file=sys.stderr)
    _leave(outcome.exit_code)
    return outcome.exit_code


def _print_each(reports: "Mapping[str, Report]", *, as_json: bool) -> None:
    """One document for several engines, or their tables one after another."""
    from sidecar.core import report

    if as_json:
        each = {name: json.loads(report.to_json(one)) for name, one in reports.items()}
        print(json.dumps({"engines": each}, indent=2))
        return
    for name, one in reports.items():
        print(f"== {name}\n{report.to_text(one)}\n")


def _with_kept(settings: "Settings", outcome: "Outcome") -> "Mapping[str, Report]":
    """A report of each, in their order; of an engine that was found warm by a verdict that is
    kept, that of its warm-up."""
    from sidecar.adapters.statefiles import last_report

    each = dict(outcome.reports)
    for name in outcome.adopted:
        assert settings.state_dir is not None  # it was kept there
        print(f"{name}: {_ADOPTED}", file=sys.stderr)
        try:
            each[name] = last_report(settings.state_dir / name)
        except ConfigError as missing:  # a verdict without its report is as warm
            print(f"vllm-warmup: {missing}", file=sys.stderr)
    return {engine.name: each[engine.name] for engine in settings.engines if engine.name in each}


def _print_adopted(options: argparse.Namespace) -> None:
    """The engine was found warm by a verdict that is kept: the report is that of its warm-up."""
    from sidecar.cli import files

    print(_ADOPTED, file=sys.stderr)
    try:
        files.print_last(options)
    except ConfigError as missing:  # a verdict without its report is as warm
        print(f"vllm-warmup: {missing}", file=sys.stderr)


def _end_at_sigterm(code: int) -> None:
    """At once, until the event loop listens for it, which is long where a folder hangs that is
    looked at first. The first process of a container is not ended by a signal that it has no
    handler for."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))


def _leave(code: int) -> None:
    """End the process now. What had to be done is done: the gate is shut, every file is written.

    An orderly end would wait for threads, and one that looks up a name while the resolver hangs,
    or writes to a network share that does, can be neither stopped nor waited for.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _log_to_stderr(level: str, key: SecretStr | None) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(None if key is None else key.get_secret_value()))
    logging.basicConfig(handlers=[handler], level=level.upper())
    for chatty in ("httpx", "httpcore", "uvicorn", "asyncio"):
        logging.getLogger(chatty).setLevel("DEBUG" if level == "debug" else "WARNING")


def _headline(snapshot: Snapshot) -> str:
    progress = snapshot.progress
    if snapshot.state is State.WARMING and progress is not None:
        waves = "wave" if progress.waves_left == 1 else "waves"
        eta = "" if snapshot.eta_s is None else f", about {snapshot.eta_s:.0f} s left"
        return (
            f"warming: pass {progress.passes}, {progress.cells_done} of {progress.cells_total} "
            f"cells done, at least {progress.waves_left} {waves} to go{eta}"
        )
    reasons = "; ".join(snapshot.reasons)
    return f"{snapshot.state}: {reasons}" if reasons else str(snapshot.state)


class _Lines:
    """Progress for a log: a line whenever something for people has changed."""

    def __init__(self, write: Callable[[str], Any] | None = None) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))
        self._told: tuple[object, ...] = ()

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        key: tuple[object, ...] = (snapshot.state, snapshot.reasons)
        if snapshot.state is State.WARMING and progress is not None:
            # A fifth of the cells at a time; not the waves or seconds left, which change with
            # every wave.
            fifth = 5 * progress.cells_done // max(1, progress.cells_total)
            key = (snapshot.state, progress.passes, fifth)
        if key != self._told:
            self._told = key
            self._write(_headline(snapshot))


class _Bar:
    """Progress for a terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        # No refresh by itself: its thread would wake up amid the waves that are being timed.
        self._bar = Progress(
            BarColumn(bar_width=30),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "_Bar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, snapshot: Snapshot) -> None:
        progress = snapshot.progress
        self._bar.update(
            self._task,
            description=_headline(snapshot)[:200].replace("[", r"\["),
            completed=progress.cells_done if progress else 0,
            total=progress.cells_total if progress else None,
            refresh=True,
        )

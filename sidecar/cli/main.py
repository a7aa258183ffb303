"""The command line: reads flags, calls one command, maps what went wrong to an exit code.

Nothing heavy is imported before it is known which command runs: `serve` answers its first probe
within a second, and `--help` at once.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from sidecar.cli.parser import parser_of_all
from sidecar.core.errors import ExitCode, WarmupError

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code; one sentence on stderr says what was wrong."""
    options, unknown = parser_of_all().parse_known_args(list(arguments) or ["--help"])
    if unknown:
        options.parser.refuse(unknown[0])
    try:
        code = _command(options.command)(options)
        sys.stdout.flush()
    except WarmupError as problem:
        return _tell(problem)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `vllm-warmup plan | head`: the reader has enough. Nothing more may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as bug:
        problem_inside = _inside(bug)
        if problem_inside is not None:
            return _tell(problem_inside)
        # Where there is no such flag (`sim`, `shapes check`), the traceback comes at once.
        if getattr(options, "log_level", "debug") == "debug":
            raise
        print(
            f"vllm-warmup: a bug: {type(bug).__name__}: {bug}; "
            "run it with --log-level debug for the traceback, and report it",
            file=sys.stderr,
        )
        return ExitCode.BUG
    return code


def _tell(problem: WarmupError) -> int:
    print(f"vllm-warmup: {problem}", file=sys.stderr)
    return problem.exit_code


def _inside(error: BaseException) -> WarmupError | None:
    """The problem that a task group ended with, if there is nothing else in it."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, WarmupError) else None


def _command(name: str) -> Command:
    # Imported here, one by one: see the head of this module.
    if name in ("serve", "once"):
        from sidecar.cli import run

        return run.serve if name == "serve" else run.once
    if name == "plan":
        from sidecar.cli.plan import plan

        return plan
    if name == "sim":
        from sidecar.cli.sim import sim

        return sim
    if name == "state":
        from sidecar.cli.state import state

        return state
    from sidecar.cli import files

    return files.report if name == "report" else files.shapes

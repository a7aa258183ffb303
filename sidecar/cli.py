"""The command line: reads flags, calls one command, maps what went wrong to an exit code.

Nothing heavy is imported before it is known which command runs: `serve` answers its first probe
within a second, and `--help` at once.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from sidecar import __version__
from sidecar.core.errors import ExitCode, WarmupError
from sidecar.core.nearest import suggest

EXIT_CODES = """\
exit codes:
  0  warm (serve: ended by SIGTERM)       3  not converged: not warm within the budget
  1  a bug of this program                4  engine unavailable, or it refuses
  2  configuration: flag, variable, file  5  evidence missing where it was required
  128 + n: `once` was ended by signal n
"""

DESCRIPTION = """\
Warms a vLLM server before its users come, proves it, and only then opens the readiness gate.
"""

EPILOG = f"""\
examples:
  vllm-warmup serve --engine-url http://vllm:8000        # the sidecar: /ready on port 8900
  vllm-warmup once --engine-url http://localhost:8000    # warm once, exit 0 when warm
  vllm-warmup plan --shapes my-shapes.yaml               # what would be sent, and what it costs

{EXIT_CODES}"""

SERVE = """\
examples:
  vllm-warmup serve --engine-url http://vllm:8000
  vllm-warmup serve --shapes /shapes/mine.yaml --state-dir /state --ready-file /run/ready
  WARMUP_ENGINE_URL=http://vllm:8000 WARMUP_API_KEY_FILE=/run/secrets/key vllm-warmup serve
"""

ONCE = """\
examples:
  vllm-warmup once --engine-url http://localhost:8000 && ./let-users-in
  vllm-warmup once --shapes tiny --json > report.json
"""

PLAN = """\
examples:
  vllm-warmup plan --shapes default
  vllm-warmup plan --shapes my-shapes.yaml --engine-url http://localhost:8000
  vllm-warmup plan --prefill-tokens-per-s 2000 --decode-tokens-per-s 25 --json
"""

REPORT = """\
examples:
  vllm-warmup report --state-dir /state
  vllm-warmup report --state-dir /state --json
"""

SHAPES = """\
examples:
  vllm-warmup shapes check my-shapes.yaml other.yaml
  vllm-warmup shapes list
  vllm-warmup shapes schema > shapes/schema.json
"""

_FORMATTER = argparse.RawDescriptionHelpFormatter

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit code; one sentence on stderr says what was wrong."""
    options, unknown = _parser().parse_known_args(list(arguments) or ["--help"])
    if unknown:
        options.parser.refuse(unknown[0])
    try:
        code = _command(options.command)(options)
        sys.stdout.flush()
    except WarmupError as problem:
        print(f"vllm-warmup: {problem}", file=sys.stderr)
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `vllm-warmup plan | head`: the reader has enough. Nothing more may be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as bug:
        if getattr(options, "log_level", None) == "debug":
            raise
        print(
            f"vllm-warmup: a bug: {type(bug).__name__}: {bug}; "
            "run it with --log-level debug for the traceback, and report it",
            file=sys.stderr,
        )
        return ExitCode.BUG
    return code


def _command(name: str) -> Command:
    # Imported here, one by one: see the head of this module.
    if name in ("serve", "once"):
        from sidecar import cli_run

        return cli_run.serve if name == "serve" else cli_run.once
    if name == "plan":
        from sidecar import cli_plan

        return cli_plan.plan
    from sidecar import cli_files

    return cli_files.report if name == "report" else cli_files.shapes


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and the nearest right flag; the usage is in --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.CONFIG, f"{self.prog}: {message}; see {self.prog} --help\n")

    def refuse(self, unknown: str) -> NoReturn:
        """End because of an argument that none of its commands knows."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        self.error(f'no argument "{unknown}" here{suggest(unknown.split("=")[0], flags)}')


def _parser() -> _Parser:
    parser = _Parser(
        prog="vllm-warmup",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vllm-warmup {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str, examples: str) -> _Parser:
        made = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=examples,
            formatter_class=_FORMATTER,
            allow_abbrev=False,
        )
        made.set_defaults(parser=made)
        return made

    serve = command(
        "serve", "warm the engine and keep its readiness gate", f"{SERVE}\n{EXIT_CODES}"
    )
    _engine_flags(serve)
    _run_flags(serve)
    serve.add_argument("--host", help="address to listen on (0.0.0.0)")
    serve.add_argument("--port", help="port to listen on (8900)")

    once = command(
        "once", "warm the engine once and exit 0 when it is warm", f"{ONCE}\n{EXIT_CODES}"
    )
    _engine_flags(once)
    _run_flags(once)
    once.add_argument("--json", action="store_true", help="the report as JSON on stdout")

    plan = command(
        "plan", "print what would be sent, what does not fit and why, and the cost", PLAN
    )
    _engine_flags(plan)
    _plan_flags(plan)

    command("check", "exit 0 if a sidecar's /ready says 200, else 1 (for HEALTHCHECK)", "")

    report = command("report", "print the last run's report from the state folder", REPORT)
    _settings_flags(report)
    report.add_argument("--state-dir", metavar="DIR", help="the folder (WARMUP_STATE_DIR)")
    report.add_argument("--json", action="store_true", help="as JSON")

    _shapes_command(command("shapes", "check shapes files, list the shipped ones", SHAPES))
    return parser


def _settings_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--settings", metavar="FILE", help="YAML file of settings, below flags and environment"
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (info)")


def _engine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "engine and shapes", "Each flag is also a variable: --engine-url is WARMUP_ENGINE_URL."
    )
    group.add_argument("--engine-url", metavar="URL", help="the vLLM server (http://vllm:8000)")
    group.add_argument("--model", metavar="NAME", help="served model name (the first one listed)")
    group.add_argument(
        "--shapes", metavar="FILE", help="shapes file, or the name of a shipped one (default)"
    )
    # No --api-key: a key on a command line is shown by `ps` to everybody.
    group.add_argument("--api-key-file", metavar="FILE", help="file that holds the bearer key")
    group.add_argument("--tls-ca-file", metavar="FILE", help="CA certificates to trust")
    group.add_argument(
        "--no-tls-verify",
        dest="tls_verify",
        action="store_const",
        const=False,
        help="don't check the engine's certificate",
    )
    _settings_flags(parser)


def _run_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ready-file", metavar="FILE", help="a file that exists while ready")
    parser.add_argument("--state-dir", metavar="DIR", help="keeps the verdict over a restart")
    parser.add_argument(
        "--start-deadline-s", metavar="SECONDS", help="how long to wait for the engine (3600)"
    )
    parser.add_argument("--seed", metavar="N", help="repeat a run's prompts and order")


def _plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the plan as JSON on stdout")
    for name, what in (("prefill", "prompt"), ("decode", "output")):
        parser.add_argument(
            f"--{name}-tokens-per-s",
            metavar="N",
            type=_positive,
            help=f"assumed speed, {what} tokens per second" + " of one stream" * (name == "decode"),
        )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f'"{text[:40]}" is no number above 0; give one')
    return value


def _shapes_command(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="check files; exit 2 if one is wrong")
    check.add_argument("files", nargs="+", metavar="FILE")
    actions.add_parser("list", help="the shipped files")
    actions.add_parser("schema", help="the JSON schema of a shapes file")

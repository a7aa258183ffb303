"""What can be typed: commands, flags, help with examples to paste."""

import argparse
from collections.abc import Callable
from typing import NoReturn

from sidecar import __version__
from sidecar.cli.examples import (
    DESCRIPTION,
    EPILOG,
    EXIT_CODES,
    ONCE,
    PLAN,
    REPORT,
    SERVE,
    SHAPES,
    SIM,
    STATE,
    SUGGEST,
    VARIABLES,
)
from sidecar.core.errors import ExitCode
from sidecar.core.nearest import suggest

_LONGEST_WATCH_S = 86_400
_FORMATTER = argparse.RawDescriptionHelpFormatter


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and the nearest right flag; the usage is in --help."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.CONFIG, f"{self.prog}: {message}; see {self.prog} --help\n")

    def refuse(self, unknown: str) -> NoReturn:
        """End because of an argument that none of its commands knows."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        self.error(f'no argument "{unknown}" here{suggest(unknown.split("=")[0], flags)}')


def parser_of_all() -> Parser:
    """The parser. A parsed line has `command`, and `parser` for further complaints."""
    parser = Parser(
        prog="vllm-warmup",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"vllm-warmup {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str, examples: str) -> Parser:
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
        "serve",
        "warm the engine and keep its readiness gate",
        f"{VARIABLES}\n{SERVE}\n{EXIT_CODES}",
    )
    _engine_flags(serve)
    _run_flags(serve)
    serve.add_argument("--host", help="address to listen on (0.0.0.0)")
    serve.add_argument("--port", help="port to listen on (8900)")

    once = command(
        "once",
        "warm the engine once and exit 0 when it is warm",
        f"{VARIABLES}\n{ONCE}\n{EXIT_CODES}",
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
    _state_flags(report)
    report.add_argument("--json", action="store_true", help="as JSON")
    report.add_argument(
        "--suggest",
        action="store_true",
        help="cells to add to the shapes file, for what compiled while the gate was open",
    )

    _state_command(
        command("state", "show what the state folder remembers, clear cells held back", STATE)
    )
    _shapes_command(
        command("shapes", "check shapes files, list the shipped ones, suggest one", SHAPES)
    )
    _sim_flags(command("sim", "run a simulated vLLM engine with real cold costs", SIM))
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
        "--log", metavar="SOURCES", help="where the engine's log is: file:///path, docker:///name …"
    )
    parser.add_argument(
        "--log-prefix", metavar="TEXT", help="the engine's own VLLM_LOGGING_PREFIX, if it has one"
    )
    parser.add_argument(
        "--require-evidence", metavar="WHAT", help="log: shut (once: exit 5) without it (none)"
    )
    parser.add_argument(
        "--sleep-keeps-verdict",
        action="store_const",
        const=True,
        help="after a sleep of level 1 or a pause, open again without another warm-up",
    )
    parser.add_argument(
        "--start-deadline-s", metavar="SECONDS", help="how long to wait for the engine (3600)"
    )
    parser.add_argument("--seed", metavar="N", help="repeat a run's prompts and order")


def _plan_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir", metavar="DIR", help="take the speeds that the last warm-up measured"
    )
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


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= _LONGEST_WATCH_S:
        raise argparse.ArgumentTypeError(
            f'"{text[:40]}" is no number of seconds from 0 to {_LONGEST_WATCH_S}; give one'
        )
    return value


def _state_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state-dir", metavar="DIR", help="the folder (WARMUP_STATE_DIR)")
    parser.add_argument("--engine", metavar="NAME", help="which, of several (WARMUP_ENGINE_URLS)")


def _actions(parser: argparse.ArgumentParser) -> Callable[..., argparse.ArgumentParser]:
    """Makes the actions of a command, by name, text and examples."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str, examples: str = "") -> argparse.ArgumentParser:
        made = actions.add_parser(
            name, help=text, epilog=examples, formatter_class=_FORMATTER, allow_abbrev=False
        )
        made.set_defaults(parser=made)
        return made

    return action


def _state_command(parser: argparse.ArgumentParser) -> None:
    made = _actions(parser)
    for name, text in (
        ("show", "cells that are held back, and a wave in flight"),
        ("clear", "forget the cells that an engine died on"),
    ):
        action = made(name, text)
        _settings_flags(action)
        _state_flags(action)
        if name == "show":
            action.add_argument("--json", action="store_true", help="as JSON")


def _shapes_command(parser: argparse.ArgumentParser) -> None:
    made = _actions(parser)
    check = made("check", "check files; exit 2 if one is wrong")
    check.add_argument("files", nargs="+", metavar="FILE")
    suggestion = made(
        "suggest",
        "a shapes file that covers what a server with traffic has counted; exit 5: nothing",
        SUGGEST,
    )
    _engine_flags(suggestion)
    suggestion.add_argument(
        "--state-dir", metavar="DIR", help="the sidecar's: its own requests are taken off"
    )
    suggestion.add_argument(
        "--watch",
        type=_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to look at the running requests, once a second; 0: once (60)",
    )
    made("list", "the shipped files")
    made("schema", "the JSON schema of a shapes file")


def _sim_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--port", type=_whole(0, 65_535), default=8000, help="port; 0: any free one (8000)"
    )
    parser.add_argument("--model", default="sim", metavar="NAME", help="served model name (sim)")
    parser.add_argument(
        "--seed", type=_whole(0, 2**63 - 1), default=0, metavar="N", help="of all draws (0)"
    )
    parser.add_argument(
        "--time-scale", type=_positive, default=1.0, metavar="X", help="0.1: ten times as fast (1)"
    )
    parser.add_argument(
        "--start-delay-s", type=_seconds, metavar="SECONDS", help="refused for that long (3)"
    )
    parser.add_argument("--log-file", metavar="FILE", help="its log goes there, not to stdout")
    parser.add_argument("--rules", metavar="FILE", help="what is cold, instead of the built-in")
    parser.add_argument(
        "--axes",
        action="store_true",
        help="cold too: sampling, logprobs, structured output, prefix hits and other axes",
    )
    parser.add_argument(
        "--ranks", type=_whole(1, 64), default=1, metavar="N", help="data-parallel engines (1)"
    )
    parser.add_argument(
        "--draft-tokens", type=_whole(0, 64), default=0, metavar="K", help="speculation (0: none)"
    )
    parser.add_argument(
        "--prompt-tokens-details", action="store_true", help="usage tells cached tokens"
    )
    parser.add_argument("--api-key", metavar="KEY", help="ask for it, as vLLM does")
    parser.add_argument("--dev-mode", action="store_true", help="/server_info and other routes")
    parser.add_argument(
        "--log-iterations", action="store_true", help="a log line for each engine step"
    )
    parser.add_argument(
        "--sse-keep-alive-s", type=_positive, metavar="SECONDS", help="comments in waiting streams"
    )
    parser.add_argument(
        "--execute-timeout-s",
        type=_positive,
        metavar="SECONDS",
        help="a longer step kills the engine: 300 in a vLLM of several processes (never)",
    )
    for name, default in (("model-len", 8192), ("num-seqs", 16), ("num-batched-tokens", 2048)):
        parser.add_argument(
            f"--max-{name}", type=_whole(1, 10**7), metavar="N", help=f"as of vLLM ({default})"
        )


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > 20 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f'"{text[:40]}" is no whole number from {least} to {most}; give one'
            )
        return int(text)

    return parse

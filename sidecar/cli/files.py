"""`report` and `shapes`."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from sidecar.core.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from sidecar.core.report import Report


def report(options: argparse.Namespace) -> int:
    """Print the last report that the state folder holds, or the cells that its escapes ask for."""
    if not options.suggest:
        return print_last(options)
    from sidecar.core.learned import proposals, proposalstext

    found = _last(options)
    made = proposals.suggested(found)
    print(proposalstext.to_json(made) if options.json else proposalstext.to_yaml(found, made))
    return ExitCode.WARM


def print_last(options: argparse.Namespace) -> int:
    """The last report, as text or JSON."""
    from sidecar.core.report import to_json, to_text

    found = _last(options)
    print(to_json(found, indent=2) if options.json else to_text(found))
    return ExitCode.WARM


def _last(options: argparse.Namespace) -> "Report":
    from sidecar.adapters.statefiles import last_report
    from sidecar.cli.settings import state_folder

    return last_report(state_folder(options))


def shapes(options: argparse.Namespace) -> int:
    """`shapes check`, `shapes list`, `shapes schema`, `shapes suggest`."""
    if options.action == "suggest":
        from sidecar.cli.suggest import suggest

        return suggest(options)
    if options.action == "schema":
        from sidecar.core.grid.shapesfile import schema

        print(json.dumps(schema(), indent=2, ensure_ascii=False))
        return ExitCode.WARM
    if options.action == "list":
        from sidecar.adapters.shapesfile import shipped

        print("\n".join(f"{name}  {path}" for name, path in shipped().items()))
        return ExitCode.WARM
    return _check(options.files)


def _check(files: list[str]) -> int:
    """All files are looked at, also behind one that is wrong."""
    from sidecar.adapters.shapesfile import read

    code = ExitCode.WARM
    for name in files:
        try:
            found = read(name)
        except ConfigError as problem:
            print(f"vllm-warmup: {problem}", file=sys.stderr)
            code = ExitCode.CONFIG
        else:
            more = f", {found.derived.told}" if found.derived.told else ""
            more += ", a heaviest path" if found.heaviest else ""
            print(f"{name}: good: {len(found.cells)} cells{more}, digest {found.digest}")
    return code

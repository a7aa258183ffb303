"""`state show` and `state clear`."""

import argparse
import json
from pathlib import Path

from sidecar.core.errors import ExitCode
from sidecar.core.watch.deaths import Death, told


def state(options: argparse.Namespace) -> int:
    """Look at the state folder, or clear the cells that an engine died on."""
    from sidecar.adapters import statefiles
    from sidecar.cli.settings import state_folder

    folder = state_folder(options)
    if options.action == "show":
        _show(folder, as_json=options.json)
    elif statefiles.clear(folder):
        print("cleared: no cell is held back; a running sidecar goes on within seconds")
    else:
        print(f"nothing to clear in {folder}")
    return ExitCode.WARM


def _show(folder: Path, *, as_json: bool) -> None:
    from sidecar.adapters import statefiles

    deaths = statefiles.remembered(folder)
    wave = statefiles.wave_in_flight(folder)
    if as_json:
        in_flight = None if wave is None else wave.cell
        print(json.dumps({"deaths": [_row(d) for d in deaths], "in_flight": in_flight}, indent=2))
        return
    print("\n".join(told(death) for death in deaths) or "no cell is held back")
    if wave is not None:
        print(f"in flight, or when the sidecar was killed: {wave.cell} ({wave.gait})")


def _row(death: Death) -> dict[str, object]:
    return {
        "cell": death.cell,
        "gait": death.gait,
        "at": death.at,
        "model": death.model,
        "version": death.version,
        "cause": death.cause,
    }

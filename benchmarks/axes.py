"""Engines that are cold in one respect more: the axes of a grid beside concurrency and length.

    python benchmarks/axes.py                     # 1,000 engines for each axis
    python benchmarks/axes.py --axis drafts --engines 200 --seed 7000
    python benchmarks/axes.py --planted           # and requests that leave the axis out
    python benchmarks/axes.py --log               # by a judge that reads the engine's log too

For each engine a shapes file is written as its operator would, with the axis declared and without,
and read by the real reader (`axisdraws.py`). Asked is, for each axis:

* declared: is a cell called warm that still pays more than its τ, as in `truth.py`? Bound: none.
* declared: is a cell held back with nothing cold left? Bound: 1 % of engines.
* undeclared: does the user of the axis pay on the engine that the rest of the file has warmed?
  Bound: nine engines of ten, else the axis would be none.
* planted (`--planted`): requests that leave the axis out. Where nothing of a wave tells (a field
  of the body), the harness must see it; where a wave has to prove itself (a hit, drafts, a rank),
  the judge must: none of its cells is called warm falsely.

Reported and not judged: how many of the axis' own cells were proven. Exit code 1: a bound is
broken.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.axisdraws import AXES, draw_axis  # noqa: E402 - runs as a script too
from benchmarks.draws import Case  # noqa: E402
from benchmarks.forks import owed, settled  # noqa: E402
from benchmarks.planted import Blind  # noqa: E402
from benchmarks.truth import compare  # noqa: E402
from benchmarks.warming import CONVERGE, LISTENING, REAL, Method, Warmed, warm  # noqa: E402
from sidecar.core.grid.cells import Cell  # noqa: E402
from sidecar.core.grid.plan import expand  # noqa: E402
from sidecar.core.judge.verdict import Call  # noqa: E402

MAX_NOT_YET = 0.01
MIN_PAYS = 0.9

UNSEEN = ("sampling", "logprobs", "prompt_logprobs", "structured")
"""Axes of which the engine's answers show nothing that is judged."""

PROVING = ("context", "drafts", "rank")
MIN_PLANTED = 0.9


@dataclass(frozen=True, slots=True)
class AxisOutcome:
    """What came of one engine of an axis."""

    seed: int
    false_warm: tuple[str, ...] = ()
    false_not_yet: tuple[str, ...] = ()
    own: int = 0
    """Cells that are sent only because the axis is declared."""
    proven: int = 0
    """Of these, cells called warm."""
    pays: bool = False
    """Whether one of these pays more than τ where the axis was not declared."""


def examine(axis: str, seed: int, method: Method = REAL) -> AxisOutcome | None:
    """Warm this engine with the axis declared and without. None: nothing of the axis fits."""
    declared, undeclared = draw_axis(axis, seed)
    own = set(_sent(declared)) - set(_sent(undeclared))
    warmed = warm(declared, method)
    if not own or warmed is None:
        return None
    found = compare(warmed)
    proven = sum(c.cell in own and c.call is Call.WARM for c in warmed.verdict.cells)
    without = None if isinstance(method, Blind) else warm(undeclared, method)
    pays = without is not None and _pays(without, own)
    return AxisOutcome(
        seed, found.false_warm, found.false_not_yet, len(own), proven=proven, pays=pays
    )


def _sent(case: Case) -> list[Cell]:
    plan = expand(case.shapes, case.facts)
    return [cell for declared in plan.cells for cell in plan.on_each_rank(declared)]


def _pays(warmed: Warmed, users: set[Cell]) -> bool:
    engine = settled(warmed.engine)
    return any(
        owed(warmed.case, engine, cell, gait, CONVERGE).is_cold
        for cell in users
        for gait in cell.gaits
    )


def examine_all(
    axis: str, seeds: Sequence[int], method: Method = REAL, jobs: int = 1
) -> list[AxisOutcome]:
    """The outcomes of all seeds whose axis fits."""
    one = partial(examine, axis, method=method)
    if jobs == 1:
        found = [one(seed) for seed in seeds]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            found = list(pool.map(one, seeds, chunksize=4))
    return [outcome for outcome in found if outcome is not None]


def report(axis: str, outcomes: Sequence[AxisOutcome]) -> bool:
    """Print the figures of one axis; False: a bound is broken."""
    count = max(1, len(outcomes))
    false_warm = [o for o in outcomes if o.false_warm]
    not_yet = [o for o in outcomes if o.false_not_yet]
    pays = sum(o.pays for o in outcomes) / count
    own = max(1, sum(o.own for o in outcomes))
    proven = sum(o.proven for o in outcomes) / own
    print(
        f"{axis:<16} {len(outcomes):>5} engines  false warm {len(false_warm):>3}  "
        f"false not-yet {len(not_yet) / count:6.2%}  proven {proven:6.1%} of its cells  "
        f"undeclared it pays {pays:6.1%}",
        flush=True,
    )
    for outcome in false_warm[:5]:
        print(f"    false warm     seed {outcome.seed}: {outcome.false_warm[0]}")
    for outcome in not_yet[:3]:
        print(f"    false not-yet  seed {outcome.seed}: {outcome.false_not_yet[0]}")
    return not false_warm and len(not_yet) <= MAX_NOT_YET * count and pays >= MIN_PAYS


def report_planted(axis: str, outcomes: Sequence[AxisOutcome]) -> bool:
    """Print what came of requests without their axis; False: nobody noticed."""
    count = max(1, len(outcomes))
    false = sum(bool(o.false_warm) for o in outcomes) / count
    called = sum(o.proven for o in outcomes)
    if axis in UNSEEN:
        print(f"    planted        {Blind.name}: false warm in {false:.1%}", flush=True)
        return false >= MIN_PLANTED
    print(
        f"    planted        {Blind.name}: false warm in {false:.1%}, {called} of its cells "
        "called warm",
        flush=True,
    )
    return not false


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare verdict and truth, axis by axis.")
    parser.add_argument("--axis", choices=AXES, action="append", help="this one (all)")
    parser.add_argument("--seed", type=int, default=0, help="of the first engine (0)")
    parser.add_argument("--engines", type=int, default=1000, help="for each axis (1000)")
    parser.add_argument("--log", action="store_true", help="let the judge read the log too")
    parser.add_argument("--planted", action="store_true", help="run the planted judge too")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + max(1, options.engines))
    started_s = time.monotonic()
    holds, method = True, LISTENING if options.log else REAL
    for axis in options.axis or AXES:
        holds = report(axis, examine_all(axis, seeds, method, options.jobs)) and holds
        if options.planted and axis in (*UNSEEN, *PROVING):
            some = seeds[: max(1, len(seeds) // 4)]
            holds = report_planted(axis, examine_all(axis, some, Blind(), options.jobs)) and holds
    print(f"took             {time.monotonic() - started_s:.0f} s")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

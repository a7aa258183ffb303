"""Is the verdict true? Warms simulated engines in virtual time, and looks into their ledgers.

    python benchmarks/truth.py                       # 1,000 engines twice, about three minutes
    python benchmarks/truth.py --planted             # and the judges that are wrong on purpose
    python benchmarks/truth.py --seed 7000 --engines 300 --rules benchmarks/rules/moe.yaml

Each engine is drawn from its seed (`draws.py`): limits, speeds, noise, other users, faults, and
what is cold in it. The real `Judge`, `Passes` and `Pacer` warm it. When they are done, the state is
forked and each cell replayed in each of its gaits with ideal timing (`forks.py`): what such a wave
pays stands in the simulator's ledger, so that truth never comes from latency.

All of it is done twice: by latency and metrics alone, and with the engine's log as a leg of the
verdict (`logged.py`), which tells more or less, has gaps, and forged lines in it.

* false warm: a cell is called warm and a fork pays more than its τ. Bound: none.
* false not-yet: a cell keeps the gate shut at the end of the budget, and no fork of any cell pays.
  Bound: 1 % of engines.
* wrong gate states: the real conductor beside such an engine that restarts, hangs and is cut off
  (`gates.py`), one scenario for every twenty engines. Bound: none.
* planted judges: each must be false in 1 % of engines or more, else the draws are too gentle.

Reported and not judged: how often a cell stays unproven; the residual, the share of 20 replays of
each cell with random arrivals that pay more than τ; waves per look; the time to warm, less cold
costs, in warm passes (2 + f, f being the share of looks that paid).

`--rules FILE` takes the cold rules from a file instead: its format is told at the head of
`sidecar/simulator/cold.py`, examples lie in `benchmarks/rules/`. Exit code 1: a bound is broken,
2: bad arguments or a bad file.
"""

import argparse
import logging
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.draws import Case, draw  # noqa: E402 - runs as a script too
from benchmarks.forks import owed, owed_at_random, settled  # noqa: E402
from benchmarks.gates import scenario  # noqa: E402
from benchmarks.logged import could_be_whole  # noqa: E402
from benchmarks.planted import PLANTED  # noqa: E402
from benchmarks.warming import CONVERGE, LISTENING, REAL, Method, Warmed, warm  # noqa: E402
from sidecar.core.errors import ConfigError  # noqa: E402
from sidecar.core.grid.cells import Role  # noqa: E402
from sidecar.core.judge.verdict import Call, CellVerdict, Standing, opening  # noqa: E402
from sidecar.simulator.cold import Rule  # noqa: E402
from sidecar.simulator.rulesfile import MAX_FILE_CHARS, parse_rules  # noqa: E402

MAX_NOT_YET = 0.01
MIN_PLANTED = 0.01
RANDOM_REPLAYS = 20
GATES_EVERY = 20
T = TypeVar("T")
RESIDUAL_EVERY = 20
"""Of how many engines one is asked for its residual: twenty replays of every cell are slow."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one engine."""

    seed: int
    opened: bool = False
    proven: bool = False
    false_warm: tuple[str, ...] = ()
    false_not_yet: tuple[str, ...] = ()
    cells: int = 0
    unproven: int = 0
    unproven_owing: int = 0
    waves_per_look: float = 0.0
    passes_over: float | None = None
    """Warm passes taken beyond the 2 + f allowed; None where others or refusals took time too."""
    residual: tuple[int, int] = (0, 0)
    """Random replays that paid more than τ, of how many; of cells called warm."""
    whole_log: bool = False
    """Its log, where it is read, could be whole."""
    is_plain: bool = False
    """B is known, nobody else is there, no drafts, one rank: nothing but the waves decides."""


def examine(seed: int, rules: tuple[Rule, ...] = (), method: Method = REAL) -> Outcome | None:
    """Warm the engine of this seed and compare verdict and truth. None: nothing of it fits."""
    warmed = warm(draw(seed, rules), method)
    return None if warmed is None else compare(warmed)


def compare(warmed: Warmed) -> Outcome:
    """Verdict and truth of one engine."""
    told = {c.cell.id: c for c in warmed.verdict.cells}
    engine = settled(warmed.engine)
    owing: dict[str, str] = {}
    sent = (c for declared in warmed.plan.cells for c in warmed.plan.on_each_rank(declared))
    for cell in sent:
        for gait in cell.gaits:
            debt = owed(warmed.case, engine, cell, gait, CONVERGE)
            if debt.is_cold:
                owing[cell.id] = f"{cell.id} {gait}: {debt.paid_s:.3f} s for {debt.rules[0]}"
    grid = [c for c in told.values() if c.cell.role is Role.GRID]
    gate = opening(warmed.verdict, open_unproven=True)
    shut = [c for c in told.values() if c.standing in (Standing.COLD, Standing.FAILED)]
    truly_failed = warmed.case.broken is not None
    return Outcome(
        seed=warmed.case.seed,
        opened=gate.open,
        proven=gate.proven,
        false_warm=tuple(
            owing[c.cell.id] for c in grid if c.call is Call.WARM and c.cell.id in owing
        ),
        false_not_yet=() if owing or truly_failed else tuple(_reason(c) for c in shut),
        cells=len(grid),
        unproven=sum(c.standing is Standing.UNPROVEN for c in grid),
        unproven_owing=sum(c.standing is Standing.UNPROVEN and c.cell.id in owing for c in grid),
        waves_per_look=len(warmed.runs) / max(warmed.looks, 1),
        passes_over=_passes_over(warmed, gate.proven),
        whole_log=could_be_whole(warmed.case),
        is_plain=_is_plain(warmed.case),
        residual=_residual(warmed, grid) if warmed.case.seed % RESIDUAL_EVERY == 0 else (0, 0),
    )


def _is_plain(case: Case) -> bool:
    alone = case.traffic is None and not case.refusals
    knows = case.facts.max_num_batched_tokens is not None
    return alone and knows and not case.config.draft_tokens and case.config.ranks == 1


def _reason(told: CellVerdict) -> str:
    return f"{told.cell.id}: {'; '.join(told.reasons)}"


def _passes_over(warmed: Warmed, proven: bool) -> float | None:
    case = warmed.case
    if not proven or case.traffic is not None or case.refusals:
        return None
    return warmed.passes_beyond_cold - warmed.passes_allowed


def _residual(warmed: Warmed, grid: Iterable[CellVerdict]) -> tuple[int, int]:
    dice = random.Random(f"residual {warmed.case.seed}")
    engine = settled(warmed.engine)
    owing = replays = 0
    for told in grid:
        if told.call is Call.WARM:
            for _ in range(RANDOM_REPLAYS):
                replays += 1
                owing += owed_at_random(warmed.case, engine, told.cell, dice, CONVERGE).is_cold
    return owing, replays


def examine_all(
    seeds: Sequence[int], rules: tuple[Rule, ...] = (), method: Method = REAL, jobs: int = 1
) -> list[Outcome]:
    """The outcomes of all seeds whose grid fits."""
    found = _each(partial(examine, rules=rules, method=method), seeds, jobs)
    return [outcome for outcome in found if outcome is not None]


def _each(one: Callable[[int], T], seeds: Sequence[int], jobs: int) -> list[T]:
    if jobs == 1:
        return [one(seed) for seed in seeds]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(one, seeds, chunksize=4))


# --- report --------------------------------------------------------------------------------------


def report(outcomes: Sequence[Outcome]) -> bool:
    """Print the figures; False: a bound is broken."""
    count = len(outcomes)
    gates = Counter(
        "proven" if o.proven else "open, unproven" if o.opened else "shut" for o in outcomes
    )
    false_warm = [o for o in outcomes if o.false_warm]
    not_yet = [o for o in outcomes if o.false_not_yet]
    cells = sum(o.cells for o in outcomes)
    unproven = sum(o.unproven for o in outcomes)
    print(f"engines            {count}: " + ", ".join(f"{n} {k}" for k, n in gates.most_common()))
    print(f"false warm         {len(false_warm)} engines (bound 0)")
    for outcome in false_warm[:10]:
        print(f"    seed {outcome.seed}: {outcome.false_warm[0]}")
    print(f"false not-yet      {len(not_yet)} engines, {_share(len(not_yet), count)} (bound 1 %)")
    for outcome in not_yet[:10]:
        print(f"    seed {outcome.seed}: {outcome.false_not_yet[0]}")
    owing = sum(o.unproven_owing for o in outcomes)
    plain = [o for o in outcomes if o.is_plain]
    among = _share(sum(o.unproven for o in plain), sum(o.cells for o in plain))
    print(f"unproven cells     {_share(unproven, cells)} of {cells}; {owing} of them owed")
    print(f"    plain engines     {among}: B known, one rank, no drafts, nobody else")
    _print_spread("waves per look", [o.waves_per_look for o in outcomes if o.proven])
    whole = [o.waves_per_look for o in outcomes if o.proven and o.whole_log]
    _print_spread("    log may be whole", whole)
    over = [o.passes_over for o in outcomes if o.passes_over is not None]
    _print_spread("warm passes beyond 2 + f", over)
    if over:
        within = sum(passes <= 0.1 for passes in over)  # a tenth: noise of the waves themselves
        print(f"    within 2 + f      {_share(within, len(over))} of {len(over)} proven engines")
    paid, replays = (sum(o.residual[i] for o in outcomes) for i in (0, 1))
    print(f"residual           {_share(paid, replays)} of {replays} random-arrival replays")
    return not false_warm and len(not_yet) <= MAX_NOT_YET * count


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "none"


def _print_spread(what: str, values: list[float]) -> None:
    if len(values) > 1:
        deciles = statistics.quantiles(values, n=10)
        print(f"{what:<18} median {statistics.median(values):.2f}, p90 {deciles[-1]:.2f}")


def report_planted(
    seeds: Sequence[int], rules: tuple[Rule, ...], jobs: int, methods: Sequence[Method] = PLANTED
) -> bool:
    """Print how often each planted judge is false; False: one is not caught."""
    caught = True
    for method in methods:
        outcomes = examine_all(seeds, rules, method, jobs)
        false = sum(bool(o.false_warm) for o in outcomes)
        is_caught = false >= MIN_PLANTED * len(outcomes)
        caught = caught and is_caught
        mark = "caught" if is_caught else "NOT CAUGHT: the draws are too gentle"
        print(f"planted            {method.name}: false in {_share(false, len(outcomes))}, {mark}")
    return caught


def report_gates(seeds: Sequence[int], rules: tuple[Rule, ...], jobs: int) -> bool:
    """Print what the gate said wrongly in the scenarios of these seeds; False: anything."""
    wrong = [said for found in _each(partial(scenario, rules=rules), seeds, jobs) for said in found]
    print(f"wrong gate states  {len(wrong)} in {len(seeds)} scenarios (bound 0)")
    for said in wrong[:10]:
        print(f"    {said}")
    return not wrong


# --- command line --------------------------------------------------------------------------------


def read_rules(path: str) -> tuple[Rule, ...]:
    """Raises ConfigError with one sentence."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from None
    rules = parse_rules(text, path)
    if not rules:
        raise ConfigError(f"{path}: has no rules: nothing would be cold")
    return rules


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the verdict with the truth.")
    parser.add_argument("--seed", type=int, default=0, help="of the first engine (default 0)")
    parser.add_argument("--engines", type=_positive, default=1000, help="default 1000")
    parser.add_argument("--rules", metavar="FILE", help="cold rules, instead of drawn ones")
    parser.add_argument("--planted", action="store_true", help="run the planted judges too")
    parser.add_argument("--no-log", action="store_true", help="only without the engine's log")
    parser.add_argument("--jobs", type=_positive, default=1, help="processes (default 1)")
    options = parser.parse_args(arguments)
    try:
        rules = read_rules(options.rules) if options.rules else ()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    seeds = range(options.seed, options.seed + options.engines)
    logging.disable(logging.CRITICAL)  # the conductor's own lines, of virtual engines
    started_s = time.monotonic()
    holds = report(examine_all(seeds, rules, jobs=options.jobs))
    if not options.no_log:
        print("with the engine's log:")
        holds = report(examine_all(seeds, rules, LISTENING, jobs=options.jobs)) and holds
    holds = report_gates(seeds[::GATES_EVERY], rules, options.jobs) and holds
    if options.planted:
        holds = report_planted(seeds, rules, options.jobs) and holds
    print(f"took               {time.monotonic() - started_s:.0f} s")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

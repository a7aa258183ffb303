"""`shapes suggest`: a shapes file out of what a server with traffic has counted."""

import argparse
import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from sidecar.adapters.engine import Engine
from sidecar.adapters.shapesfile import read
from sidecar.adapters.statefiles import readable_reports
from sidecar.cli.engine import engine_of
from sidecar.cli.settings import settings_of
from sidecar.core.errors import EvidenceMissing, ExitCode
from sidecar.core.facts import EngineFacts
from sidecar.core.grid.plan import expand
from sidecar.core.learned.beside import beside
from sidecar.core.learned.traffic import learn_traffic
from sidecar.core.learned.traffictext import Asked, to_yaml
from sidecar.core.wire.histograms import TrafficPage, parse_traffic

EVERY_S = 1.0
"""vLLM sets its gauges with every step; a page takes a millisecond of its API server."""


@dataclass(frozen=True, slots=True)
class _Seen:
    facts: EngineFacts
    page: TrafficPage
    """The last one."""
    samples: tuple[Mapping[str, float], ...]


def suggest(options: argparse.Namespace) -> int:
    """Print the file. EvidenceMissing where there was no traffic yet."""
    settings = settings_of(options)
    in_use = read(settings.shapes)
    reports = () if settings.state_dir is None else readable_reports(settings.state_dir)
    engine = engine_of(settings)
    seen = asyncio.run(_look(engine, options.watch))
    try:
        traffic = learn_traffic(seen.page, seen.samples, seen.facts, reports)
    except EvidenceMissing as problem:
        raise EvidenceMissing(f"the engine at {engine.url}: {problem}") from None
    rows = beside(traffic, expand(in_use, seen.facts))
    asked = Asked(engine.url, seen.facts.model, options.watch, in_use.name)
    print(to_yaml(asked, traffic, rows))
    return ExitCode.WARM


async def _look(engine: Engine, watch_s: float) -> _Seen:
    """Raises EngineUnavailable if it goes away meanwhile."""
    try:
        facts = await engine.learn()
        if watch_s:
            print(f"watching {engine.url} for {watch_s:g} s", file=sys.stderr, flush=True)
        clock = asyncio.get_running_loop().time
        until = clock() + watch_s
        samples = []
        while True:
            page = parse_traffic(await engine.page())
            samples.append(page.running)
            left_s = until - clock()
            if left_s <= 0:
                return _Seen(facts, page, tuple(samples))
            await asyncio.sleep(min(EVERY_S, left_s))
    finally:
        await engine.aclose()

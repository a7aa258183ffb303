"""One process life of the simulated server: an engine, its clock, and what it has counted."""

import time
from collections.abc import Callable

from sidecar.simulator.asking import Asker
from sidecar.simulator.driver import Driver, Happened, Patience
from sidecar.simulator.engine import Engine
from sidecar.simulator.faults import Faults
from sidecar.simulator.log import Log
from sidecar.simulator.metricspage import Identity, metrics_page
from sidecar.simulator.profile import Profile
from sidecar.simulator.stats import Stats


class Life:
    """Everything in it is gone when the process dies. `die` is called by a fault that kills it."""

    def __init__(
        self,
        profile: Profile,
        faults: Faults,
        log: Log,
        *,
        number: int,
        die: Callable[[], None],
        cut: Callable[[str], None],
    ) -> None:
        self.profile = profile
        self.faults = faults
        self.log = log
        self.number = number
        """Counts the lives of one simulator from 1."""
        self.die = die
        self.cut = cut
        """Resets the connection of a client, named `ip:port`."""
        self.started_unix_s = time.time()
        self.generation_requests = 0
        self.rejected = 0
        self.asker = Asker(profile)
        self.stats = Stats(profile.engine.ranks)
        # A compile costs the same in every life of a seed.
        engine = Engine(profile.engine, profile.rules, seed=profile.seed)
        limit_s = profile.execute_timeout_s
        self.driver = Driver(
            engine,
            scale=profile.time_scale,
            observe=self._observe,
            patience=None if limit_s is None else Patience(limit_s, self._give_up),
        )
        self.adjust(profile)

    @property
    def engine(self) -> Engine:
        return self.driver.engine

    @property
    def fingerprint(self) -> str:
        return f"vllm-{self.profile.version}-{self.number:08x}"

    def adjust(self, profile: Profile) -> None:
        """Take over knobs that were turned, and a changed key or model name."""
        self.profile = profile
        self.asker.profile = profile
        self.driver.set_pace(self.faults.pace)
        # A sleeping engine lets requests hang (seen on 0.32), as a stalled one does.
        asleep = self.faults.sleep_level > 0 or self.faults.paused
        self.driver.hold(self.faults.hang or asleep)

    def metrics(self) -> str:
        started_unix_s = self.started_unix_s
        if self.faults.alternate:
            self.faults.scrapes += 1
            started_unix_s += 1000.0 * (self.faults.scrapes % 2)
        identity = Identity(started_unix_s, self.faults.sleep_level, self.rejected)
        return metrics_page(self.profile, self.engine, self.stats, identity)

    def _give_up(self) -> None:
        self.log.step_timed_out()
        self.die()

    def _observe(self, happened: Happened) -> None:
        self.log.happened(happened.steps, happened.paid)
        self.stats.happened(happened.emissions, self.driver.scale)

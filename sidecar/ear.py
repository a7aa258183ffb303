"""What is heard beside the waves: escapes while the gate is open, signs of the engine's end.

Anybody can write most of it (users' words stand in logs), so nothing here decides: a sign makes
the watch look at once, and says afterwards what the engine may have died of.
"""

import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime

import anyio

from sidecar.boot import Boot
from sidecar.core.logs.events import Compile, Complaint, Phase, Started, Step, Trouble
from sidecar.core.logs.items import Began, Ended
from sidecar.core.logs.seen import Seen
from sidecar.core.policy import Policy
from sidecar.core.watch.escapes import MAX_KEPT, Escape, EscapeLog, Escapes
from sidecar.core.watch.gate import Gate
from sidecar.watch import Loss, Watch

log = logging.getLogger(__name__)

_MAX_SIGNS = 50
_LOGGED = 20
"""Escapes that get a line of ours, and then every so many."""
_FIRST = "seen first"
_GRAVE = (
    Complaint.STEP_TIMEOUT,
    Complaint.WORKER_DIED,
    Complaint.ENGINE_DEAD,
    Complaint.STOPPING,
)


class Ear:
    """Hears for the conductor. `watch` is that of now, while there is one."""

    def __init__(
        self,
        policy: Policy,
        gate: Gate,
        *,
        utc: Callable[[], float],
        reject_start: Callable[[], None],
    ) -> None:
        """`reject_start` is called when a start that the log told of turned out to be none."""
        self._policy = policy
        self._gate = gate
        self._utc = utc
        self._reject_start = reject_start
        self._escapes = Escapes()
        self._signs: deque[Trouble | Ended] = deque(maxlen=_MAX_SIGNS)
        self._is_next_life = False
        """A start was told since the last wave: what comes now is no sign of that life's end."""
        self._doubts_start = False
        self._opened_at_s = 0.0
        self._unanswered = 0
        """Escapes that a warm-up has not answered yet."""
        self._unreported = 0
        self._amended: deque[Escape] = deque(maxlen=MAX_KEPT)
        """Escapes whose step became known since the last report, which may hold them already."""
        self.watch: Watch | None = None
        self.boot: Boot | None = None

    @property
    def escapes(self) -> EscapeLog:
        return self._escapes.log

    def take_unreported(self) -> tuple[Escape, ...]:
        """Those that stand in no report yet, or in one without their step."""
        count, self._unreported = self._unreported, 0
        new = self.escapes.recent[-count:] if count else ()
        known = set(new)
        amended = tuple(escape for escape in self._amended if escape not in known)
        self._amended.clear()
        return (*amended, *new)

    @property
    def signs(self) -> tuple[Trouble | Ended, ...]:
        """Of the engine's end, from the release of the last wave to the next start."""
        return tuple(self._signs)

    def clear(self) -> None:
        """A wave is released: what was before it is no sign of what it does."""
        self._signs.clear()
        self._is_next_life = False

    def opened(self) -> None:
        """From now on what compiles is an escape."""
        self._opened_at_s, self._unanswered = anyio.current_time(), 0

    def still_there(self) -> None:
        """The same boot has shown itself: a start that was told of was none."""
        if self._doubts_start:
            self._doubts_start = self._is_next_life = False
            log.warning("the log told of a start of the engine, and there was none")
            self._reject_start()
        self._answer()

    def met(self) -> None:
        """A boot was met, and its start lines with it."""
        self._doubts_start = False

    def hear(self, seen: Seen) -> None:
        """One thing that a log source showed."""
        what = seen.what
        if isinstance(what, Compile):
            if self._gate.snapshot.is_ready and not seen.in_wave:
                self._escaped(what, seen.source)
        elif isinstance(what, Step):
            self._amended.extend(self._escapes.was_in(what, seen.source))
            self._gate.note(escapes=self._escapes.log)
        elif isinstance(what, Trouble):
            self._sign(what)
            if what.complaint in _GRAVE:
                self._hint(f"its log says: {what.complaint.replace('_', ' ')}", broke=False)
        elif isinstance(what, Ended):
            self._sign(what)
            self._hint(f"its log ended: {what.why}", broke=False)
        elif isinstance(what, Began):
            self._began(what)
        elif isinstance(what, Started) and what.phase is Phase.ARGUMENTS:
            self._doubts_start = self._is_next_life = True
            self._hint("its log tells of a start", broke=False)

    def _sign(self, what: Trouble | Ended) -> None:
        if not self._is_next_life:
            self._signs.append(what)

    def _escaped(self, line: Compile, source: str) -> None:
        self._escapes.add(line, at=self._utc(), source=source)
        total = self._escapes.log.total
        if total <= _LOGGED or total % _LOGGED == 0:
            log.warning(
                "escape: kernel=%s backend=%s compiled while the gate was open, total=%d",
                line.kernel,
                line.backend,
                total,
            )
        self._unanswered += 1
        self._unreported += 1
        self._gate.note(escapes=self._escapes.log)
        self._answer()

    def _answer(self) -> None:
        """`on_escape: rewarm`, but not more often than the pause allows."""
        if not (self._policy.rewarm_on_escape and self._unanswered and self.watch is not None):
            return
        if anyio.current_time() - self._opened_at_s < self._policy.rewarm_pause_s:
            return
        last = self._escapes.log.recent[-1]
        reason = (
            f"{last.kernel} ({last.backend}) was compiled while the gate was open, and on_escape "
            "is rewarm: the grid is warmed again"
        )
        self._unanswered = 0
        self.watch.report(Loss(reason, broken=False, voids=True))

    def _began(self, began: Began) -> None:
        """Docker says so, and no user can. One that began before the boot at hand was met is that
        boot, and not another one."""
        if began.why == _FIRST:
            return
        is_later = self.boot is not None and (
            (_seconds(began.started_at) or 0.0) > self.boot.met_at
        )
        told = began.started_at is not None
        self._is_next_life = self._is_next_life or told
        self._hint(
            f"its container was {began.why}" if told else "its log began anew", broke=is_later
        )

    def _hint(self, what: str, *, broke: bool) -> None:
        if self.watch is not None:
            self.watch.hint(what, broke=broke)


def _seconds(moment: str | None) -> float | None:
    """Docker's RFC 3339 with nanoseconds, in seconds since 1970."""
    try:
        return None if moment is None else datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return None

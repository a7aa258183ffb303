"""R5: what one wave showed, in figures.

F is the slowest first token. Of a led wave it counts from the release. Of a held wave it counts
from the plug's end, because the time before that belongs to the plug: it would make the baseline,
and with it τ, larger than what the cell's own step costs. Where the plug's token came later than
the plug can explain, F counts from where it should have come (`plugs.py`), and is held against a τ
that has the plug's time in it, because the plug's noise is in F then.

Of a mixed wave F is the first token of the request that arrives, from its own release, and G the
worst gap in the streams of those that decode: a mixed step that compiles stalls both. What those
had to wait for their own first token is a third figure, D, so that no cost of a wave is unseen.
"""

from dataclasses import dataclass, field

from sidecar.core.grid.cells import Gait
from sidecar.core.judge.misses import Miss
from sidecar.core.judge.plugs import Plugs
from sidecar.core.logs.evidence import Hearing
from sidecar.core.results import WaveResult


def first_token_s(wave: WaveResult) -> float | None:
    """R5's F as the verdict uses it; None if a first token never came."""
    return wave.f_s if wave.look.gait is Gait.MIXED else all_decode_s(wave)


def all_decode_s(wave: WaveResult) -> float | None:
    """The slowest first token of those that decode together, less the plug's time."""
    at_s = wave.all_decode_s
    if at_s is None or wave.look.gait is Gait.LED or wave.plug is None:
        return at_s
    return at_s - max(0.0, wave.plug.first_s or 0.0)


@dataclass(slots=True)
class Entry:
    """One wave of a look. `at` is its number in the boot's sequence of all waves, from 0."""

    at: int
    wave: WaveResult
    valid: bool
    foreign: bool
    failed: bool
    refused: bool
    known: bool
    """Everything that R2 asks could be checked."""
    accepted: bool | None
    """Whether a draft was accepted in it; None: not told."""
    missed: Miss | None

    f_s: float | None = field(init=False)
    """From the plug's own token, where there was one."""
    g_s: float = field(init=False)
    d_s: float = field(init=False)
    """Of a mixed wave, the slowest first token of those that decode; else 0: it is F."""

    def __post_init__(self) -> None:
        self.f_s = first_token_s(self.wave)
        self.g_s = self.wave.g_s
        is_mixed = self.wave.look.gait is Gait.MIXED
        self.d_s = (all_decode_s(self.wave) or 0.0) if is_mixed else 0.0

    def delay_s(self, plugs: Plugs) -> float:
        """How much later the plug's token came than such a plug takes at best."""
        least_s = plugs.least_s(self.wave)
        if least_s is None or self.wave.plug is None or self.wave.plug.first_s is None:
            return 0.0
        ended_s = self.wave.plug.first_s
        return max(0.0, ended_s) - max(0.0, ended_s - (self.wave.plug.ttft_s or 0.0) + least_s)

    @property
    def compiled(self) -> bool:
        """A compile line stands in its window: it is loud, however much of the log was seen."""
        return self.wave.log is not None and bool(self.wave.log.compiles)

    @property
    def is_heard(self) -> bool:
        """Had a kernel compiled in it, the log would have said so."""
        return self.wave.log is not None and self.wave.log.hearing is Hearing.COMPLETE

    @property
    def counts(self) -> bool:
        """It is a look: valid, and its batch shown."""
        return self.valid and self.missed is None

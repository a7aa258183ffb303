"""What of that which was seen is the own of the data-parallel rank that a wave asked."""

from dataclasses import replace

from sidecar.core.grid.cells import Look
from sidecar.core.logs.evidence import LogEvidence
from sidecar.core.wire.metrics import Scrape


def label_of(scrape: Scrape | None, look: Look) -> str | None:
    """The `engine` label of the look's rank; None where none is asked for, or it isn't known.

    A server that owns some of a deployment's ranks counts them from 0 in the header, and labels
    them as the deployment does (vLLM 0.33 v1/engine/input_processor.py, v1/metrics/loggers.py).
    """
    rank, labels = look.cell.rank, () if scrape is None else scrape.engines
    return labels[rank] if rank is not None and rank < len(labels) else None


def own_of(log: LogEvidence, scrape: Scrape | None, look: Look) -> LogEvidence:
    """What of the log is that rank's. Where its label isn't known, all compile lines are, and no
    steps, for they may be another rank's."""
    label = label_of(scrape, look)
    if look.cell.rank is not None and label is None:
        return replace(log, steps=None, steps_of={})
    return log.of_engine(label)

"""What is said of a request that failed."""

import pytest

from sidecar.core.grid.cells import Cell, Gait, Look
from sidecar.core.judge.failures import failure
from sidecar.core.results import Outcome, Result, WaveResult


@pytest.mark.parametrize(
    ("message", "is_memory"),
    [
        ("CUDA out of memory. Tried to allocate", True),
        ("torch.OutOfMemoryError", True),
        ("worker died: OOM", True),
        ("boom", False),
        ("no room in the queue", False),
    ],
)
def test_memory_is_blamed_only_where_it_is_named(message: str, is_memory: bool) -> None:
    """A remedy for another trouble costs the operator a restart."""
    result = Result(Outcome.HTTP_ERROR, sent_s=0.0, status=500, message=message)
    look = Look(Cell(1, 8, 2), Gait.LED)
    told = failure(WaveResult(look=look, results=(result,), spread_s=0.0, took_s=1.0, at_s=0.0))
    assert told is not None
    assert ("--gpu-memory-utilization" in told.sentence) is is_memory

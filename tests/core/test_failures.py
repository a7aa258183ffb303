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


def test_a_rank_that_is_not_there_is_no_fault_of_the_cell() -> None:
    """Where /metrics doesn't tell how many there are, the engine does, in vLLM's words."""
    message = "data_parallel_rank 5 is out of range [0, 2)."
    result = Result(Outcome.STREAM_ERROR, sent_s=0.0, status=400, message=message)
    look = Look(Cell(1, 8, 2, rank=5), Gait.LED)
    told = failure(WaveResult(look=look, results=(result,), spread_s=0.0, took_s=1.0, at_s=0.0))
    assert told is not None
    assert told.sentence.endswith(
        "correct ranks in the shapes file: the engine doesn't have this one"
    )


def test_too_many_open_files_are_the_sidecars_own() -> None:
    """The engine did not die of it."""
    result = Result(Outcome.BROKEN, 0.0, message="no connection: Too many open files")
    look = Look(Cell(1, 8, 2), Gait.LED)
    told = failure(WaveResult(look=look, results=(result,), spread_s=0.0, took_s=1.0, at_s=0.0))
    assert told is not None
    assert "raise the sidecar's own limit of open files (ulimit -n" in told.sentence


def test_an_answer_that_is_not_vllms_is_no_death_of_the_engine() -> None:
    """A page or garbage over a connection that held: the address or a proxy is wrong."""
    said = "200 with text/html where an event stream is due"
    result = Result(Outcome.BROKEN, 0.0, status=200, message=said, misread=True)
    look = Look(Cell(1, 8, 2), Gait.LED)
    told = failure(WaveResult(look=look, results=(result,), spread_s=0.0, took_s=1.0, at_s=0.0))
    assert told is not None
    assert f"its request got an answer that vLLM doesn't give ({said}); see that" in told.sentence
    assert "WARMUP_ENGINE_URL" in told.sentence
    assert "lost" not in told.sentence
    assert "died" not in told.sentence

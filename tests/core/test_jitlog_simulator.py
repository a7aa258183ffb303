"""The simulated engine's log is read as a real one's."""

import io

import pytest

from sidecar.core.logs.bootlog import BootLog
from sidecar.core.logs.events import Access, Activated, Compile, LogEvent, Phase, Started, Step
from sidecar.core.logs.parse import fence_target
from sidecar.core.logs.reader import LogReader
from sidecar.simulator import model
from sidecar.simulator.log import Log, capture_sizes
from sidecar.simulator.profile import Profile

ENGINE = model.EngineConfig(ranks=2, draft_tokens=3, max_num_seqs=48)
STEP = model.Step(0.0, 0.1, 1, 2, 700, 3, 4, 0.5, 0.0)
PAID = model.Paid(0.0, 1.0, "fused_moe_kernel", (True, 2), 1.0, ("a",), True, 0)


def written(profile: Profile) -> list[str]:
    out = io.StringIO()
    log = Log(out, profile, 10, 8000)
    log.starting()
    log.ready("127.0.0.1")
    log.access("127.0.0.1:1", "GET", fence_target("abc"), "200 OK")
    log.happened([STEP], [PAID])
    return out.getvalue().splitlines()


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0"])
@pytest.mark.parametrize("verbose", [False, True])
def test_the_simulated_log_tells_what_it_was_started_with(version: str, verbose: bool) -> None:
    """Its start lines, monitors, fence, step and compile, before and after prefixes moved."""
    profile = Profile(
        version=version, engine=ENGINE, jit_monitor_verbose=verbose, log_iterations=True
    )
    reader, boot = LogReader(), BootLog()
    events: list[LogEvent] = [e for t in written(profile) if (e := reader.feed(t)) is not None]
    for event in events:
        boot.feed(event)
    assert (boot.facts.version, boot.facts.max_num_seqs) == (version, 48)
    assert (boot.facts.ranks, len(boot.listeners)) == (2, 2)
    assert (boot.facts.draft_tokens, boot.facts.jit_monitor_verbose) == (3, verbose)
    assert boot.facts.capture_sizes == capture_sizes(profile)
    assert [e.mode for e in events if isinstance(e, Activated)] == ["warn", "warn"]
    assert [e.phase for e in events if isinstance(e, Started)][-1] is Phase.SERVING
    assert [e.nonce for e in events if isinstance(e, Access)] == ["abc"]
    (compiled,) = [e for e in events if isinstance(e, Compile)]
    assert (compiled.kernel, bool(compiled.detail)) == ("fused_moe_kernel", verbose)
    (step,) = [e for e in events if isinstance(e, Step)]
    assert (step.engine, step.context_requests, step.generation_tokens) == (1, 2, 4)


@pytest.mark.parametrize(("version", "listens"), [("0.30.0", True), ("0.31.0", False)])
def test_an_eager_server_has_no_monitor_from_0_31_on(version: str, listens: bool) -> None:
    """Nothing is said of what it compiles: its silence is none."""
    eager = model.EngineConfig(enforce_eager=True)
    lines = written(Profile(version=version, engine=eager, jit_monitor_verbose=True))
    reader, boot = LogReader(), BootLog()
    events = [e for text in lines if (e := reader.feed(text)) is not None]
    for event in events:
        boot.feed(event)
    assert len(boot.listeners) == int(listens)
    assert any(isinstance(event, Compile) for event in events) is listens
    assert boot.facts.jit_warmup is (None if listens else False)
    assert boot.facts.cudagraphs_off is True

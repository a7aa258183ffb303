"""The gate's table, walked whole."""

import itertools

import pytest

from sidecar.core.errors import ExitCode
from sidecar.core.watch.gate import TRANSITIONS, Event, Gate, IllegalEvent, Snapshot, State

LEGAL = {
    (State.WAITING, Event.FOUND): State.WARMING,
    (State.WAITING, Event.ADOPTED): State.READY,
    (State.WAITING, Event.RETURNED): State.READY,
    (State.WAITING, Event.LOST): State.WAITING,
    (State.WAITING, Event.GAVE_UP): State.FAILED,
    (State.WAITING, Event.STOP): State.STOPPING,
    (State.WARMING, Event.PASSED): State.READY,
    (State.WARMING, Event.LOST): State.WAITING,
    (State.WARMING, Event.GAVE_UP): State.FAILED,
    (State.WARMING, Event.STOP): State.STOPPING,
    (State.READY, Event.LOST): State.WAITING,
    (State.READY, Event.STOP): State.STOPPING,
    (State.FAILED, Event.FOUND): State.WARMING,
    (State.FAILED, Event.ADOPTED): State.READY,
    (State.FAILED, Event.RETURNED): State.READY,
    (State.FAILED, Event.LOST): State.WAITING,
    (State.FAILED, Event.STOP): State.STOPPING,
}
"""Written out a second time on purpose: a change of the table has to be meant."""

ROADS = {
    State.WAITING: (),
    State.WARMING: (Event.FOUND,),
    State.READY: (Event.FOUND, Event.PASSED),
    State.FAILED: (Event.GAVE_UP,),
    State.STOPPING: (Event.STOP,),
}


def gate_in(state: State) -> Gate:
    gate = Gate("http://engine:8000", at=0.0)
    for event in ROADS[state]:
        gate.apply(event, at=1.0)
    assert state is gate.state
    return gate


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_moves_by_the_table_or_changes_nothing(state, event):
    """A legal event leads where the table says; an illegal one raises and changes nothing."""
    gate = gate_in(state)
    before = gate.snapshot
    if (state, event) in LEGAL:
        after = gate.apply(event, at=2.0)
        assert (LEGAL[state, event], 2.0) == (after.state, after.since)
    else:
        with pytest.raises(IllegalEvent) as raised:
            gate.apply(event, at=2.0)
        assert (state, event) == (raised.value.state, raised.value.event)
        assert before is gate.snapshot


def test_the_table_names_every_state():
    """No state is without a row, and every road starts at WAITING."""
    assert set(State) == set(TRANSITIONS)


@pytest.mark.parametrize("event", [Event.LOST, Event.STOP])
def test_what_belongs_to_an_open_gate_ends_with_it(event):
    """A gate that is shut is neither proven nor adopted, whatever its writer says."""
    gate = Gate("http://engine:8000", at=0.0)
    opened = gate.apply(Event.ADOPTED, at=1.0, proven=True, adopted=True)
    assert (opened.is_ready, opened.proven, opened.adopted) == (True, True, True)
    shut = gate.apply(event, at=2.0, proven=True, adopted=True, reasons=("gone",))
    assert (shut.is_ready, shut.proven, shut.adopted) == (False, False, False)
    assert shut.reasons == ("gone",)


def test_reasons_and_exit_code_belong_to_their_state():
    """What was said of one state is not carried into the next."""
    gate = Gate("http://engine:8000", at=0.0)
    failed = gate.apply(Event.GAVE_UP, at=1.0, reasons=("cold",), exit_code=ExitCode.NOT_CONVERGED)
    assert ExitCode.NOT_CONVERGED is failed.exit_code
    warming = gate.apply(Event.FOUND, at=2.0)
    assert (warming.reasons, warming.exit_code) == ((), None)


def test_a_note_leaves_state_and_since_alone():
    """Progress is told without moving the gate."""
    gate = gate_in(State.WARMING)
    noted = gate.note(eta_s=4.0, is_active=True)
    assert (noted.state, noted.since, noted.eta_s) == (State.WARMING, 1.0, 4.0)


def test_every_new_snapshot_is_heard_once_and_in_order():
    """A listener sees each snapshot, the illegal event none."""
    heard: list[Snapshot] = []
    gate = Gate("http://engine:8000", at=0.0, on_change=heard.append)
    gate.apply(Event.FOUND, at=1.0)
    gate.note(eta_s=1.0)
    with pytest.raises(IllegalEvent):
        gate.apply(Event.FOUND, at=2.0)
    gate.apply(Event.PASSED, at=3.0)
    assert [s.state for s in heard] == [State.WARMING, State.WARMING, State.READY]

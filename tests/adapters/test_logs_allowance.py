"""What a listener spends on strangers, and what it says of what it did not look at."""

import time

from sidecar.adapters.logs.inbox import Inbox
from sidecar.adapters.logs.pace import Allowance
from sidecar.adapters.logs.senders import Connection, Senders
from sidecar.core.logs.items import Gap
from sidecar.core.logs.source import parse_sources
from sidecar.core.logs.syslog import SyslogLines


def test_a_burst_is_free_and_a_flood_is_not():
    """The reserve is there at once; what is spent comes back as a share of the time."""
    allowance = Allowance(share=1e-9, reserve_s=0.5)
    allowance.spend(0.4)
    assert not allowance.is_spent
    allowance.spend(0.2)
    assert allowance.is_spent
    soon = Allowance(share=1e6, reserve_s=0.5)
    soon.spend(1.0)
    time.sleep(0.001)
    assert not soon.is_spent


async def test_what_was_not_looked_at_is_a_gap_in_its_place():
    """Also if nothing else comes: silence behind a drop is no silence."""
    inbox = Inbox()
    inbox.miss(3)
    inbox.miss(4)
    told = await inbox.take(1)
    assert [item.lost_lines for item in told if isinstance(item, Gap)] == [3, 4]
    assert inbox.dropped_lines == 7


async def test_a_sender_above_the_allowance_is_read_and_not_looked_at():
    """It never waits for us, and nothing of it becomes a line."""
    inbox, nothing = Inbox(), Allowance(share=1e-9, reserve_s=0.0)
    senders = Senders(parse_sources("syslog+tcp://127.0.0.1:1")[0], inbox, 5.0, nothing)
    connection = Connection(senders)
    connection._is_taken = True
    data = b"<30>1 2026-01-01T00:00:00Z h vllm 1 vllm - hello\n" * 5
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))
    assert (inbox.lines, inbox.dropped_lines, connection.cut.bytes) == (0, 5, len(data))


def test_after_a_loss_the_rest_of_a_torn_line_is_not_taken_for_a_line():
    """What a user wrote in the middle of a line must not stand at the beginning of one."""
    lines = SyslogLines()
    lines.feed(b"<30>1 2026-01-01T00:00:00Z h vllm 1 vllm - the begin")
    lines.lose(100)
    assert lines.feed(b"ning of a forged line\n") == []
    told = lines.feed(b"<30>1 2026-01-01T00:00:00Z h vllm 1 vllm - next\n")
    assert [line.text for line in told] == ["next"]
    assert lines.cut.bytes > 100

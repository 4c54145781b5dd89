"""A batch that is accepted has no place in a file until it is sent."""

from __future__ import annotations

from bmq.broker.pending import Pending
from tests.unit.broker.partition.machines import batch


def test_an_accepted_batch_is_in_no_file_and_nothing_waits_for_it_yet() -> None:
    accepted = batch()
    pending = Pending(accepted, None, 2)
    assert (pending.batch, pending.producer, pending.copies) == (accepted, None, 2)
    assert (pending.start_position, pending.end_position, pending.sent_ms) == (-1, -1, -1)
    assert not pending.was_sent
    assert pending.token is None
    assert repr(pending).endswith("at -1..-1>")

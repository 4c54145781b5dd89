"""The attempts to read a predecessor's log."""

from __future__ import annotations

from bmq.broker.partition.predecessor import Predecessor
from bmq.meta.ownership import PartitionRecord


def test_the_record_names_the_journals() -> None:
    predecessor = Predecessor(1000)
    predecessor.read(PartitionRecord(epoch=3, owner="b", journals=("a", "b"), is_settled=True))
    assert predecessor.journals == ("a", "b")
    assert predecessor.is_settled


def test_a_log_without_right_bytes_is_tried_for_a_time_then_once_without_damaged_journals() -> None:
    predecessor = Predecessor(1000)
    assert not predecessor.is_unreadable
    assert not predecessor.unreadable(500)
    assert predecessor.is_unreadable
    assert not predecessor.unreadable(1499)
    assert not predecessor.passes_damaged
    assert not predecessor.unreadable(1500)
    assert predecessor.passes_damaged, "the attempt that follows is the last one"
    assert predecessor.unreadable(1501)

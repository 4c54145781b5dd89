"""Aborted transactions, as Kafka's consumer reads them."""

from __future__ import annotations

from bmq.core.records.isolation import Aborted


def test_a_transaction_is_hidden_from_its_first_offset_to_its_marker() -> None:
    aborted = Aborted([(7, 10)])
    assert not aborted.hides(7, 9), "a transaction of the same producer that was committed"
    assert aborted.hides(7, 10)
    assert not aborted.hides(8, 11), "another producer"
    assert aborted.hides(7, 12)
    aborted.end(7, 13)
    assert not aborted.hides(7, 14)


def test_a_producer_may_abort_again() -> None:
    aborted = Aborted([(7, 20), (7, 10)])
    assert aborted.hides(7, 12)
    aborted.end(7, 13)
    assert not aborted.hides(7, 19)
    assert aborted.hides(7, 25)


def test_a_marker_ends_a_transaction_whose_batches_were_not_read() -> None:
    """Begin to read between the last batch of a transaction and its marker."""
    aborted = Aborted([(7, 10)])
    aborted.end(7, 30)
    assert not aborted.hides(7, 31)

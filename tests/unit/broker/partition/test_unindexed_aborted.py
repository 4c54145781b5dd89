"""The aborted transactions that an owner keeps: those of segments without an index, and no gaps between them."""

from __future__ import annotations

from bmq.broker.partition.unindexed_aborted import FOUND_MAX, UnindexedAborted
from bmq.core.model import SegmentName
from bmq.storage.aborted import AbortedTransactions
from bmq.storage.checkpoint import AbortedTransaction

S = SegmentName


def txn(at: int) -> AbortedTransaction:
    return AbortedTransaction(1, at, at + 1, at + 2)


def test_without_a_segment_nothing_is_kept_from_the_end_of_the_log_on() -> None:
    assert UnindexedAborted().recent(7) == (7, ())


def test_a_segment_goes_with_its_index_and_the_list_of_the_open_one_grows() -> None:
    kept, first, second = UnindexedAborted(), AbortedTransactions([txn(0)]), AbortedTransactions()
    kept.opened(S(0, 1, 0), first)
    kept.opened(S(10, 1, 1), second)
    before = kept.recent(20)
    second.extend([txn(12)])
    assert (before.since, before.overlapping(0, 20)) == (0, [txn(0), txn(12)])
    kept.indexed(S(0, 1, 0))
    assert (kept.recent(20).since, kept.recent(20).overlapping(0, 20)) == (10, [txn(12)])
    assert before.overlapping(0, 20) == [txn(0), txn(12)], "a read under way still has it"


def test_a_segment_behind_one_without_an_index_stays() -> None:
    kept = UnindexedAborted()
    for number in range(3):
        kept.opened(S(10 * number, 1, number), AbortedTransactions([txn(10 * number)]))
    kept.indexed(S(10, 1, 1))
    assert kept.recent(30).overlapping(0, 30) == [txn(0), txn(10), txn(20)]
    kept.indexed(S(0, 1, 0))
    assert kept.recent(30) == (20, (kept.recent(30).lists[0],))
    kept.indexed(S(20, 1, 2))
    assert kept.recent(30) == (30, ())


def test_what_a_takeover_found_stays_until_a_segment_of_this_owner_has_its_index() -> None:
    kept = UnindexedAborted()
    kept.found(S(0, 1, 0), [txn(0)])
    assert kept.recent(10).since == 0
    kept.opened(S(10, 2, 0), AbortedTransactions([txn(10)]))
    kept.indexed(S(5, 2, 9))  # it took no batch
    assert kept.recent(20).overlapping(0, 20) == [txn(0), txn(10)]
    kept.indexed(S(10, 2, 0))
    assert kept.recent(20) == (20, ())


def test_what_a_takeover_found_without_an_index_stays_until_its_index_is_written() -> None:
    """Readers of committed records would have neither the index nor the list."""
    kept = UnindexedAborted()
    kept.found(S(0, 1, 0), [txn(0)], lacks_index=True)
    kept.opened(S(10, 2, 0), AbortedTransactions([txn(10)]))
    kept.opened(S(20, 2, 1), AbortedTransactions([txn(20)]))
    kept.indexed(S(10, 2, 0))
    assert kept.recent(30).overlapping(0, 30) == [txn(0), txn(10), txn(20)]
    kept.indexed(S(0, 1, 0))
    assert kept.recent(30).overlapping(0, 30) == [txn(20)]


def test_what_a_takeover_found_is_not_waited_for_once_the_lists_are_long() -> None:
    kept = UnindexedAborted()
    kept.found(S(0, 1, 0), [txn(0)], lacks_index=True)
    kept.opened(S(10, 2, 0), AbortedTransactions(txn(at) for at in range(10, 10 + FOUND_MAX)))
    kept.indexed(S(10, 2, 0))
    assert kept.recent(99_999) == (99_999, ())

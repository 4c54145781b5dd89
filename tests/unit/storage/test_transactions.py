"""The scan for transactions (storage/transactions.py), against a model after Kafka's ``ProducerStateManager``."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import AbortedTransaction, ProducerState
from bmq.storage.transactions import Transactions
from tests.harness.loop_stops import is_short, without_collector
from tests.unit.broker.partition.transactional import data, marker


def passed(*batches: Batch) -> Transactions:
    transactions = Transactions()
    for batch in batches:
        transactions.pass_batch(batch)
    return transactions


def test_nothing_is_open_at_first() -> None:
    transactions = Transactions()
    assert (transactions.first_open, transactions.opened, transactions.take_aborted()) == (-1, (), [])


def test_an_abort_is_stable_up_to_the_oldest_transaction_that_is_still_open() -> None:
    transactions = passed(
        data(0, pid=7, base=10), data(0, pid=8, base=11), data(1, pid=7, base=12), marker(Marker.ABORT, pid=7, base=13)
    )
    assert transactions.take_aborted() == [AbortedTransaction(7, 10, 13, 11)]
    assert transactions.take_aborted() == []
    assert (transactions.first_open, transactions.opened) == (11, ((8, 11),))
    transactions.pass_batch(marker(Marker.ABORT, pid=8, base=14))
    assert transactions.take_aborted() == [AbortedTransaction(8, 11, 14, 15)]


def test_plain_batches_and_markers_without_a_transaction_count_for_nothing() -> None:
    transactions = passed(data(0, is_transactional=False), data(-1, pid=-1), marker(Marker.ABORT, pid=9, base=1))
    assert (transactions.first_open, transactions.take_aborted()) == (-1, [])


def test_open_transactions_are_taken_from_producers_in_any_order() -> None:
    states = [ProducerState(pid, 0, 0, 0, start, ()) for pid, start in ((1, 30), (2, -1), (3, 20))]
    assert Transactions.of(states).opened == ((3, 20), (1, 30))


@pytest.mark.slow
@given(st.integers(0, 1 << 32))
def test_a_history_agrees_with_kafkas(seed: int) -> None:
    """``completeTxn`` and ``lastStableOffset`` by a sorted map of what goes on, as in Kafka."""
    rng, transactions = random.Random(seed), Transactions()
    ongoing: dict[int, int] = {}
    aborted = []
    for offset in range(40):
        pid = rng.randint(1, 5)
        if rng.random() < 0.6:
            transactions.pass_batch(data(0, pid=pid, base=offset))
            ongoing.setdefault(pid, offset)
        else:
            kind = rng.choice([Marker.ABORT, Marker.COMMIT])
            transactions.pass_batch(marker(kind, pid=pid, base=offset))
            first = ongoing.pop(pid, None)
            if first is not None and kind is Marker.ABORT:
                stable = min(ongoing.values(), default=offset + 1)
                aborted.append(AbortedTransaction(pid, first, offset, stable))
        assert transactions.first_open == min(ongoing.values(), default=-1)
    assert transactions.take_aborted() == aborted


@pytest.mark.slow
def test_each_change_of_the_first_open_offset_is_cheap_with_100000_transactions() -> None:
    """End them oldest first, and look at the first one each time: the time does not grow with their number."""
    count = 100_000
    transactions = Transactions((pid, pid) for pid in range(count))
    ends = [marker(pid=pid, base=count + pid) for pid in range(2_000)]
    with without_collector():
        began = time.thread_time()
        for end in ends:
            transactions.pass_batch(end)
            assert transactions.first_open == end.producer_id + 1
        assert is_short((time.thread_time() - began) / 10)

"""The rules of a cleaning (storage/cleaning/retention.py), each by a log and what a round leaves of it."""

from __future__ import annotations

from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch, Record, build_batch
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import AbortedTransaction, ProducerBatch, ProducerState
from bmq.storage.cleaning.retention import DELETE_HORIZON, ProducerEnd
from tests.unit.storage.cleaning.logs import DAY_MS, NOW_MS, Log, keys_and_values

HORIZON_MS = NOW_MS + DAY_MS


def horizons(log: Log) -> list[int | None]:
    return [batch.base_timestamp if batch.attributes & DELETE_HORIZON else None for batch in log.batches]


def test_the_last_record_of_a_key_stays() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.add((b"b", b"2"))
    assert keys_and_values(log.clean()) == [(b"a", b"2"), (b"b", b"2")]


def test_a_tombstone_stays_until_its_horizon() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"))
    log.add((b"a", None), (b"c", b"1"))
    first = log.clean()
    assert keys_and_values(first) == [(b"b", b"1"), (b"a", None), (b"c", b"1")]
    assert horizons(first) == [None, HORIZON_MS]
    later = first.clean(now_ms=HORIZON_MS - 1, first_dirty=4)
    assert later.data == first.data, "the horizon is set once"
    past = later.clean(now_ms=HORIZON_MS, first_dirty=4)
    assert keys_and_values(past) == [(b"b", b"1"), (b"c", b"1")]
    assert [record.timestamp for record in _records(past)] == [NOW_MS + 1, NOW_MS + 1]


def test_a_delete_horizon_of_a_producer_is_none() -> None:
    """No round wrote the segment: its tombstones stay, and get the horizon of this round."""
    log = Log(is_cleaned=False)
    log.add((b"a", None), (b"b", b"1"), attributes=DELETE_HORIZON, timestamp=1)
    first = log.clean()
    assert keys_and_values(first) == [(b"a", None), (b"b", b"1")]
    assert horizons(first) == [HORIZON_MS]
    assert [record.timestamp for record in _records(first)] == [1, 2]
    assert keys_and_values(first.clean(now_ms=HORIZON_MS, first_dirty=2)) == [(b"b", b"1")]


def test_a_tombstone_stays_for_ever_with_the_longest_delete_retention() -> None:
    log = Log()
    log.add((b"a", None), (b"b", b"1"))
    first = log.clean(delete_retention_ms=(1 << 63) - 1)
    assert horizons(first) == [(1 << 63) - 1]
    assert list(_records(first)) == list(_records(log)), "with their times"
    later = first.clean(now_ms=1 << 62, first_dirty=2)
    assert later.data == first.data


def test_a_tombstone_that_a_value_replaces_goes_at_once() -> None:
    log = Log()
    log.add((b"a", None))
    log.add((b"a", b"1"))
    assert keys_and_values(log.clean()) == [(b"a", b"1")]


def test_records_without_a_key_stay() -> None:
    """The topic became compacted later.  Kafka removes these records."""
    log = Log()
    log.add((None, b"1"), (None, None), (b"a", b"1"))
    log.add((None, b"2"), (b"a", b"2"))
    after = log.clean()
    assert keys_and_values(after) == [(None, b"1"), (None, None), (None, b"2"), (b"a", b"2")]
    assert horizons(after) == [None, None], "without a key no record is a tombstone"


def test_data_of_aborted_transactions_goes_at_once_and_replaces_nothing() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add_transactional(7, (b"a", b"2"), (b"b", b"2"))
    log.end_transaction(7, Marker.ABORT)
    after = log.clean()
    assert keys_and_values(after) == [(b"a", b"1")]


def test_data_of_committed_transactions_counts() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add_transactional(7, (b"a", b"2"))
    log.end_transaction(7)
    assert keys_and_values(log.clean()) == [(b"a", b"2")]


def test_data_of_a_producer_without_a_transaction_is_not_aborted() -> None:
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.add((b"a", b"2"), pid=7)
    log.end_transaction(7, Marker.ABORT)
    assert keys_and_values(log.clean()) == [(b"a", b"2")]


def test_an_abort_marker_stays_until_its_data_is_gone_and_its_horizon_past() -> None:
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.end_transaction(7, Marker.ABORT)
    first = log.clean()
    assert [batch.count for batch in first.batches] == [0, 1]
    assert horizons(first) == [None, None], "this round has read the data"
    second = first.clean(now_ms=NOW_MS + 1)
    assert horizons(second) == [None, HORIZON_MS + 1]
    assert second.clean(now_ms=HORIZON_MS).data == second.data
    third = second.clean(now_ms=HORIZON_MS + 1)
    assert [(batch.count, batch.last_offset) for batch in third.batches] == [(0, 1)]


def test_a_commit_marker_stays_while_a_record_of_its_transaction_does() -> None:
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.end_transaction(7)
    after = log.clean().clean(now_ms=NOW_MS + 9 * DAY_MS).clean(now_ms=NOW_MS + 99 * DAY_MS)
    assert after.data == log.data


def test_kafka_8351_markers_of_transactions_over_several_segments_stay() -> None:
    """Kafka forgot at each segment which transactions had data."""
    for kind in (Marker.COMMIT, Marker.ABORT):
        log = Log()
        log.add_transactional(7, (b"a", b"1"))
        log.roll()
        log.add((b"b", b"1"))
        log.roll()
        log.end_transaction(7, kind)
        after = log.clean(group_size=1)
        assert horizons(after) == [None] * 3, kind
        assert after.batches[2].count == 1


def test_kafka_8351_transactions_of_several_producers_at_once_each_keep_their_marker() -> None:
    """The data of three transactions, each in a segment of its own, comes before all three markers."""
    for kind in (Marker.COMMIT, Marker.ABORT):
        log = Log()
        for producer in (7, 8, 9):
            log.add_transactional(producer, (b"k%d" % producer, b"1"))
            log.roll()
        for producer in (8, 7, 9):
            log.end_transaction(producer, kind)
        after = log.clean(group_size=1)
        markers = [batch for batch in after.batches if batch.is_control]
        assert [(batch.producer_id, batch.count) for batch in markers] == [(8, 1), (7, 1), (9, 1)], kind
        assert horizons(after)[-3:] == [None] * 3, kind


def test_kafka_13727_an_abort_marker_stays_whatever_the_list_of_aborted_transactions_lacks() -> None:
    """Kafka did not know of an aborted transaction, took its data for committed and removed its marker before it."""
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.roll()
    log.add_transactional(7, (b"b", b"1"))
    log.end_transaction(7, Marker.ABORT)
    after = (
        log.clean(aborted=[]).clean(aborted=[], now_ms=NOW_MS + DAY_MS).clean(aborted=[], now_ms=NOW_MS + 9 * DAY_MS)
    )
    assert after.batches[-1].is_control
    assert after.batches[-1].count == 1
    assert horizons(after)[-1] is None


def test_kafka_13727_an_aborted_transaction_whose_marker_lies_behind_the_round_is_known() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add_transactional(7, (b"a", b"2"))
    log.roll()
    log.end_transaction(7, Marker.ABORT)
    after = log.clean(end=2)
    assert keys_and_values(after) == [(b"a", b"1")]
    assert after.batches[-1].count == 1


def test_kafka_14055_a_key_that_looks_like_a_markers_key_removes_no_marker() -> None:
    """Kafka looked markers up in the map of keys."""
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.end_transaction(7)
    log.add((b"\0\0\0\1", b"1"), (b"\0\0\0\0", b"1"))
    after = log.clean()
    assert after.data == log.data


def test_a_later_transaction_frees_no_marker_of_an_earlier_one() -> None:
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.end_transaction(7, Marker.ABORT)
    log.add_transactional(7, (b"b", b"1"), sequence=1)
    log.end_transaction(7)
    twice = log.clean().clean()
    assert horizons(twice) == [None, HORIZON_MS, None, None]


def test_control_batches_of_other_kinds_stay() -> None:
    for key in (b"\0\0\0\2", b"\0\0\0\5"):
        built = build_batch([Record(key=key, value=b"x")], base_timestamp=NOW_MS, attributes=CONTROL)
        log = Log(segments=[[Batch(memoryview(built))]])
        after = log.clean().clean(now_ms=NOW_MS + 99 * DAY_MS)
        assert after.data == log.data


def test_the_last_batch_of_a_producer_stays_without_records() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"), pid=9, producer_epoch=3, sequence=40)
    log.add((b"a", b"2"), (b"b", b"2"), pid=9, producer_epoch=3, sequence=42, codec="gzip")
    log.add((b"a", b"3"), (b"b", b"3"))
    after = log.clean(producers={9: ProducerEnd(3, 3)})
    gap, kept, _ = after.batches
    assert (gap.producer_id, gap.count) == (-1, 0)
    assert (kept.producer_id, kept.producer_epoch, kept.base_sequence, kept.last_sequence) == (9, 3, 42, 43)
    assert (kept.count, kept.base_offset, kept.last_offset, kept.attributes) == (0, 2, 3, 0)
    assert (kept.base_timestamp, kept.max_timestamp) == (-1, NOW_MS + 1)
    assert after.clean(producers={9: ProducerEnd(3, 3)}).data == after.data
    assert len(after.clean().batches) == 2, "the owner has forgotten the producer"


def test_the_last_marker_of_a_producer_without_data_stays_without_its_record() -> None:
    log = Log()
    log.end_transaction(9, producer_epoch=4)
    known = {9: ProducerEnd(-1, 4)}
    after = log.clean(producers=known).clean(producers=known, now_ms=HORIZON_MS)
    (kept,) = after.batches
    assert (kept.producer_id, kept.producer_epoch, kept.count) == (9, 4, 0)
    assert kept.attributes == TRANSACTIONAL | CONTROL
    assert after.clean(producers=known, now_ms=HORIZON_MS).data == after.data
    assert after.clean(producers={9: ProducerEnd(-1, 5)}).batches[0].producer_id == -1


def test_producers_ends_come_from_the_owners_states() -> None:
    states = [
        ProducerState(1, 5, 0, 0, -1, (ProducerBatch(0, 10, 4, 0), ProducerBatch(5, 20, 1, 0))),
        ProducerState(2, 6, 0, 0, -1, ()),
    ]
    assert ProducerEnd.of(states) == {1: ProducerEnd(21, 5), 2: ProducerEnd(-1, 6)}


def test_an_aborted_transaction_of_another_time_counts_for_nothing() -> None:
    log = Log()
    log.add_transactional(7, (b"a", b"1"))
    log.end_transaction(7)
    later = [AbortedTransaction(7, 100, 110, 111), AbortedTransaction(8, 0, 5, 6)]
    assert keys_and_values(log.clean(aborted=later)) == [(b"a", b"1")]


def _records(log: Log) -> list:  # type: ignore[type-arg]
    from tests.unit.storage.cleaning.logs import records_of

    return list(records_of(log.batches))

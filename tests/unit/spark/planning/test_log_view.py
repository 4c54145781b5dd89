"""One partition's log as storage shows it: its ends, transactions and offsets by time, and what is read for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from bmq.core.model import SegmentName
from bmq.spark.options import OptionError, ReadOptions
from bmq.spark.planning.discover import find_logs
from bmq.spark.planning.log_view import LogView
from bmq.spark.planning.slices import Range
from bmq.spark.streaming.topic_follower import Follower
from bmq.storage.filesystem import FileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.seeds import amount
from tests.unit.spark.counting import Counting
from tests.unit.spark.planning.views import all_slices, only, options, wanted
from tests.unit.spark.storing import Store, batch, marker, series, transactional

pytestmark = pytest.mark.slow


async def test_a_partition_that_was_never_written_is_empty() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await Store(fs).create()
    view = await only(fs)
    assert (view.log.start, view.log.end) == (0, 0)
    assert not await all_slices(view)


async def test_rule_2_an_open_segment_ends_at_its_last_checkpoint() -> None:
    """The bytes behind it were perhaps never acknowledged."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment(series(0, 10))
    opened = await store.segment(series(10, 10), n=1, has_idx=False, covered=6, leftovers=b"\0" * 30)
    await store.journal(opened.checkpoint)
    view = await only(fs)
    assert view.log.end == 16
    assert [(piece.start, piece.end) for piece in await all_slices(view)] == [(0, 10), (10, 16)]
    assert (await all_slices(view))[-1].end_position == opened.checkpoint.position


async def test_the_newest_checkpoint_of_all_journals_counts() -> None:
    """A zombie's is older, and true; files of other incarnations may hold anything."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create(2)
    old = await store.segment(series(0, 10), has_idx=False, covered=4)
    new = await store.segment(series(10, 10), epoch=2, has_idx=False, covered=3)
    other = await store.segment(series(0, 5), partition=1, has_idx=False)
    await store.journal(replace(new.checkpoint, log_start=2), incarnation="1-bb", n=2)
    await store.journal(old.checkpoint, other.checkpoint, incarnation="0-aa", n=7)
    await store.journal(new.checkpoint, incarnation="1-bb", n=1)
    first, second = await find_logs(fs, options())
    assert (first.log.start, first.log.end) == (2, 13)
    assert second.log.end == 5


async def test_without_a_checkpoint_the_last_base_is_the_end() -> None:
    """Omit the checkpoint: the last segment was registered when everything before its base was flushed."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment(series(0, 10))
    await store.segment(series(10, 10), n=1, has_idx=False)
    view = await only(fs)
    assert view.log.end == 10
    latest = await only(fs, consistency="latest")
    assert latest.log.end == 20


async def test_consistency_latest_reads_to_what_is_visible() -> None:
    """Whole batches of it; and the same as ever where the last segment is closed."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    opened = await store.segment(series(0, 20), has_idx=False, covered=6, leftovers=batch(20, b"x" * 500)[:-1])
    await store.journal(opened.checkpoint)
    assert (await only(fs)).log.end == 6
    view = await only(fs, consistency="latest")
    assert view.log.end == 20
    (piece,) = await all_slices(view, committed=False)
    assert (piece.position, piece.end_position) == (0, len(opened.data))
    assert (await wanted(view, consistency="latest", endingOffsets='{"orders":{"0":21}}')).losses


async def test_rule_5_leftovers_of_a_failed_write_are_not_read() -> None:
    """Epoch and number order the segments: a superseded one counts for nothing, and each ends at the next base."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    failed = await store.segment(series(0, 20), covered=12)
    await store.segment(series(12, 3, size=70), n=1)
    await store.segment(series(15, 5), n=2, has_idx=False)
    await store.segment(series(15, 9, size=9), n=3)
    found = await all_slices(await only(fs))
    assert [(p.segment.n, p.start, p.end) for p in found] == [(0, 0, 12), (1, 12, 15), (3, 15, 24)]
    assert found[0].end_position == failed.checkpoint.position < len(failed.data)


async def test_a_fenced_writers_file_without_an_index_is_scanned() -> None:
    """Read a fenced segment without index: its successor's base ends it, headers are read from its last checkpoint."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    fenced = await store.segment(series(0, 20), has_idx=False, covered=6)
    await store.journal(fenced.checkpoint, incarnation="0-old")
    after = await store.segment(series(17, 5), epoch=2, has_idx=False)
    view = await only(fs)
    found = await all_slices(view)
    assert [(p.segment.epoch, p.start, p.end) for p in found] == [(1, 0, 17)]
    assert found[0].end_position == len(b"".join(series(0, 17)))
    await store.journal(after.checkpoint, incarnation="1-new")
    assert (await only(fs)).log.end == 22


async def test_a_file_that_should_hold_more_is_a_loss() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment(series(0, 10), has_idx=False)
    await store.segment(series(15, 5), epoch=2)
    view = await only(fs)
    await all_slices(view)
    assert view.losses
    assert "ends at offset 10, but should reach 15" in view.losses[0]


async def test_rule_10_a_deleted_prefix_is_not_read() -> None:
    """The log start is in the journal before anything is deleted; afterwards the names say it too."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    first = await store.segment(series(0, 10))
    await store.segment(series(10, 10), n=1, log_start=14)
    assert (await only(fs)).log.start == 14, "the index of the last segment says so too"
    await fs.delete(store.path().log(first.name))
    await store.journal(replace(first.checkpoint, segment=SegmentName(10, 1, 1), end_offset=20, log_start=17))
    view = await only(fs)
    assert (view.log.start, view.log.end) == (17, 20)
    (piece,) = await all_slices(view)
    assert (piece.start, piece.end) == (17, 20)
    assert piece.position > 0, "not read from the segment's beginning"
    assert (await wanted(view, startingOffsets='{"orders":{"0":3}}')).losses


async def test_an_index_that_covers_a_beginning_is_completed_by_a_scan() -> None:
    """The first index stands beside a longer log between the two steps that join neighbours."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    joined = await store.segment(series(0, 20), covered=10)
    await store.segment(series(20, 5), n=2)
    found = await all_slices(await only(fs))
    assert (found[0].start, found[0].end, found[0].end_position) == (0, 20, len(joined.data))
    assert list(found[0].cuts[::2]) == [2, 4, 6, 8], "what the index knows is used"


@pytest.mark.parametrize("damage", [b"", b"garbage", b"BMQIDX1\n\0\0\0\1"])
async def test_a_damaged_index_is_replaced_by_a_scan(damage: bytes) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    written = await store.segment(series(0, 10))
    await store.segment(series(10, 10), n=1)
    idx = store.path().idx(written.name)
    await fs.delete(idx)
    appender = await fs.create(idx)
    appender.write(damage)
    await appender.flush()
    await appender.close()
    found = await all_slices(await only(fs))
    assert (found[0].start, found[0].end, found[0].size) == (0, 10, len(written.data))


async def test_aborted_transactions_are_listed_and_open_ones_end_the_log() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment([batch(0, b"a"), transactional(1, b"b", b"c", pid=7), transactional(3, b"d", pid=8)])
    await store.segment([marker(4, pid=8, is_abort=False), marker(5, pid=7, is_abort=True)], n=1)
    await store.segment([transactional(6, b"e", pid=7), transactional(7, b"f", pid=9)], n=2)
    view = await only(fs)
    assert view.log.end == 6, "the last stable offset"
    assert [piece.aborted for piece in await all_slices(view)] == [((7, 1, 5),), ((7, 1, 5),)]
    assert (await only(fs, isolationLevel="read_uncommitted")).log.end == 8


async def test_an_abort_in_a_later_segment_hides_its_records() -> None:
    """Put an abort into a later segment than those read: no more indexes are read than lead to it."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment([batch(0, b"a"), transactional(1, b"b", pid=7)])
    await store.segment([batch(2, b"c")], n=1)
    await store.segment([marker(3, pid=7, is_abort=True)], n=2)
    for i in range(20):
        await store.segment([batch(4 + i, b"d")], n=3 + i)
    counting = Counting(fs)
    view = await only(cast(FileSystem, counting))
    counting.reads.clear()
    (piece,) = await view.slices(Range(0, 2), read_committed=True)
    assert piece.aborted == ((7, 1, 3),)
    assert counting.reads["idx"] == 3


async def test_transactions_are_found_without_an_index() -> None:
    """Open at the segment's beginning, as its predecessor's index says, and aborted in it."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment([transactional(0, b"a", pid=7)])
    await store.segment(
        [marker(1, pid=7, is_abort=True), transactional(2, b"c", pid=8), marker(3, pid=8, is_abort=True)],
        n=1,
        has_idx=False,
    )
    await store.segment([batch(4, b"d")], epoch=2)
    assert [piece.aborted for piece in await all_slices(await only(fs))] == [
        ((7, 0, 1),),
        ((7, 0, 1), (8, 2, 3)),
        (),
    ]


@pytest.mark.parametrize("journal", ["none", "older", "as old as the end", "newer"])
@pytest.mark.parametrize("without_index", [(), (1,), (0, 1)])
async def test_open_transactions_end_the_log_whoever_tells_of_them(
    journal: str, without_index: tuple[int, ...]
) -> None:
    """The end of the log is the base of a segment of which nothing is known; a transaction was open there."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    first = await store.segment(
        [batch(0, b"a"), transactional(1, b"b", pid=7), transactional(2, b"c", pid=8)],
        has_idx=0 not in without_index,
    )
    second = await store.segment(
        [marker(3, pid=8, is_abort=False), batch(4, b"d")], n=1, has_idx=1 not in without_index
    )
    third = await store.segment([batch(5, b"e"), marker(6, pid=7, is_abort=True)], n=2, has_idx=False)
    beginning = replace(first.checkpoint, position=len(batch(0, b"a")), end_offset=1, first_open_txn=-1, producers=())
    said = {"older": beginning, "as old as the end": second.checkpoint, "newer": third.checkpoint}
    if journal in said:
        await store.journal(said[journal])
    expected = (7, 7) if journal == "newer" else (1, 5)
    assert ((await only(fs)).log.end, (await only(fs, isolationLevel="read_uncommitted")).log.end) == expected
    follow = Follower(fs, ReadOptions.parse_stream({"root": "memory:", "topic": "orders"}))
    await follow.refresh()
    assert [view.log.end for view in follow.views.values()] == [expected[0]]
    view = await only(fs)
    pieces = await all_slices(view)
    assert {abort for piece in pieces for abort in piece.aborted} == ({(7, 1, 6)} if journal == "newer" else set())


async def test_the_end_costs_the_index_before_it_and_no_more() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    for n in range(20):
        await store.segment(series(10 * n, 10), n=n)
    await store.segment(series(200, 10), n=20, has_idx=False)
    counting = Counting(fs)
    assert (await only(cast(FileSystem, counting))).log.end == 200
    assert counting.reads == {"json": 1, "idx": 1}


async def test_offsets_are_found_by_timestamp() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment(series(0, 10, timestamp=1000, step=10))
    await store.segment([batch(10, b"a", b"b", b"c", timestamp=1100)], n=1)
    opened = await store.segment(series(13, 10, timestamp=1200, step=10), n=2, has_idx=False)
    await store.journal(opened.checkpoint)
    view = await only(fs)
    for timestamp, offset in {0: 0, 1000: 0, 1001: 1, 1090: 9, 1091: 10, 1101: 11, 1103: 13, 1290: 22}.items():
        assert await view.offset_for_timestamp(timestamp) == offset
    assert await view.offset_for_timestamp(1291) is None
    assert await wanted(view, startingTimestamp="1101", endingTimestamp="1250") == Range(11, 18)
    assert await wanted(view, endingTimestamp="5000") == Range(0, 23), "none that young: up to the end"
    assert await wanted(
        view, startingOffsetsByTimestamp='{"orders":{"0":5000}}', startingOffsetsByTimestampStrategy="latest"
    ) == Range(23, 23)
    with pytest.raises(OptionError, match="no record is as young as 5000"):
        await wanted(view, startingTimestamp="5000")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"startingOffsets": '{"orders":{"0":7}}', "endingOffsets": '{"orders":{"0":3}}'}, "offset 7 .*offset 3$"),
        ({"startingTimestamp": "1060", "endingTimestamp": "1050"}, "timestamp 1060 .*timestamp 1050$"),
        ({"startingTimestamp": "9001", "endingTimestamp": "9000"}, "timestamp 9001 .*timestamp 9000$"),
        (
            {"startingOffsetsByTimestamp": '{"orders":{"0":1060}}', "endingOffsetsByTimestamp": '{"orders":{"0":1}}'},
            "timestamp 1060 .*timestamp 1$",
        ),
        ({"startingOffsets": '{"orders":{"0":7}}', "endingTimestamp": "1030"}, "offset 7 .*offset 3$"),
        ({"startingTimestamp": "1070", "endingOffsets": '{"orders":{"0":3}}'}, "offset 7 .*offset 3$"),
        (
            {
                "startingTimestamp": "5000",
                "startingOffsetsByTimestampStrategy": "latest",
                "endingOffsets": '{"orders":{"0":3}}',
            },
            "offset 10 .*offset 3$",
        ),
    ],
)
async def test_a_range_that_ends_before_it_starts_is_refused(given: dict[str, str], says: str) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment(series(0, 10, timestamp=1000, step=10))
    view = await only(fs)
    with pytest.raises(OptionError, match=f"topic orders, partition 0: the starting {says}"):
        await wanted(view, **given)


async def test_timestamps_in_order_select_nothing_where_the_log_has_them_out_of_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that passes over segments may find the later timestamp first: that is no mistake of the user's."""
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment(series(0, 10))
    view = await only(fs)
    found = {990: 7, 1000: 3}

    async def search(_: LogView, timestamp: int) -> int:
        return found[timestamp]

    monkeypatch.setattr(LogView, "offset_for_timestamp", search)
    assert await wanted(view, startingTimestamp="990", endingTimestamp="1000") == Range(7, 7)


async def test_timestamps_may_be_out_of_order_by_a_few_segments() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    for n, timestamp in enumerate([10, 20, 90, 30, 40, 50, 60, 70, 80, 95]):
        await store.segment([batch(n, b"x", timestamp=timestamp)], n=n)
    view = await only(fs)
    assert await view.offset_for_timestamp(65) == 2, "as Kafka: the first in the log, not the nearest"
    assert await view.offset_for_timestamp(91) == 9


async def test_one_hour_of_thousands_of_segments_reads_a_bounded_number_of_indexes() -> None:
    """Months of a topic; an hour is a segment and a bit of the next."""

    count = amount(2_500, 10_000)
    begin = count * 7 // 10
    fs = MemoryFileSystem(MemoryStorage(), "test")
    hour = 3_600_000
    store = await Store(fs).create()
    for n in range(count):
        await store.segment(series(2 * n, 2, timestamp=n * hour, step=hour // 2), n=n)
    counting = Counting(fs)
    view = await only(cast(FileSystem, counting))
    assert counting.reads["idx"] == 1
    given = {"startingTimestamp": str(begin * hour), "endingTimestamp": str((begin + 1) * hour)}
    span = await wanted(view, **given)
    found = await view.slices(span, read_committed=True)
    assert span == Range(2 * begin, 2 * begin + 2)
    assert [(piece.start, piece.end) for piece in found] == [(2 * begin, 2 * begin + 2)]
    assert counting.reads["idx"] <= 60
    assert counting.reads["log"] <= 2

    counting.reads.clear()
    found = await view.slices(Range(2_000, 2_003), read_committed=True)
    assert [(piece.start, piece.end) for piece in found] == [(2_000, 2_002), (2_002, 2_003)]
    assert counting.reads == {"idx": 2}, "offsets stand in the names"


STARTS: list[tuple[dict[str, str], Callable[[int, int, int], bool]]] = [
    ({}, lambda partition, offset, time: True),
    ({"startingOffsets": "earliest"}, lambda partition, offset, time: True),
    ({"startingOffsets": '{"orders":{"0":7,"1":-2}}'}, lambda partition, offset, time: offset >= (7, 0)[partition]),
    ({"startingTimestamp": "1055"}, lambda partition, offset, time: time >= 1055),
    (
        {"startingOffsetsByTimestamp": '{"orders":{"0":1030,"1":1125}}'},
        lambda partition, offset, time: time >= (1030, 1125)[partition],
    ),
    (
        {"startingTimestamp": "1055", "startingOffsets": '{"orders":{"0":1,"1":2}}'},
        lambda partition, offset, time: time >= 1055,
    ),
]
"""Options, and which records they let through: (partition, offset, timestamp)."""
ENDS: list[tuple[dict[str, str], Callable[[int, int, int], bool]]] = [
    ({}, lambda partition, offset, time: True),
    ({"endingOffsets": "latest"}, lambda partition, offset, time: True),
    ({"endingOffsets": '{"orders":{"0":-1,"1":13}}'}, lambda partition, offset, time: offset < (99, 13)[partition]),
    ({"endingTimestamp": "1145"}, lambda partition, offset, time: time < 1145),
    (
        {"endingOffsetsByTimestamp": '{"orders":{"0":1090,"1":9999}}'},
        lambda partition, offset, time: time < (1090, 9999)[partition],
    ),
    (
        {"endingOffsetsByTimestamp": '{"orders":{"0":1090,"1":1180}}', "endingOffsets": '{"orders":{"0":1,"1":2}}'},
        lambda partition, offset, time: time < (1090, 1180)[partition],
    ),
]


@pytest.mark.parametrize("subscription", [{"topic": "orders"}, {"assign": '{"orders": [1, 0]}'}])
async def test_starts_and_ends_are_given_in_any_mix(subscription: dict[str, str]) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create(2)
    for partition in range(2):
        for n in range(4):
            first = 5 * n
            await store.segment(series(first, 5, timestamp=1000 + 10 * first, step=10), partition=partition, n=n)
    records = {(partition, offset) for partition in range(2) for offset in range(20)}
    for starting, is_begun in STARTS:
        for ending, is_open in ENDS:
            given = ReadOptions.parse({"root": "memory:"} | subscription | starting | ending)
            found = set()
            for view in await find_logs(fs, given):
                span = await view.wanted(given)
                assert not span.losses
                for piece in await view.slices(span, read_committed=True):
                    found |= {(piece.partition, offset) for offset in range(piece.start, piece.end)}
            expected = {at for at in records if is_begun(*at, 1000 + 10 * at[1]) and is_open(*at, 1000 + 10 * at[1])}
            assert found == expected, (starting, ending)

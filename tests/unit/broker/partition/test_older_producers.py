"""Takeovers that find no checkpoint of the producers at the log's end: what they read on from, and what they then know.

The log has four segments of four batches. The record lists the third, closed, and the fourth, open. Each combination of
lost files and checkpoints is tried against two rules: a transaction that may be open is known, and no producer without
a transaction is refused its next batch.
"""

from __future__ import annotations

import asyncio
import itertools
from array import array
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from bmq.broker import events as ev
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.older_producers import producers_before
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.partition.recovery import Takeover
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.filesystem import write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.recovery import FencedSegment, Found
from bmq.storage.segment import decode_idx, encode_idx
from tests.harness.fakes import FakeClock
from tests.harness.members import lone_broker
from tests.harness.waiting import until
from tests.unit.broker.partition.transactional import data, marker

KEY = PartitionKey(UUID(int=7), 0)
PATH = PartitionPath("orders", str(KEY.topic_id), 0)
PLAIN = 9
WALL_MS = 1


def plain(base: int, sequence: int) -> Batch:
    return data(sequence, pid=PLAIN, base=base, is_transactional=False)


LOG = [
    [data(0, pid=7, base=0), plain(1, 0), data(0, pid=8, base=2), plain(3, 1)],
    [marker(Marker.ABORT, pid=7, base=4), data(1, pid=7, base=5), plain(6, 2), plain(7, 3)],
    [marker(Marker.COMMIT, pid=8, base=8), plain(9, 4), data(0, pid=6, base=10), plain(11, 5)],
    [data(2, pid=7, base=12), marker(Marker.ABORT, pid=6, base=13), data(1, pid=6, base=14), plain(15, 6)],
]
END = 16
NAMES = [SegmentName(4 * n, 1, n) for n in range(4)]
BYTES = [b"".join(bytes(batch.data) for batch in batches) for batches in LOG]
BATCHES = list(itertools.chain(*LOG))


def table_at(end: int, batches: list[Batch] = BATCHES) -> ProducerTable:
    table = ProducerTable()
    for batch in batches:
        if batch.base_offset < end:
            table.replay(batch, WALL_MS)
    return table


def checkpoint_at(end: int) -> Checkpoint:
    """Return the checkpoint that an owner wrote when it had flushed up to ``end``."""
    at, table = (end - 1) // 4, table_at(end)
    position = sum(batch.size for batch in LOG[at] if batch.base_offset < end)
    aborted = [one for one in table.transactions.take_aborted() if one.last_offset >= NAMES[at].base]
    return Checkpoint(
        key=KEY,
        segment=NAMES[at],
        position=position,
        end_offset=end,
        log_start=0,
        first_open_txn=table.transactions.first_open,
        index=array("q"),
        epochs=((1, NAMES[at].base),),
        producers=table.snapshot(),
        aborted=tuple(aborted),
    )


@dataclass(frozen=True)
class Left:
    """Files that are left of a segment."""

    has_log: bool = True
    idx: str = "sound"  # sound, damaged, none

    @property
    def is_known(self) -> bool:
        return self.idx == "sound"


async def take_over(left: tuple[Left, ...], journal_end: int | None) -> tuple[ev.LogRecovered, list[str]]:
    """Return the result of a takeover, and what it reports."""
    takeover, effect, reported = await takeover_of(left, journal_end)
    event = await takeover.recover(effect, is_ours)
    assert isinstance(event, ev.LogRecovered), event
    for report in takeover.losses:
        report()
    return event, reported


async def is_ours() -> bool:
    return True


async def takeover_of(left: tuple[Left, ...], journal_end: int | None) -> tuple[Takeover, ev.RecoverLog, list[str]]:
    """Return a takeover, its recovery's effect, and the list of its reports."""
    fs = MemoryFileSystem(MemoryStorage(), "b")
    for number, (name, each) in enumerate(zip(NAMES, (*left, Left(idx="none")), strict=True)):
        if each.has_log:
            await write_once(fs, PATH.log(name), BYTES[number])
        if each.idx != "none":
            raw = bytearray(encode_idx(replace(checkpoint_at(4 * number + 4), is_closed=True)))
            raw[-1] ^= each.idx == "damaged"
            await write_once(fs, PATH.idx(name), bytes(raw))

    async def find(incarnation: str, key: PartitionKey, *, passes_damaged: bool) -> Checkpoint | None:
        return None if journal_end is None else checkpoint_at(journal_end)

    clock = FakeClock(WALL_MS, asyncio.get_running_loop().time)
    broker = lone_broker(fs, MemoryKeyValue(MemoryStore()), incarnation="b", clock=clock)
    context = broker.context
    context.journals.find = find  # type: ignore[assignment,method-assign]
    files = SegmentFiles(context, PATH, is_synced=False, replication=3)
    entries = [
        SegmentEntry(name=name, spare="/spare", holder="a", file_id=1, length=length, end_offset=end)
        for name, length, end in ((NAMES[2], len(BYTES[2]), 12), (NAMES[3], -1, -1))
    ]
    segments = [FencedSegment(name=NAMES[n], found=Found.FINAL, length=len(BYTES[n])) for n in (2, 3)]
    takeover = Takeover(context, files, KEY, 65_536)
    effect = ev.RecoverLog(tuple(segments), tuple(entries), ("a",), epoch=2, last=NAMES[3].registration)
    return takeover, effect, broker.reports


def opened(event: ev.LogRecovered) -> dict[int, int]:
    return {state.producer_id: state.txn_start for state in event.producers if state.txn_start >= 0}


STATES = [Left(has_log, idx) for has_log in (True, False) for idx in ("sound", "damaged", "none")]
COMBINATIONS = list(itertools.product(itertools.product(STATES, repeat=3), (None, 2, 6, 10)))


@pytest.mark.slow
@pytest.mark.parametrize("journal_end", [None, 2, 6, 10])
@pytest.mark.parametrize("third", STATES, ids=str)
async def test_no_combination_of_losses_takes_an_unknown_transaction_for_none(
    third: Left, journal_end: int | None
) -> None:
    """Look at each transaction that is open at the end and has a batch left: it is known as open, from there or before.

    A producer without a transaction may go on, as today. Nothing is known less exactly than from what is left.
    """
    for first, second in itertools.product(STATES, repeat=2):
        left = (first, second, third)
        event, _ = await take_over(left, journal_end)
        assert event.recovered.end_offset == END
        truth = dict(table_at(END).transactions.opened)
        assert truth == {7: 5, 6: 14}
        found = opened(event)
        for pid, start in truth.items():
            batches = [
                batch.base_offset
                for batch, segment in ((batch, batch.base_offset // 4) for batch in BATCHES)
                if batch.producer_id == pid and start <= batch.base_offset and (segment == 3 or left[segment].has_log)
            ]
            assert found.get(pid, END) <= batches[0], (left, pid, found)
        ProducerTable(event.producers).check(plain(END, 7))


@pytest.mark.slow
@pytest.mark.parametrize("journal_end", [None, 2, 6, 10])
async def test_without_missing_batches_everything_is_known(journal_end: int | None) -> None:
    """Expect the state of an owner that never ended, whichever indexes are left, and right indexes to be written."""
    for kinds in itertools.product(("sound", "damaged", "none"), repeat=3):
        event, reported = await take_over(tuple(Left(idx=kind) for kind in kinds), journal_end)
        assert set(map(repr, event.producers)) == set(map(repr, table_at(END).snapshot())), kinds
        assert [text for text in reported if "missing" in text] == []
        for segment in event.recovered.segments:
            wanted = checkpoint_at(segment.end_offset)
            assert (segment.first_open_txn, tuple(segment.aborted)) == (wanted.first_open_txn, wanted.aborted)
            assert set(map(repr, segment.producers)) == set(map(repr, wanted.producers))


async def test_an_index_that_retention_removed_with_all_before_it_leaves_nothing_unknown() -> None:
    """Nothing of an earlier transaction is left to be shown, so nothing holds readers back."""
    gone = Left(has_log=False, idx="none")
    event, _ = await take_over((gone, gone, gone), None)
    assert opened(event) == {7: 12, 6: 14}
    assert event.log_start == 12
    assert event.checkpoint is not None
    assert event.checkpoint.knows_producers


async def test_a_transaction_whose_end_may_be_missing_stays_open_and_is_reported() -> None:
    """The third segment vanished with the marker of producer 8: its records in the first one are not shown."""
    event, reported = await take_over((Left(), Left(), Left(has_log=False, idx="none")), None)
    assert opened(event) == {7: 5, 8: 2, 6: 14}
    (text,) = (text for text in reported if "are missing" in text)
    assert "batches below offset 12 are missing: the transaction that is open from offset 2 on" in text


async def test_an_aborted_transaction_that_began_before_the_source_keeps_its_first_offset() -> None:
    """Rebuild the third and the fourth index without any checkpoint: the transactions' beginnings lie before them."""
    none = Left(idx="none")
    event, _ = await take_over((none, none, none), None)
    assert [segment.aborted for segment in event.recovered.segments] == [[], [AbortedTransaction(6, 10, 13, 5)]]


@pytest.mark.parametrize("kinds", list(itertools.product(("sound", "none"), repeat=2)))
async def test_the_index_of_a_segment_that_was_not_read_has_no_aborts_of_segments_before(
    kinds: tuple[str, str],
) -> None:
    """A reader hides what follows the first offset of an aborted transaction until its marker, which lies before."""
    takeover, effect, _ = await takeover_of((*(Left(idx=kind) for kind in kinds), Left(idx="none")), 14)
    event = await takeover.recover(effect, is_ours)
    assert isinstance(event, ev.LogRecovered)
    assert NAMES[2] in event.unindexed
    ended: list[SegmentName] = []
    effects = ev.WriteIndexes(event.recovered, event.log_start)
    await takeover.missing_indexes(effects, ended.append, lambda work: asyncio.create_task(work())).write()
    await until(lambda: NAMES[2] in ended)
    fs, wanted = takeover._context.fs, checkpoint_at(12)
    index = decode_idx(await fs.read(PATH.idx(NAMES[2]), 0, 1 << 20))
    assert index.aborted == wanted.aborted == ()
    assert (index.first_open_txn, index.epochs) == (wanted.first_open_txn, ((-1, 8),))
    assert set(map(repr, index.producers)) == set(map(repr, wanted.producers))


STRAYS = {
    "a source": SegmentName(4, 1, 1),
    "its first source": SegmentName(0, 1, 0),
    "a later registration": SegmentName(4, 1, 3),
}


@pytest.mark.parametrize("end", [6, 8, 10])
@pytest.mark.parametrize("idx", ["sound", "damaged", "none"])
@pytest.mark.parametrize("stray", STRAYS.values(), ids=STRAYS)
async def test_a_late_index_within_a_cleaned_segment_is_no_source(stray: SegmentName, idx: str, end: int) -> None:
    """A former owner writes the index of a source late: what is behind its end is in no segment of that name."""
    fs = MemoryFileSystem(MemoryStorage(), "b")
    cleaned = SegmentName(0, 1, 2, 1)
    await write_once(fs, PATH.log(cleaned), b"".join(BYTES[:3]))
    await write_once(fs, PATH.log(NAMES[3]), BYTES[3])
    if idx != "none":
        whole = replace(checkpoint_at(12), segment=cleaned, position=sum(map(len, BYTES[:3])), is_closed=True)
        raw = bytearray(encode_idx(whole))
        raw[-1] ^= idx == "damaged"
        await write_once(fs, PATH.idx(cleaned), bytes(raw))
    await write_once(fs, PATH.idx(stray), encode_idx(replace(checkpoint_at(end), segment=stray, is_closed=True)))
    found = await producers_before(fs, PATH, None, 12, WALL_MS)
    assert found.is_complete
    assert set(map(repr, found.table.snapshot())) == set(map(repr, table_at(12).snapshot()))


async def test_the_last_index_of_a_merged_file_is_a_source_without_its_own() -> None:
    """The owner of a merge died behind the concat: its index is that of the first file, and the others are left."""
    fs = MemoryFileSystem(MemoryStorage(), "b")
    await write_once(fs, PATH.log(NAMES[0]), b"".join(BYTES[:3]))
    await write_once(fs, PATH.log(NAMES[3]), BYTES[3])
    for number in range(3):
        await write_once(fs, PATH.idx(NAMES[number]), encode_idx(checkpoint_at(4 * number + 4)))
    reads, real = list[str](), fs.read

    async def counted(path: str, position: int, length: int) -> bytes:
        reads.append(path)
        return await real(path, position, length)

    fs.read = counted  # type: ignore[method-assign]
    found = await producers_before(fs, PATH, None, 12, WALL_MS)
    assert found.is_complete
    assert set(map(repr, found.table.snapshot())) == set(map(repr, table_at(12).snapshot()))
    assert reads == [PATH.idx(NAMES[2])], "no file is scanned"

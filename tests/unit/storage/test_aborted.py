"""The aborted transactions of a range: equal to what a slow reader of the whole log finds, wherever they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from bmq.core.errors import FormatError
from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker, marker_of
from bmq.storage.aborted import (
    AbortedTransactions,
    RecentAborted,
    SegmentTransactions,
    decode_aborted,
    encode_aborted,
)
from bmq.storage.aborted_reader import AbortedReader, TransactionsUnknown
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint
from bmq.storage.filesystem import write_once
from bmq.storage.log_reader import LogSlice
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.segment import encode_idx
from bmq.storage.transactions import Transactions
from tests.harness.seeds import seeds
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.storage.stored_segments import KEY, PATH, SlowFileSystem, reader


@dataclass
class Log:
    """The log, and its open and aborted transactions by a reader of every batch."""

    batches: list[Batch] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    end: int = 0

    def add(self, batch: Batch) -> None:
        batch.assign(self.end, 1)
        self.batches.append(batch)
        self.end = batch.next_offset
        pid = batch.producer_id
        if not batch.is_control:
            if batch.is_transactional:
                self.opened.setdefault(pid, batch.base_offset)
            return
        first = self.opened.pop(pid, -1)
        if first >= 0 and marker_of(batch) is Marker.ABORT:
            self.aborted.append(AbortedTransaction(pid, first, batch.base_offset, self.stable))

    @property
    def stable(self) -> int:
        return min(self.opened.values(), default=self.end)

    def slow(self, start: int, end: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that a reader of [start, end) must know, by the words of the rule."""
        return [each for each in self.aborted if each.last_offset >= start and each.first_offset < end]


def random_log(rng: Random, count: int) -> Log:
    log = Log()
    for _ in range(count):
        pid = rng.randint(1, 5)
        if pid in log.opened and rng.random() < 0.5:
            log.add(marker(rng.choice([Marker.ABORT, Marker.ABORT, Marker.COMMIT]), pid=pid))
        else:
            log.add(data(-1, pid=pid, count=rng.randint(1, 3), is_transactional=pid != 5))
    return log


def cut(rng: Random, log: Log, count: int) -> list[list[Batch]]:
    """Return the log's batches in ``count`` segments."""
    at = sorted(rng.sample(range(1, len(log.batches)), count - 1))
    return [log.batches[start:end] for start, end in zip([0, *at], [*at, len(log.batches)], strict=True)]


def scanned(segments: Sequence[Sequence[Batch]]) -> list[SegmentTransactions]:
    """Return what each segment's index holds."""
    transactions, found = Transactions(), []
    for segment in segments:
        for batch in segment:
            transactions.pass_batch(batch)
        aborted = AbortedTransactions(transactions.take_aborted())
        found.append(SegmentTransactions(segment[-1].next_offset, transactions.first_open, aborted))
    return found


async def store(fs: MemoryFileSystem, segments: Sequence[Sequence[Batch]], indexed: int) -> None:
    """Write the segments, the first ``indexed`` of them with their indexes."""
    for number, (segment, known) in enumerate(zip(segments, scanned(segments), strict=True)):
        name = SegmentName(segment[0].base_offset, 1, number)
        content = b"".join(bytes(batch.data) for batch in segment)
        await write_once(fs, PATH.log(name), content)
        if number < indexed:
            index = Checkpoint(
                key=KEY,
                segment=name,
                position=len(content),
                end_offset=known.end,
                log_start=0,
                is_closed=True,
                first_open_txn=known.first_open,
                aborted=tuple(known.aborted),
            )
            await write_once(fs, PATH.idx(name), encode_idx(index))


def recent_of(segments: Sequence[Sequence[Batch]], since: int, end: int) -> RecentAborted:
    """Return what an owner has in memory of the segments from number ``since`` on."""
    lists = [each.aborted for each in scanned(segments)[since:]]
    return RecentAborted(segments[since][0].base_offset if since < len(segments) else end, lists)


@pytest.mark.parametrize("seed", seeds(20, 600))
async def test_the_list_of_any_range_is_the_slow_readers(seed: int) -> None:
    """Closed segments with indexes, closed ones that the owner still remembers, and the segment that is written."""
    rng = Random(seed)
    log = random_log(rng, rng.randint(8, 60))
    segments = cut(rng, log, rng.randint(1, 6))
    indexed = rng.randint(0, len(segments))
    fs = MemoryFileSystem(MemoryStorage(), "h")
    await store(fs, segments, indexed)
    remembered = rng.randint(0, indexed)
    recent = recent_of(segments, remembered, log.end)
    whole, stored = AbortedTransactions(log.aborted), reader(fs)
    for _ in range(40):
        start = rng.randrange(log.end)
        found = await stored.read_slice(start, rng.choice([1, 200, 700, 1 << 20]), log.stable)
        if not found.size:
            continue
        expected = log.slow(start, found.end_offset)
        completed = await AbortedReader(stored).with_aborted(found, start, log.end, recent=recent)
        assert list(completed.aborted) == expected
        assert whole.overlapping(start, found.end_offset)[0] == expected


async def test_a_log_without_transactions_costs_no_read() -> None:
    log = Log()
    for _ in range(20):
        log.add(data(-1, is_transactional=False))
    fs = SlowFileSystem()
    segments = [log.batches[:10], log.batches[10:]]
    await store(fs, segments, 2)
    stored = reader(fs)
    found = await stored.read_slice(0, 1 << 20, log.end)
    reads = fs.idx_reads, len(fs.log_reads)
    for recent in (None, RecentAborted(log.end), recent_of(segments, 1, log.end)):
        assert await AbortedReader(stored).with_aborted(found, 0, log.end, recent=recent) is found
    assert (fs.idx_reads, len(fs.log_reads)) == reads


async def test_without_an_index_records_of_transactions_are_not_given_out_and_plain_ones_are() -> None:
    log = Log()
    for batch in (data(-1, is_transactional=False), data(-1), marker(Marker.ABORT), data(-1, is_transactional=False)):
        log.add(batch)
    fs = MemoryFileSystem(MemoryStorage(), "h")
    await store(fs, [log.batches[:3], log.batches[3:]], 0)
    stored, recent = reader(fs), RecentAborted(3)
    plain = await stored.read_slice(0, 1, log.end)
    assert await AbortedReader(stored).with_aborted(plain, 0, log.end, recent=recent) is plain
    found = await stored.read_slice(1, 1, log.end)
    with pytest.raises(TransactionsUnknown, match=r"\.idx is missing.*offsets 1 to 2"):
        await AbortedReader(stored).with_aborted(found, 1, log.end, recent=recent)
    last = await stored.read_slice(3, 1, log.end)
    assert await AbortedReader(stored).with_aborted(last, 3, log.end, recent=recent) is last


async def test_segments_that_were_merged_under_a_reader_give_the_same_list() -> None:
    log = Log()
    for batch in (data(-1), data(-1, pid=7), marker(Marker.ABORT), data(-1), marker(Marker.ABORT, pid=7), data(-1)):
        log.add(batch)
    fs = MemoryFileSystem(MemoryStorage(), "h")
    parts = [log.batches[:2], log.batches[2:4], log.batches[4:]]
    await store(fs, parts, 2)
    stored, recent = reader(fs), recent_of(parts, 2, log.end)
    found = await stored.read_slice(0, 1 << 20, log.stable)
    assert list((await AbortedReader(stored).with_aborted(found, 0, log.end, recent=recent)).aborted) == log.aborted
    for base in (0, 2):
        name = SegmentName(base, 1, base // 2)
        await fs.delete(PATH.log(name))
        await fs.delete(PATH.idx(name))
    await fs.delete(PATH.log(SegmentName(4, 1, 2)))
    await store(fs, [log.batches[:4], log.batches[4:]], 1)
    again = await AbortedReader(stored).with_aborted(found, 0, log.end, recent=recent)
    assert list(again.aborted) == log.aborted
    assert list((await AbortedReader(reader(fs)).with_aborted(found, 0, log.end, recent=recent)).aborted) == log.aborted


def test_an_entry_whose_marker_lies_before_the_range_is_not_listed() -> None:
    """Look for a listed transaction that would hide what its producer has committed since."""
    known = AbortedTransactions([AbortedTransaction(1, 0, 5, 6), AbortedTransaction(1, 8, 9, 10)])
    assert [each.last_offset for each in known.overlapping(5, 8)[0]] == [5]
    assert known.overlapping(6, 8)[0] == []
    assert known.overlapping(6, 9)[0] == [AbortedTransaction(1, 8, 9, 10)]


@pytest.mark.parametrize("seed", range(20))
def test_a_list_that_is_fed_in_overlapping_pieces_and_cut_at_its_front_stays_exact(seed: int) -> None:
    rng = Random(seed)
    log = random_log(rng, 400)
    known, at, start = AbortedTransactions(), 0, 0
    while at < log.end:
        end = min(log.end, at + rng.randint(1, 40))
        known.merge(log.slow(at, end))
        at = end
        if rng.random() < 0.3:
            start = rng.randint(start, at)
            known.drop_before(start)
        for _ in range(3):
            low = rng.randint(start, at)
            high = rng.randint(low, at)
            assert known.overlapping(low, high)[0] == log.slow(low, high)
    assert len(known) == len(log.slow(start, log.end)) == len(list(known))


def test_encoded_transactions_are_decoded_and_others_refused() -> None:
    aborted = [AbortedTransaction(1, 2, 5, 3), AbortedTransaction(-4, 3, 9, 10)]
    assert decode_aborted(memoryview(encode_aborted(aborted))) == aborted
    assert decode_aborted(memoryview(AbortedTransactions(aborted).encode(6))) == aborted[1:]
    assert decode_aborted(memoryview(RecentAborted(0, [AbortedTransactions(aborted)]).encode(0))) == aborted
    assert (AbortedTransactions(aborted).last_marker, AbortedTransactions().last_marker) == (9, -1)
    with pytest.raises(FormatError, match="not whole aborted transactions"):
        decode_aborted(memoryview(b"x" * 31))


async def test_nothing_was_read() -> None:
    assert await AbortedReader(reader(SlowFileSystem())).with_aborted(LogSlice(), 0, 5) == LogSlice()

"""Recovery (storage/recovery.py): the table against the rules of the design, written independently; and ``recover`` on
files in memory, a crash's story at a time."""

from __future__ import annotations

import random
import uuid
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch, Record, build_batch
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileStatus, StorageUnavailable, write_once
from bmq.storage.index import SegmentIndex
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.recovery import (
    TABLE,
    Action,
    Covered,
    Facts,
    FencedSegment,
    Found,
    Offline,
    Reach,
    Recovered,
    Row,
    combinations,
    ends,
    find_unlisted,
    judge,
    recover,
)
from bmq.storage.segment import Tail
from tests.harness.seeds import seeds

TOPIC_ID = uuid.UUID(int=3)
KEY = PartitionKey(TOPIC_ID, 0)
PARTITION = PartitionPath("orders", str(TOPIC_ID), 0)

# --------------------------------------------------------------------------------------------------------- the table


def expected(facts: Facts) -> Action:
    """Return the action that the design's rules demand, written in their own words: what was acknowledged, is it all
    there?"""
    if facts.found is Found.UNLISTED:
        return Action.OFFLINE  # a later state of the store registered it: this one lacks what was acknowledged then
    was_flushed = facts.covered is not Covered.NONE  # a checkpoint is a fact about flushed data
    if facts.reach is Reach.SUPERSEDED:
        # Rule 5: it ends where a later one begins, so nothing of it counts.  Nothing acknowledged may be cut (rule 4).
        return Action.OFFLINE if was_flushed else Action.EMPTY
    if facts.found is Found.DELETED:
        return Action.EMPTY  # below a durable log start: whatever it held was acknowledged, then deleted (rule 10)
    # The next one was registered at the end of what was flushed (rules 3 and 6).
    has_acknowledged = was_flushed or facts.reach is Reach.GAP
    if facts.found in (Found.MOVED, Found.NOWHERE):  # no process of BMQ moves, or removes, what the record lists
        return Action.OFFLINE
    if facts.found is Found.SPARE:  # written only under its final name (rule 3)
        return Action.OFFLINE if has_acknowledged else Action.EMPTY
    is_short = facts.covered is Covered.SHORT or facts.reach is Reach.GAP
    is_damaged = facts.tail is Tail.BROKEN  # "a bad batch followed by a good one" (rule 4)
    return Action.OFFLINE if is_short or is_damaged else Action.ACCEPT  # a torn end only ends the log


@pytest.mark.parametrize("facts", list(combinations()), ids=repr)
def test_every_combination_of_facts_has_a_row_that_obeys_the_rules(facts: Facts) -> None:
    first = next(row for row in TABLE if row.fits(facts))
    assert judge(facts) is first
    assert first.action is expected(facts)


def test_every_combination_of_facts_is_tested() -> None:
    every = list(combinations())
    assert len(every) == len(set(every)) == len(Found) * len(Covered) * len(Tail) * len(Reach)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.label}-{row.covered}")
def test_no_row_is_dead(row: Row) -> None:
    """Some combination comes first to each row; and each says which crash it stands for."""
    assert any(judge(facts) is row for facts in combinations())
    assert row.label
    assert row.crash


def test_a_row_fits_by_all_its_facts() -> None:
    row = Row(Found.FINAL, None, Tail.TORN, None, Action.ACCEPT, "", "")
    fitting = [facts for facts in combinations() if row.fits(facts)]
    assert len(fitting) == len(Covered) * len(Reach)
    assert all(facts.found is Found.FINAL and facts.tail is Tail.TORN for facts in fitting)


# ---------------------------------------------------------------------------------------------------------- the ends


@pytest.mark.parametrize(
    ("bases", "limits"),
    [
        ([], []),
        ([5], [None]),
        ([0, 10, 20], [10, 20, None]),
        ([0, 10, 10], [10, 10, None]),  # the second was never acknowledged
        ([0, 20, 10], [10, 10, None]),  # a later one may begin lower: it bounds all before it
        ([0, 10, 30, 20, 25], [10, 20, 20, 25, None]),
    ],
)
def test_a_segment_ends_at_the_smallest_later_base(bases: list[int], limits: list[int | None]) -> None:
    """Rule 5."""
    assert ends([SegmentName(base, 1, n) for n, base in enumerate(bases)]) == limits


# ----------------------------------------------------------------------------------------------------- files in memory


def batch(base: int, size: int = 50, epoch: int = 1) -> bytes:
    """Return a batch of two records."""
    records = [Record(value=b"v" * size), Record(timestamp_delta=1)]
    return bytes(build_batch(records, base_offset=base, base_timestamp=1000 + base, leader_epoch=epoch))


def batches(start: int, end: int, *, size: int = 50, epoch: int = 1) -> bytes:
    assert (end - start) % 2 == 0
    return b"".join(batch(base, size, epoch) for base in range(start, end, 2))


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


class CountingFileSystem(MemoryFileSystem):
    """Notes every read; ``failing`` of them fail first."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage(), "next-owner")
        self.reads: list[tuple[str, int, int]] = []
        self.failing = 0

    async def read(self, path: str, position: int, length: int) -> bytes:
        if self.failing:
            self.failing -= 1
            raise StorageUnavailable("for a moment")
        data = await super().read(path, position, length)
        self.reads.append((path, position, len(data)))
        return data

    @property
    def bytes_read(self) -> int:
        return sum(size for _, _, size in self.reads)


@dataclass
class Listed:
    """A segment as its partition's record lists it, with what stands in its file."""

    base: int
    data: bytes = b""
    found: Found = Found.FINAL
    length: int | None = None
    n: int = -1
    epoch: int = 1

    def named(self, n: int) -> SegmentName:
        return SegmentName(self.base, self.epoch, n if self.n < 0 else self.n)


@dataclass
class Story:
    """Segments in registration order, and the last checkpoint."""

    segments: Sequence[Listed]
    checkpoint: Checkpoint | None = None
    interval: int = 65_536
    log_start: int = 0
    heard: list[int] = field(default_factory=list)
    fs: CountingFileSystem = field(default_factory=CountingFileSystem)

    async def recover(self) -> Recovered | Offline:
        fenced = []
        for n, listed in enumerate(self.segments):
            name = listed.named(n)
            if listed.found is Found.FINAL:
                await write_once(self.fs, PARTITION.log(name), listed.data)
            length = len(listed.data) if listed.length is None else listed.length
            fenced.append(FencedSegment(name=name, found=listed.found, length=length))
        return await self.once(fenced)

    async def once(self, fenced: Sequence[FencedSegment]) -> Recovered | Offline:
        def hear(found: Batch) -> None:
            self.heard.append(found.base_offset)

        return await recover(
            self.fs,
            PARTITION,
            fenced,
            self.checkpoint,
            hear,
            log_start=self.log_start,
            index_interval_bytes=self.interval,
        )

    async def accepted(self) -> Recovered:
        result = await self.recover()
        assert isinstance(result, Recovered), result
        return result

    async def refused(self) -> Offline:
        result = await self.recover()
        assert isinstance(result, Offline), result
        return result

    @property
    def heard_range(self) -> tuple[int, int] | None:
        """Offsets heard, which must be dense."""
        if not self.heard:
            return None
        assert self.heard == list(range(self.heard[0], self.heard[-1] + 1, 2))
        return self.heard[0], self.heard[-1] + 2


def covering(base: int, end: int, data: bytes, n: int = 0, epoch: int = 1) -> Checkpoint:
    """Return the checkpoint of the segment that begins at ``base``, when ``data`` of it, up to ``end``, was flushed."""
    return Checkpoint(
        key=KEY, segment=SegmentName(base, epoch, n), position=len(data), end_offset=end, log_start=0
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------- stories: ACCEPT


async def test_a_log_without_segments_and_checkpoints_is_empty() -> None:
    story = Story([])
    result = await story.accepted()
    assert (result.end_offset, result.segments, result.bytes_read, result.labels) == (0, [], 0, [])


async def test_only_a_checkpoint_is_left() -> None:
    """Every segment is closed and dropped from the record: the log ends where the last checkpoint says."""
    result = await Story([], covering(0, 44, batches(0, 44))).accepted()
    assert (result.end_offset, result.segments) == (44, [])


async def test_an_empty_segment_holds_nothing() -> None:
    """Registered and renamed, the owner died before its first write."""
    result = await Story([Listed(10)]).accepted()
    assert (result.end_offset, result.segments, result.labels) == (10, [], [f"{SegmentName(10, 1, 0)}: whole"])


async def test_a_whole_segment_gives_its_length_end_index_and_epochs() -> None:
    """Length, end, index, timestamps and leader epochs are those of the file."""
    data = batches(10, 20, epoch=1) + batches(20, 24, epoch=2)
    story = Story([Listed(10, data)], interval=1)
    result = await story.accepted()
    (segment,) = result.segments
    assert (result.end_offset, result.bytes_read, story.heard_range) == (24, len(data), (10, 24))
    assert (segment.name, segment.length, segment.end_offset) == (SegmentName(10, 1, 0), len(data), 24)
    assert segment.epochs == [(1, 10), (2, 20)]
    assert (segment.index.max_timestamp, segment.index.max_timestamp_offset) == (1023, 22)
    size = len(batch(10))
    assert segment.index.entries[:6].tolist() == [12, size, 1011, 14, 2 * size, 1013]


@pytest.mark.slow
async def test_a_log_torn_at_any_byte_ends_where_the_torn_batch_begins() -> None:
    """The log ends where the torn batch begins; nothing is truncated, the rest is only not counted."""
    good, last = batches(0, 6), batch(6)
    for keep in range(1, len(last)):
        story = Story([Listed(0, good + last[:keep])])
        result = await story.accepted()
        assert (result.end_offset, result.segments[0].length) == (6, len(good)), keep
        assert result.labels == [f"{SegmentName(0, 1, 0)}: torn"]
        assert story.heard_range == (0, 6)


async def test_a_segment_torn_in_its_first_batch_holds_nothing() -> None:
    result = await Story([Listed(30, batch(30)[:-1])]).accepted()
    assert (result.end_offset, result.segments) == (30, [])


async def test_whole_batches_that_were_never_acknowledged_stay() -> None:
    """Keep whole batches behind the checkpoint in the last segment, as Kafka does after a crash."""
    flushed = batches(0, 10)
    story = Story([Listed(0, flushed + batches(10, 14))], covering(0, 10, flushed))
    assert ((await story.accepted()).end_offset, story.heard_range) == (14, (10, 14))


async def test_leftovers_past_the_next_base_are_not_counted() -> None:
    """Rule 6: the failed pipeline may have stored what was then written again elsewhere; it counts once."""
    again = batches(6, 12)
    for rest in (batches(6, 12), batches(6, 8) + batch(8)[:30], batch(6)[:5], b"\x00" * 700):
        story = Story([Listed(0, batches(0, 6) + rest), Listed(6, again)])
        result = await story.accepted()
        assert (result.end_offset, story.heard_range) == (12, (0, 12))
        assert [(s.name.base, s.length, s.end_offset) for s in result.segments] == [
            (0, len(batches(0, 6)), 6),
            (6, len(again), 12),
        ]


async def test_a_checkpoint_at_the_next_base_reads_nothing_of_the_leftovers() -> None:
    flushed = batches(0, 6)
    story = Story([Listed(0, flushed + batches(6, 90)), Listed(6, batches(6, 8))], covering(0, 6, flushed))
    assert (await story.accepted()).end_offset == 8
    assert [path for path, _, _ in story.fs.reads] == [PARTITION.log(SegmentName(6, 1, 1))]


async def test_a_superseded_segment_is_not_counted() -> None:
    """The second pipeline broke before its first ack: what it stored does not count, the third begins at the same
    base."""
    story = Story([Listed(0, batches(0, 6)), Listed(6, batches(6, 10)), Listed(6, batches(6, 8))])
    result = await story.accepted()
    assert (result.end_offset, story.heard_range) == (8, (0, 8))
    assert [s.name.n for s in result.segments] == [0, 2]
    assert result.labels[1].endswith(": superseded")
    assert PARTITION.log(SegmentName(6, 1, 1)) not in {path for path, _, _ in story.fs.reads}


@pytest.mark.parametrize("found", [found for found in Found if found is not Found.UNLISTED])
async def test_a_superseded_segment_may_be_gone_or_never_renamed(found: Found) -> None:
    story = Story([Listed(0, batches(0, 6)), Listed(6, found=found), Listed(6, batches(6, 8))])
    assert (await story.accepted()).end_offset == 8


async def test_a_segment_that_was_never_renamed_holds_nothing() -> None:
    """The owner died between register and rename: the log ends where the segment would have begun."""
    result = await Story([Listed(0, batches(0, 6)), Listed(6, found=Found.SPARE)]).accepted()
    assert (result.end_offset, len(result.segments)) == (6, 1)
    assert result.labels[1] == f"{SegmentName(6, 1, 1)}: never renamed"
    alone = await Story([Listed(6, found=Found.SPARE)]).accepted()
    assert (alone.end_offset, alone.segments) == (6, [])


@pytest.mark.parametrize("before", [[], [Listed(0, batches(0, 6))]])
async def test_a_segment_that_vanished_before_its_first_checkpoint_is_refused(before: list[Listed]) -> None:
    """One that was never written is there under its spare name: one that is nowhere may have held anything."""
    offline = await Story([*before, Listed(6 if before else 0, found=Found.NOWHERE)]).refused()
    assert "vanished before its first checkpoint" in offline.reason


@pytest.mark.parametrize("checkpoint", [None, covering(0, 6, batches(0, 6))])
async def test_a_segment_that_was_moved_with_bytes_in_it_is_refused(checkpoint: Checkpoint | None) -> None:
    """Find the segment's inode under another name, into which nothing is ever written: it was moved from outside."""
    for rest in ([], [Listed(6, batches(6, 8))]):
        moved = Listed(0, batches(0, 6), found=Found.SPARE)
        assert "renamed or moved" in (await Story([moved, *rest], checkpoint).refused()).reason


async def test_segments_before_the_checkpoints_are_not_looked_at() -> None:
    """Segments before the checkpoint's may be deleted by retention: a later segment's checkpoint describes them."""
    flushed = batches(40, 44)
    story = Story(
        [Listed(0, found=Found.NOWHERE), Listed(20, b"rot"), Listed(40, flushed + batches(44, 46))],
        covering(40, 44, flushed, n=2),
    )
    assert ((await story.accepted()).end_offset, story.heard_range) == (46, (44, 46))
    assert {path for path, _, _ in story.fs.reads} == {PARTITION.log(SegmentName(40, 1, 2))}


async def test_segments_of_earlier_epochs_come_first() -> None:
    """Order is (epoch, n), also where n begins again."""
    story = Story(
        [Listed(0, batches(0, 4), epoch=1, n=9), Listed(4, batches(4, 8, epoch=2), epoch=2, n=0)],
        covering(0, 2, batch(0), n=9, epoch=1),
    )
    result = await story.accepted()
    assert (result.end_offset, story.heard_range) == (8, (2, 8))
    assert result.segments[1].epochs == [(2, 4)]


async def test_segments_are_judged_in_order_however_they_are_listed() -> None:
    story = Story([Listed(4, batches(4, 8), n=1), Listed(0, batches(0, 4), n=0)])
    assert ((await story.accepted()).end_offset, story.heard_range) == (8, (0, 8))


# -------------------------------------------------------------------------------------------------- stories: OFFLINE


@pytest.mark.parametrize("missing", [1, 40, 200, 10_000])
async def test_a_segment_shorter_than_its_checkpoint_is_refused(missing: int) -> None:
    """Rule 4: storage lost flushed bytes."""
    flushed = batches(0, 10)
    kept = flushed[: max(0, len(flushed) - missing)]
    story = Story([Listed(0, kept)], covering(0, 10, flushed))
    offline = await story.refused()
    assert offline.segment == SegmentName(0, 1, 0)
    assert "shorter than its checkpoint" in offline.reason
    assert PARTITION.log(offline.segment) in offline.reason
    assert story.heard == []


@pytest.mark.parametrize("at", [8, 16, 17, 25, HEADER_BYTES + 4])
async def test_a_segment_damaged_in_the_middle_is_refused(at: int) -> None:
    """Rule 4: a bad batch followed by a good one, at any place of it; the reason says where the good one stands."""
    good = batches(0, 4)
    data = good + damaged(batch(4), at) + batch(6)
    offline = await Story([Listed(0, data)]).refused()
    assert "damaged in the middle" in offline.reason
    assert f"a good batch follows at {len(good) + len(batch(4))}" in offline.reason


async def test_a_segment_with_a_missing_or_repeated_batch_is_refused() -> None:
    for data in (batches(0, 4) + batches(6, 8), batches(0, 4) + batches(2, 8)):
        assert "damaged in the middle" in (await Story([Listed(0, data)]).refused()).reason


async def test_damage_before_the_checkpoint_is_not_read() -> None:
    """Recovery reads from the checkpoint on; readers check CRCs themselves."""
    flushed = batches(0, 10)
    story = Story([Listed(0, damaged(flushed, 100) + batches(10, 12))], covering(0, 10, flushed))
    assert (await story.accepted()).end_offset == 12


@pytest.mark.parametrize("rest", [b"", batch(4)[:-1], damaged(batch(4), 70)])
async def test_a_segment_that_ends_before_the_next_one_begins_is_refused(rest: bytes) -> None:
    """Everything before the next one's base was flushed when that was registered: a clean or torn end before it is
    a loss, also of what no checkpoint had covered."""
    story = Story([Listed(0, batches(0, 4) + rest), Listed(6, batches(6, 8))])
    assert "ends before the next one begins" in (await story.refused()).reason


@pytest.mark.parametrize("found", [Found.SPARE, Found.NOWHERE])
async def test_a_lost_segment_before_a_later_one_is_refused(found: Found) -> None:
    """A later segment begins at a greater base, so this one had acknowledged data."""
    offline = await Story([Listed(0, found=found), Listed(6, batches(6, 8))]).refused()
    assert (offline.segment.base, "lost whole" in offline.reason) == (0, True)


@pytest.mark.parametrize(("found", "label"), [(Found.NOWHERE, "vanished"), (Found.SPARE, "renamed back")])
async def test_a_segment_that_is_gone_and_has_a_checkpoint_is_refused(found: Found, label: str) -> None:
    """A file with flushed data was removed or renamed from outside."""
    flushed = batches(0, 10)
    for rest in ([], [Listed(10, batches(10, 12))], [Listed(20, batches(20, 22))]):
        offline = await Story([Listed(0, found=found), *rest], covering(0, 10, flushed)).refused()
        assert label in offline.reason


@pytest.mark.parametrize("checkpoint", [covering(0, 10, batches(0, 10)), None])
async def test_a_segment_deleted_below_the_log_start_is_accepted(checkpoint: Checkpoint | None) -> None:
    """The log start had passed the segment's end: retention removed it while the record still listed it."""
    story = Story([Listed(0, found=Found.NOWHERE), Listed(10, batches(10, 12))], checkpoint, log_start=10)
    result = await story.accepted()
    assert (result.end_offset, story.heard_range) == (12, (10, 12))
    assert result.labels[0].endswith(": deleted")


async def test_a_segment_that_reaches_past_the_log_start_is_not_deleted() -> None:
    """The segment's last offset is still readable; so is all of the newest segment, which has no end."""
    for segments in ([Listed(0, found=Found.NOWHERE), Listed(10, batches(10, 12))], [Listed(0, found=Found.NOWHERE)]):
        story = Story(segments, covering(0, 10, batches(0, 10)), log_start=9)
        assert "vanished" in (await story.refused()).reason


@pytest.mark.parametrize("found", [found for found in Found if found is not Found.UNLISTED])
async def test_a_later_segment_at_or_below_flushed_data_is_refused(found: Found) -> None:
    """A later segment begins at or below data of which a checkpoint says that it was flushed."""
    flushed = batches(6, 10)
    story = Story([Listed(6, flushed, found=found), Listed(6, batches(6, 8))], covering(6, 10, flushed))
    assert "overtaken" in (await story.refused()).reason


@pytest.mark.parametrize("base", [2, 6, 8])
async def test_a_later_segment_below_the_checkpoints_end_is_refused(base: int) -> None:
    """Offsets 0 to 9 were acknowledged.  A segment registered later inside them is a second owner's, or a bug's: its
    batches must not take the place of acknowledged ones."""
    flushed = batches(0, 10)
    story = Story([Listed(0, flushed), Listed(base, batches(base, 12))], covering(0, 10, flushed))
    assert isinstance(await story.recover(), Offline)


async def test_less_than_the_fence_promised_is_a_format_error() -> None:
    """The fence returned the length: bytes that cannot be read are neither a torn end nor an endless loop."""
    data = batches(0, 4)
    for length in (len(data) + 1, len(data) + 5000):
        with pytest.raises(FormatError):
            await Story([Listed(0, data, length=length)]).recover()
    with pytest.raises(FormatError):
        await Story([Listed(0, data[:-10], length=len(data))]).recover()


# -------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("count", [10, 100, 2000])
async def test_recovery_reads_only_what_lies_behind_the_checkpoint(count: int) -> None:
    """The cost is flat in the size of the segment, and equals what lies behind the checkpoint."""
    flushed, tail = batches(0, 2 * count, size=500), batches(2 * count, 2 * count + 20, size=500)
    story = Story([Listed(0, flushed + tail)], covering(0, 2 * count, flushed))
    result = await story.accepted()
    assert result.end_offset == 2 * count + 20
    assert story.fs.bytes_read == result.bytes_read == len(tail)
    assert story.heard_range == (2 * count, 2 * count + 20)


async def test_nothing_is_read_when_the_checkpoint_covers_all() -> None:
    flushed = batches(0, 10)
    story = Story([Listed(0, flushed)], covering(0, 10, flushed))
    result = await story.accepted()
    assert (result.end_offset, result.bytes_read, story.fs.reads) == (10, 0, [])
    assert [(s.length, s.end_offset) for s in result.segments] == [(len(flushed), 10)]


# --------------------------------------------------------------------------------------------------- the checkpoint


def indexed(flushed: bytes, count: int, interval: int) -> Checkpoint:
    """Return a checkpoint of ``count`` flushed batches with the index that a broker would have kept of them."""
    index, size = SegmentIndex(interval), len(batch(0))
    for n in range(count):
        index.add(2 * n, n * size, 1000 + 2 * n + 1)
    return replace(
        covering(0, 2 * count, flushed),
        index=index.entries,
        max_timestamp=index.max_timestamp,
        max_timestamp_offset=index.max_timestamp_offset,
        epochs=((1, 0),),
    )


@pytest.mark.parametrize("interval", [0, 1, 150, 400])
async def test_index_and_epochs_go_on_from_the_checkpoint(interval: int) -> None:
    """The same as those of a scan of the whole file."""
    data = batches(0, 40) + batches(40, 50, epoch=2)
    whole = (await Story([Listed(0, data)], interval=interval).accepted()).segments[0]
    flushed = batches(0, 20)
    resumed = (await Story([Listed(0, data)], indexed(flushed, 10, interval), interval).accepted()).segments[0]
    assert resumed.index.entries == whole.index.entries
    assert (resumed.index.max_timestamp, resumed.index.max_timestamp_offset) == (
        whole.index.max_timestamp,
        whole.index.max_timestamp_offset,
    )
    assert resumed.epochs == whole.epochs == [(1, 0), (2, 40)]


async def test_the_checkpoint_is_left_as_it_is() -> None:
    """A checkpoint may be kept and used again: ``broker.files.journal_cache`` caches it, and a failed recovery is
    repeated with it."""
    checkpoint = indexed(batches(0, 20), 10, 1)
    before = replace(checkpoint, index=array("q", checkpoint.index))
    await Story([Listed(0, batches(0, 60))], checkpoint, 1).accepted()
    assert checkpoint == before


async def test_a_recovery_that_failed_half_way_can_be_repeated() -> None:
    """Storage was away for a read: the second attempt finds what the first would have."""
    data = batches(0, 20) + batches(20, 40)
    story = Story([Listed(0, data), Listed(40, batches(40, 50))], indexed(batches(0, 20), 10, 1), 1)
    fenced = [FencedSegment(name=SegmentName(0, 1, 0), found=Found.FINAL, length=len(data))]
    fenced.append(FencedSegment(name=SegmentName(40, 1, 1), found=Found.FINAL, length=len(batches(40, 50))))

    for n, listed in enumerate(story.segments):
        await write_once(story.fs, PARTITION.log(listed.named(n)), listed.data)
    story.fs.failing = 1
    with pytest.raises(StorageUnavailable):
        await story.once(fenced)
    story.heard.clear()
    result = await story.once(fenced)
    assert isinstance(result, Recovered)
    assert (result.end_offset, story.heard_range) == (50, (20, 50))
    fresh = await Story(story.segments, indexed(batches(0, 20), 10, 1), 1).accepted()
    assert result.segments[0].index.entries == fresh.segments[0].index.entries


# ------------------------------------------------------------------------------------------------ any history at all


@dataclass
class History:
    """A broker's past, drawn from a seed: segments with acknowledged data, failed pipelines with leftovers, some that
    were never written or renamed; checkpoints on the way; and its end, maybe in the middle of a write."""

    rng: random.Random
    segments: list[Listed] = field(default_factory=list)
    flushed: int = 0  # end of what was acknowledged
    checkpoint: Checkpoint | None = None

    @classmethod
    def draw(cls, seed: int) -> History:
        history = cls(random.Random(seed))
        for n in range(history.rng.randint(1, 6)):
            history._segment(n)
        return history

    def _segment(self, n: int) -> None:
        rng, listed = self.rng, Listed(self.flushed)
        self.segments.append(listed)
        if rng.random() < 0.15:
            listed.found = Found.SPARE
            return
        for _ in range(rng.choice([0, 1, 3, 8])):
            listed.data += batch(self.flushed, rng.choice([0, 10, 300]))
            self.flushed += 2
            if rng.random() < 0.3:
                self.checkpoint = covering(listed.base, self.flushed, listed.data, n)
        if rng.random() < 0.5:  # written, not acknowledged: some whole batches, one cut short
            unsure = batches(self.flushed, self.flushed + 2 * rng.randint(0, 2), size=rng.choice([0, 10, 300]))
            cut = batch(self.flushed + len(unsure))[: rng.randint(0, 60)] if rng.random() < 0.5 else b""
            listed.data += unsure + cut

    @property
    def checked(self) -> int:
        return self.checkpoint.end_offset if self.checkpoint else 0


@pytest.mark.parametrize("seed", seeds(50, 2_000))
async def test_any_history_is_recovered_whole(seed: int) -> None:
    """All that was acknowledged is in the log, once and in order; the batches read begin at the checkpoint."""
    history = History.draw(seed)
    story = Story(history.segments, history.checkpoint)
    result = await story.accepted()
    assert result.end_offset >= history.flushed
    assert story.heard_range in (None, (history.checked, result.end_offset))
    assert story.heard or result.end_offset == history.checked
    kept = [segment for segment in result.segments if segment.end_offset > segment.name.base]
    assert kept == result.segments
    for earlier, later in pairwise(kept):
        assert earlier.end_offset == later.name.base


@pytest.mark.parametrize("seed", seeds(50, 2_000))
async def test_any_loss_of_acknowledged_data_is_noticed(seed: int) -> None:
    """A cut into what a checkpoint covers, or into a segment that a later one shows to have been longer, is never
    accepted as the end of the log."""
    history = History.draw(seed)
    victims = []
    limits = ends([listed.named(n) for n, listed in enumerate(history.segments)])
    for n, (listed, limit) in enumerate(zip(history.segments, limits, strict=True)):
        name = listed.named(n)
        if listed.found is not Found.FINAL or (history.checkpoint and name.order < history.checkpoint.segment.order):
            continue
        is_covered = history.checkpoint is not None and history.checkpoint.segment == name
        if is_covered or (limit is not None and limit > listed.base):
            victims.append((n, history.checkpoint.position if is_covered and history.checkpoint else 1))
    if not victims:
        return
    n, needed = history.rng.choice(victims)
    listed = history.segments[n]
    listed.data = listed.data[: history.rng.randint(0, needed - 1)]
    story = Story(history.segments, history.checkpoint)
    assert (await story.refused()).segment == listed.named(n)


# ----------------------------------------------------------------------------------------- a store older than storage


class Folder:
    """A partition's folder with files of these names; ``lengths`` are what their fences return."""

    def __init__(self, **lengths: int) -> None:
        self.fs = CountingFileSystem()
        self.lengths = {SegmentName(*map(int, name[1:].split("_"))): length for name, length in lengths.items()}
        self.fenced: list[SegmentName] = []
        self.given: list[str] = []
        self.dropped: list[SegmentName] = []
        self._is_made = False

    async def find(
        self, *listed: SegmentName, last: tuple[int, int], epoch: int, found: Found = Found.FINAL
    ) -> FencedSegment | None:
        if not self._is_made:
            await self._make()
        known = [FencedSegment(name=name, found=Found.FINAL, length=9) for name in listed[:-1]]
        known += [FencedSegment(name=name, found=found, length=0) for name in listed[-1:]]
        return await find_unlisted(self.fs, PARTITION, known, last, epoch, self.length_of, self._drop)

    async def _drop(self, name: SegmentName) -> None:
        self.dropped.append(name)

    async def _make(self) -> None:
        for name, length in self.lengths.items():
            await write_once(self.fs, PARTITION.log(name), b"x" * length)
            await write_once(self.fs, PARTITION.idx(name), b"")
        await write_once(self.fs, PARTITION.spare(99, 0, "gone"), b"")
        inner = self.fs.list

        async def counted(path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
            async for status in inner(path, after=after):
                self.given.append(status.path)
                yield status

        self.fs.list = counted  # type: ignore[method-assign]
        self._is_made = True

    async def length_of(self, name: SegmentName) -> int | None:
        self.fenced.append(name)
        return None if self.lengths[name] < 0 else self.lengths[name]


def unlisted(base: int, epoch: int, n: int, length: int) -> FencedSegment:
    return FencedSegment(name=SegmentName(base, epoch, n), found=Found.UNLISTED, length=length)


async def test_a_folder_that_holds_what_the_record_knows_proves_nothing() -> None:
    """Earlier segments left the record when they were closed; spares have no final name, whatever their epoch."""
    folder = Folder(_0_1_0=9, _5_1_1=9, _5_2_0=9)
    assert await folder.find(SegmentName(5, 2, 0), last=(2, 0), epoch=3) is None
    assert folder.fenced == []
    assert await folder.find(last=(2, 0), epoch=3) is None, "segments without data leave the record, `last` remains"


@pytest.mark.parametrize(
    ("name", "found"),
    [("_7_2_1", unlisted(7, 2, 1, 9)), ("_5_2_1", unlisted(5, 2, 1, 9)), ("_7_9_0", unlisted(7, 9, 0, 9))],
    ids=["a later one of the same owner", "of the same base", "a later owner's"],
)
async def test_a_file_registered_after_the_last_registration_is_proof(name: str, found: FencedSegment) -> None:
    folder = Folder(_5_2_0=9, **{name: 9})
    assert await folder.find(SegmentName(5, 2, 0), last=(2, 0), epoch=3) == found


async def test_a_cleaned_file_is_no_registration_and_proves_nothing() -> None:
    """Cleaned files have the registration of their last source; above ``last`` they are proof like their source."""
    folder = Folder(_0_2_0_3=9, _5_2_0=9)
    assert await folder.find(SegmentName(0, 1, 0), last=(2, 0), epoch=3) is None
    found = await Folder(_0_2_1_3=9).find(last=(2, 0), epoch=3)
    assert found is not None
    assert found.name == SegmentName(0, 2, 1, 3)


async def test_an_empty_file_is_proof_only_if_readers_would_prefer_it_to_what_is_written_next() -> None:
    folder = Folder(_7_2_1=0)
    assert await folder.find(last=(2, 0), epoch=3) is None
    assert folder.dropped == [SegmentName(7, 2, 1)]
    folder = Folder(_7_3_0=0)
    assert await folder.find(last=(2, 0), epoch=3) == unlisted(7, 3, 0, 0)
    assert folder.dropped == []


@pytest.mark.parametrize("found", [Found.NOWHERE, Found.SPARE, Found.FINAL])
async def test_an_empty_file_is_proof_if_the_newest_listed_one_is_gone(found: Found) -> None:
    """An owner deletes an empty file once the next one is registered: the record knows of neither act."""
    listed = SegmentName(0, 2, 0), SegmentName(7, 2, 1)
    folder = Folder(_0_2_0=9, _7_2_2=0)
    proof = await folder.find(*listed, last=(2, 1), epoch=3, found=found)
    assert proof == (unlisted(7, 2, 2, 0) if found is Found.NOWHERE else None)
    assert folder.dropped == ([] if found is Found.NOWHERE else [SegmentName(7, 2, 2)])


async def test_a_file_of_another_owner_is_left_alone() -> None:
    folder = Folder(_7_2_1=-1, _8_3_0=-1)
    assert await folder.find(last=(2, 0), epoch=3) is None
    assert folder.dropped == []


async def test_the_listing_begins_at_the_last_segment_and_ends_at_the_first_proof() -> None:
    """Read a few names, whatever the age of the log, or of the store (rule 8)."""
    folder = Folder(**{f"_{base}_1_{base}": 9 for base in range(100)})
    assert await folder.find(SegmentName(99, 1, 99), last=(1, 99), epoch=2) is None
    assert len(folder.given) == 2
    folder.given.clear()
    assert await folder.find(SegmentName(10, 1, 10), last=(1, 10), epoch=2) == unlisted(11, 1, 11, 9)
    assert len(folder.given) <= 4


async def test_an_unlisted_segment_decides_before_anything_else_that_an_outdated_record_lacks() -> None:
    story = Story([Listed(0, found=Found.NOWHERE), Listed(6, batches(6, 8), found=Found.UNLISTED)])
    reason = (await story.refused()).reason
    assert "the metadata store is older than storage" in reason
    assert "bmq cluster rebuild" in reason

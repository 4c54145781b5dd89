"""Journals that are followed: each call reads only what was written since the last one."""

from __future__ import annotations

from typing import cast

from bmq.core.model import PartitionKey
from bmq.spark.planning.journal_follower import FollowedJournals
from bmq.storage.checkpoint import encode
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal import CHECKPOINT, frame, read_journals
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.checkpoints import Journal, said
from tests.unit.spark.counting import Counting
from tests.unit.spark.storing import Store


async def test_only_bytes_written_since_the_last_call_are_read() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    counting = Counting(fs)
    store, journal = Store(fs), Journal(fs)
    key = PartitionKey(store.topic_id, 0)
    followed = FollowedJournals(cast(FileSystem, counting))
    await journal.write(*[said(store, end) for end in range(1, 500)])
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 499
    counting.reset()
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 499
    assert counting.bytes["jnl"] == 0
    await journal.write(said(store, 600, is_full=False), tail=frame(CHECKPOINT, encode(said(store, 700)))[:20])
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 600
    assert counting.bytes["jnl"] < 300
    assert (await followed.refresh(frozenset([key])))[key] == (await read_journals(fs, "0-a"))[key]


async def test_partitions_that_are_wanted_later_have_their_checkpoints() -> None:
    """Ask for a partition whose full checkpoint was passed over: the journal is read again, beyond its deltas."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store, journal = Store(fs), Journal(fs)
    first, second = (PartitionKey(store.topic_id, partition) for partition in range(2))
    followed = FollowedJournals(fs)
    await journal.write(said(store, 5), said(store, 7, partition=1))
    assert set(await followed.refresh(frozenset([first]))) == {first}
    await journal.write(said(store, 8, partition=1, is_full=False))
    found = await followed.refresh(frozenset([first, second]))
    assert {key: each.end_offset for key, each in found.items()} == {first: 5, second: 8}


async def test_a_checkpoint_that_cannot_be_decoded_is_left_out() -> None:
    """Write a checkpoint that cannot be decoded: it is skipped, with the deltas behind it, until the next full one."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store, journal = Store(fs), Journal(fs)
    first, second = (PartitionKey(store.topic_id, partition) for partition in range(2))
    followed = FollowedJournals(fs)
    bad = frame(CHECKPOINT, b"X" + encode(said(store, 9))[1:])
    await journal.write(said(store, 5), said(store, 7, partition=1), tail=frame(CHECKPOINT, b"short") + bad)
    await journal.write(said(store, 10, is_full=False), said(store, 8, partition=1, is_full=False))
    found = await followed.refresh(frozenset([first, second]))
    assert {key: each.end_offset for key, each in found.items()} == {first: 5, second: 8}
    await journal.write(said(store, 11))
    assert (await followed.refresh(frozenset([first, second])))[first].end_offset == 11


async def test_a_file_with_a_successor_is_read_to_its_end_and_then_no_more() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    counting = Counting(fs)
    store, old, new = Store(fs), Journal(fs), Journal(fs, n=2)
    key = PartitionKey(store.topic_id, 0)
    followed = FollowedJournals(cast(FileSystem, counting))
    await old.write(said(store, 5))
    await followed.refresh(frozenset([key]))
    await old.write(said(store, 6, is_full=False))  # the partition went to another broker before the roll
    await new.write()
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 6
    counting.reset()
    await followed.refresh(frozenset([key]))
    assert counting.reads["jnl"] == 1, "the open one alone"
    await fs.delete(old.path)
    assert (await followed.refresh(frozenset([key])))[key].end_offset == 6, "true for ever"

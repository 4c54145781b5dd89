"""The files that a command line names, and where each segment of a partition ends."""

from __future__ import annotations

import uuid
from random import Random

import pytest

from bmq.cli.segment.targets import PartitionFiles, list_partition
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage.filesystem import NoSuchFile, write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.cli.segment.roots import THREE, TOPIC_ID, Root


@pytest.mark.slow
def test_a_topic_of_two_ids_needs_one_to_be_named(root: Root) -> None:
    other = root.folder / "topics" / "orders" / str(uuid.UUID(int=8)) / "0"
    other.mkdir(parents=True)
    root.log(0, *THREE)
    status, _, err = root.run("verify", "--topic", "orders")
    assert status == 2
    assert str(uuid.UUID(int=8)) in err
    assert root.run("verify", "--topic", "orders", "--topic-id", str(TOPIC_ID))[0] == 0


async def test_segments_are_listed_with_the_offset_at_which_later_ones_take_over() -> None:
    fs = MemoryFileSystem(MemoryStorage(Random(0)), "n")
    names = [SegmentName(0, 1, 0), SegmentName(6, 1, 1), SegmentName(6, 2, 0), SegmentName(9, 3, 0)]
    for name in names:
        await write_once(fs, f"/p/{name}.log", b"")
    await write_once(fs, f"/p/{names[0]}.idx", b"")
    await write_once(fs, f"/p/{SegmentName(20, 1, 9)}.idx", b"")
    await write_once(fs, "/p/something-else", b"")
    files = await list_partition(fs, "/p")
    alone = SegmentName(20, 1, 9)
    assert [(each.name, each.limit, each.has_log, each.has_idx, each.is_superseded) for each in files.segments] == [
        (names[0], 6, True, True, False),
        (names[1], 6, True, False, True),
        (alone, None, False, True, False),
        (names[2], 9, True, False, False),
        (names[3], None, True, False, False),
    ]
    assert files.find(alone).idx == f"/p/{alone}.idx"
    with pytest.raises(NoSuchFile):
        files.find(SegmentName(1, 1, 1))


@pytest.mark.parametrize(
    ("folder", "key", "label"),
    [
        (f"/topics/orders/{TOPIC_ID}/3", PartitionKey(TOPIC_ID, 3), ("orders", 3)),
        (f"/elsewhere/orders/{TOPIC_ID}/3", None, (f"/elsewhere/orders/{TOPIC_ID}/3", -1)),
        ("/topics/orders/no-id/3", None, ("/topics/orders/no-id/3", -1)),
        (f"/topics/orders/{TOPIC_ID}/x", None, (f"/topics/orders/{TOPIC_ID}/x", -1)),
        (f"/topics/orders/{TOPIC_ID}", None, (f"/topics/orders/{TOPIC_ID}", -1)),
    ],
)
def test_only_a_folder_in_a_partitions_place_is_a_partition(
    folder: str, key: PartitionKey | None, label: tuple[str, int]
) -> None:
    files = PartitionFiles(folder)
    assert (files.key, files.label) == (key, label)

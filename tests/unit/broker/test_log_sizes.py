"""Bytes on storage by topic: counted without listing what has not changed."""

from __future__ import annotations

import pytest

from bmq.broker import log_sizes
from bmq.broker.log_sizes import LogSizes
from bmq.core.errors import RequestError
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.storage.filesystem import StorageError
from tests.unit.broker.world import World, batch, world


class Listings:
    """Counts the listings of partitions' folders; fails them on demand."""

    def __init__(self, w: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fails = False
        real = w.fs.list

        def listing(path: str, **options: object) -> object:
            self.count += 1
            if self.fails:
                raise StorageError("no NameNode")
            return real(path, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(w.fs, "list", listing)


async def test_sizes_by_topic_and_no_listing_of_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        w.topic("orders", 2)
        w.topic("events", 1)
        data = batch()
        for name, number in (("orders", 0), ("orders", 1), ("events", 0)):
            await w.owner(name, number)
            await w.produce({(name, number): data})
        sizes = LogSizes(w.assigned.open_owners, 100)
        listings = Listings(w, monkeypatch)
        assert sizes.by_topic == {}
        await sizes.refresh()
        assert sizes.by_topic == {"orders": 2 * len(data), "events": len(data)}
        assert sizes.partitions_unknown == 0
        listed = listings.count
        assert listed >= 3
        await w.produce({("orders", 0): data})
        await sizes.refresh()
        assert sizes.by_topic["orders"] == 3 * len(data)
        assert listings.count == listed, "an open segment's size is known"


async def test_a_refresh_lists_a_bounded_number_of_folders_and_says_how_many_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_sizes, "LISTINGS_MAX", 3)

    async with world() as w:
        w.topic("orders", 7)
        for number in range(7):
            await w.owner("orders", number)
            await w.produce({("orders", number): batch()})
        sizes = LogSizes(w.assigned.open_owners, 100)
        left = []
        for _ in range(3):
            await sizes.refresh()
            left.append(sizes.partitions_unknown)
        assert left == [4, 1, 0]
        assert sizes.by_topic == {"orders": 7 * len(batch())}


async def test_topics_past_the_bound_share_a_number() -> None:
    async with world() as w:
        for number in range(5):
            w.topic(f"t{number}")
            await w.owner(f"t{number}")
            for _ in range(number + 1):
                await w.produce({(f"t{number}", 0): batch()})
        sizes = LogSizes(w.assigned.open_owners, 2)
        await sizes.refresh()
        await sizes.refresh()
        assert len(sizes.by_topic) == 3
        assert sum(sizes.by_topic.values()) == 15 * len(batch())
        assert sizes.by_topic[OTHER_TOPICS] > 0
        assert sizes.of_all_topics == {f"t{number}": (number + 1) * len(batch()) for number in range(5)}


async def test_the_last_size_stays_while_storage_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        w.topic("orders")
        await w.owner()
        await w.produce({("orders", 0): batch()})
        sizes = LogSizes(w.assigned.open_owners, 100)
        await sizes.refresh()
        assert sizes.by_topic == {"orders": len(batch())}
        owner = await w.owner()
        await owner.delete_before(owner.high_watermark)  # the size must be counted again
        listings = Listings(w, monkeypatch)
        listings.fails = True
        with pytest.raises(RequestError, match="no NameNode"):
            await sizes.refresh()
        assert sizes.by_topic == {"orders": len(batch())}
        listings.fails = False
        await sizes.refresh()
        assert sizes.partitions_unknown == 0

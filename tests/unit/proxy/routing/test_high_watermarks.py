"""High watermarks by one request to each broker; a broker that does not respond is left out."""

from __future__ import annotations

import asyncio
from typing import Any

from bmq.core.aio.standstill import GIVEN_UP_S
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import HighWatermarksRequest
from bmq.proxy.routing import high_watermarks
from bmq.proxy.routing.high_watermarks import HighWatermarks
from tests.unit.broker.cluster import Cluster, cluster
from tests.unit.broker.world import batch


def finder(c: Cluster, name: str = "a") -> HighWatermarks:
    return HighWatermarks(c[name].view, c[name].assigned.proven_watermark, c[name].wire)


async def written(c: Cluster) -> list[Any]:
    """Three partitions of each broker; the number of batches in each is its partition's number."""
    c.topic(9)
    keys = c.keys()
    for at, name in enumerate(("a", "b", "c")):
        c.give(name, *keys[at::3])
        for key in keys[at::3]:
            for _ in range(key.partition):
                await c.write(name, key, batch())
            await c[name].assigned.wait(key, 5.0)
    c["a"].wire.asked.clear()
    return keys


async def test_each_other_broker_is_asked_once() -> None:
    async with cluster("a", "b", "c") as c:
        keys = await written(c)
        assert await finder(c).find(keys) == {key: key.partition for key in keys}
        asked = c["a"].wire.asked
        assert [name for name, _ in asked] == ["b", "c"]
        assert all(isinstance(message, HighWatermarksRequest) for _, message in asked)


async def test_many_partitions_are_asked_for_in_parts(monkeypatch: Any) -> None:
    monkeypatch.setattr(high_watermarks, "PARTITIONS_A_QUESTION", 2)

    async with cluster("a", "b", "c") as c:
        keys = await written(c)
        assert await finder(c).find(keys) == {key: key.partition for key in keys}
        assert sorted(len(message.partitions) for _, message in c["a"].wire.asked) == [1, 1, 2, 2]


async def test_a_partition_that_is_not_open_is_left_out_and_is_not_opened_for_it() -> None:
    async with cluster("a", "b", "c") as c:
        keys = await written(c)
        c.topic(1, "events")
        (unassigned,) = c.keys("events")
        c["a"].view.assign("b", unassigned)  # b does not see it yet
        assert await finder(c).find([*keys, unassigned]) == {key: key.partition for key in keys}


async def test_a_broker_that_is_cut_off_or_of_an_earlier_version_is_left_out() -> None:
    async with cluster("a", "b", "c") as c:
        keys = await written(c)
        c["b"].endpoint._apis.pop(InternalKey.HIGH_WATERMARKS)
        known = {key: key.partition for key in keys if key not in keys[1::3]}
        assert await finder(c).find(keys) == known
        c["a"].wire.is_cut = True
        assert await finder(c).find(keys) == {key: key.partition for key in keys[0::3]}
        c["a"].view.leave("c")
        assert await finder(c).find(keys) == {key: key.partition for key in keys[0::3]}


async def test_a_process_that_is_not_a_broker_asks_for_all_partitions() -> None:
    async with cluster("a", "b", "c") as c:
        keys = await written(c)
        elsewhere = HighWatermarks(c["a"].view, None, c["a"].wire)
        assert await elsewhere.find(keys) == {key: key.partition for key in keys if key not in keys[0::3]}


async def test_an_owner_in_doubt_is_left_out_until_it_has_proven_that_it_is_the_owner() -> None:
    """The local owner and one that is asked: each may have stood still while another broker took the partition over."""
    async with cluster("a", "b", "c") as c:
        keys = await written(c)
        for name, of in (("a", keys[0::3]), ("b", keys[1::3])):
            c[name].stand_still(GIVEN_UP_S)
            assert await finder(c).find(keys) == {key: key.partition for key in keys if key not in of}
            await asyncio.sleep(1)
            assert await finder(c).find(keys) == {key: key.partition for key in keys}

"""DescribeLogDirs: the first look at the sizes of partitions that still open."""

from __future__ import annotations

import asyncio

from bmq.core.model import PartitionKey
from bmq.core.wire.messages import DescribeLogDirsRequest
from bmq.proxy.handlers import describe_log_dirs
from tests.unit.proxy.handlers.admin_serving import serving


async def test_sizes_wait_for_partitions_that_open_and_not_for_others() -> None:
    async with serving() as w:
        topic = await w.admin.create_topic("t", 50)
        keys = [PartitionKey(topic.topic_id, number) for number in range(40)]
        loop = asyncio.get_running_loop()
        loop.call_later(0.3, w.owners.epochs.update, dict.fromkeys(keys, 1))
        began = loop.time()
        (result,) = (await w.ask(describe_log_dirs.APIS[0], 4, DescribeLogDirsRequest(topics=None))).results
        assert loop.time() - began < 2
        (found,) = result.topics
        assert {part.partition_index: part.partition_size for part in found.partitions} == dict.fromkeys(range(40), 101)

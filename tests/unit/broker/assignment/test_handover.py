"""The notices to new owners: bounded messages, a few in flight."""

from __future__ import annotations

import uuid

from bmq.broker.assignment.handover import BYTES_MAX, PARTITIONS_MAX, UNDER_WAY_MAX, _messages
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.core.model import PartitionKey
from bmq.meta.ownership import PartitionRecord
from tests.harness.waiting import now
from tests.unit.broker.cluster import cluster
from tests.unit.broker.moves import later


def test_messages_to_a_new_owner_are_bounded_in_partitions_and_bytes() -> None:
    def slices(count: int, size: int) -> list[int]:
        release_note = ReleaseNote(PartitionRecord(), 1, bytes(size))
        keys = [PartitionKey(uuid.UUID(int=1), number) for number in range(count)]
        return [len(message) for message in _messages(dict.fromkeys(keys, release_note))]

    assert slices(0, 0) == []
    assert slices(PARTITIONS_MAX + 1, 0) == [PARTITIONS_MAX, 1]
    assert slices(3, BYTES_MAX) == [1, 1, 1]
    assert sum(slices(100, 100_000)) == 100
    assert max(slices(100, 100_000)) == 10


async def test_a_notice_does_not_wait_for_the_response_to_the_one_before() -> None:
    """Send notes while responses are outstanding: only a few are in flight, and the notes that come then go
    together."""

    async with cluster() as c:
        topic = c.topic(20)
        keys = c.keys()
        c.wire_s = 1.0
        a = c["a"]
        a.view.assign("b", *keys)
        began = now()
        for key in keys:
            a.handovers.notify(key, NOTHING)
            await later(10)
        sizes = [len(message.partitions) for _, message in a.wire.asked]
        assert sizes == [1] * UNDER_WAY_MAX
        await a.handovers.wait_notified()
        assert now() - began < 2.5
        sizes = [len(message.partitions) for _, message in a.wire.asked]
        assert sizes == [1] * UNDER_WAY_MAX + [len(keys) - UNDER_WAY_MAX]
        found = [each for _, message in a.wire.asked for each in message.partitions]
        assert found == [(topic.topic_id, number) for number in range(20)]

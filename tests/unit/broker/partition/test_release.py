"""The release note of a partition that moves: what the successor need not read, and notes that are wrong or lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.files.deferred_indexes import BEHIND_MS, LOOK_MS
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.core.errors import FormatError, RequestError
from bmq.core.rpc.messages.broker import HandedOverRequest, Release
from bmq.storage.memory import Faults
from tests.harness.waiting import now, until
from tests.unit.broker.cluster import cluster
from tests.unit.broker.moves import HDFS, count_calls, count_gets, later, names, owned, path_of, record_of
from tests.unit.broker.world import idempotent


async def test_the_successor_reads_nothing_that_its_release_note_says() -> None:
    async with cluster() as c:
        key = await owned(c)
        read = count_calls(c["b"], "read", "status")
        gets = count_gets(c["b"])
        c.give("b", key)
        assert await c.write("b", key, idempotent(1)) == 1, "it knows the producers"
        assert await c.write("b", key, idempotent(2)) == 2
        assert read == []
        assert len(gets) == 1, "once, to hear whom to wait for"
        driver = c["b"].broker.get(key)
        assert driver is not None
        assert driver.takeover is None, "an open partition keeps neither its note nor its index"


@pytest.mark.leaves_tasks
async def test_rule_9_producers_are_known_though_release_note_and_index_died_with_their_writer() -> None:
    """The segment is scanned then, as after any death."""

    async with cluster() as c:
        key = await owned(c, 3)
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        assert (await record_of(c)).is_settled
        c["a"].kill()
        c["b"].view.leave("a")
        del c.nodes["a"]
        assert await c.write("b", key, idempotent(2)) == 2, "a repetition"
        assert await c.write("b", key, idempotent(3)) == 3
        await later(1000)
        kept = [status.path async for status in c["b"].fs.list(path_of(c).folder)]
        assert sum(path.endswith(".idx") for path in kept) == 1


@pytest.mark.leaves_tasks
async def test_the_segment_before_the_last_is_not_read_for_its_producers() -> None:
    """The first segment gets full in the hand-over, and its index is nowhere but at its writer, which dies.

    So the last segment's index, which has the producers of both, is on storage before the release.
    """

    async with cluster() as c:
        key = await owned(c, 3)
        driver = c["a"].broker.get(key)
        assert driver is not None
        driver.reconfigure(replace(driver.machine.config, segment_bytes=4 * len(idempotent(0))))
        c.storage.faults = Faults(ack_s=(0.2, 0.2))
        last_of_first = asyncio.create_task(c.write("a", key, idempotent(3)))
        await until(lambda: bool(driver.machine.batches.inflight))
        first_of_next = asyncio.create_task(c.write("a", key, idempotent(4)))
        await until(lambda: bool(driver.machine.batches.unsent))
        c["a"].wire.is_cut = True
        c.give("b", key)
        assert list(await asyncio.gather(last_of_first, first_of_next)) == [3, 4]
        await c["a"].wire.has_asked.wait()
        assert [entry.name.base for entry in (await record_of(c)).segments] == [0, 4]
        assert (await record_of(c)).is_settled
        c["a"].kill()
        c["b"].view.leave("a")
        del c.nodes["a"]
        read = count_calls(c["b"], "read")
        assert await c.write("b", key, idempotent(3)) == 3, "a repetition"
        assert await c.write("b", key, idempotent(5)) == 5
        assert [path for path in read if f"/{0:020}" in path] == []
        await later(2 * LOOK_MS)
        kept = [name for name in await names(c) if name.endswith(".idx")]
        assert [name[:20] for name in kept] == [f"{base:020}" for base in (0, 4)], "none is missing for ever"


@pytest.mark.parametrize("spoil", ["damaged", "of another segment", "stale", "no record", "an empty record"])
async def test_a_release_note_that_is_wrong_costs_only_time(spoil: str) -> None:
    async with cluster() as c:
        key = await owned(c)
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        _, message = c["a"].wire.asked[0]
        right = ReleaseNote.of(message.releases[0])
        c["a"].wire.is_cut = False
        if spoil == "damaged":
            wrong = right._replace(last_index=right.last_index[:-1] + b"!")
        elif spoil == "of another segment":
            last = right.record.segments[-1]
            record = replace(right.record, segments=(replace(last, length=last.length - 1),))
            wrong = right._replace(record=record)
        elif spoil == "stale":
            wrong = right._replace(revision=right.revision - 1)
        elif spoil == "an empty record":
            wrong = right._replace(record=NOTHING.record)
        else:
            wrong = NOTHING
        handover = HandedOverRequest(message.partitions, (wrong.release(),))
        await c["a"].wire.ask(c["a"].view.members["b"], handover, 1.0)
        assert await c.write("b", key, idempotent(1)) == 1
        assert await c.write("b", key, idempotent(2)) == 2


async def test_a_message_of_an_earlier_version_has_no_release_notes() -> None:
    async with cluster() as c:
        key = await owned(c)
        c["a"].wire.is_cut = True
        c.give("b", key)
        await c["a"].wire.has_asked.wait()
        c["a"].wire.is_cut = False
        await later(BEHIND_MS * 2)
        plain = HandedOverRequest(((key.topic_id, key.partition),))
        began = now()
        await c["a"].wire.ask(c["a"].view.members["b"], plain, 1.0)
        assert await c.write("b", key, idempotent(1)) == 1
        assert now() - began < 1.0


@pytest.mark.parametrize("releases", [(Release(1, b"{}", b""),), (NOTHING.release(),) * 3])
async def test_a_message_with_damaged_release_notes_is_refused(releases: tuple[Release, ...]) -> None:
    async with cluster() as c:
        topic = c.topic(2)
        handover = HandedOverRequest(((topic.topic_id, 0), (topic.topic_id, 1)), releases)
        with pytest.raises((RequestError, FormatError)):
            await c["b"].wire.ask(c["b"].view.members["a"], handover, 1.0)


async def test_a_move_that_a_produce_waits_for_takes_as_long_as_its_serial_calls() -> None:
    """Storage as in the table of docs/design/hand-over.md: what is left is serial by the rules."""

    async with cluster(broker=BrokerConfig()) as c:
        key = await owned(c)
        c.storage.faults = HDFS
        began = now()
        c.give("b", key)
        assert await c.write("b", key, idempotent(2)) == 2
        assert now() - began < 0.03

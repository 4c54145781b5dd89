"""The simulation's own parts do what they say: processes of other versions, last steps, descriptors, copies."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bmq.core.model import SegmentName
from bmq.core.records import Batch
from bmq.core.wire.internal import HandedOverRequest, PingRequest
from bmq.core.wire.internal_fields import Release
from bmq.meta import ownership
from bmq.meta.memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.ownership import PartitionRecord, SegmentEntry
from bmq.storage.filesystem import OutOfSpace, StorageUnavailable, write_once
from bmq.storage.memory import MemoryStorage
from tests.simulation.cluster_network import ClusterNetwork
from tests.simulation.cluster_versions import spoken
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.frail_files import FrailFileSystem
from tests.simulation.judge import KEY, Judge, encode, make
from tests.simulation.loop import PROCESS, run
from tests.simulation.versions import SpokenKeyValue, Version

RECORD = ownership.partition_key("bmq", KEY)
LEFT = PartitionRecord(
    epoch=3,
    segments=(SegmentEntry(name=SegmentName(0, 3, 0), spare="/s", holder="p0", file_id=9, length=10, end_offset=2),),
    journals=("p0",),
    is_settled=True,
)


def speaker(store: MemoryStore, version: Version, faults: KvFaults | None = None) -> SpokenKeyValue:
    kv = SpokenKeyValue(store, random=Random(1), faults=faults)
    kv.version = version
    return kv


def play(story: Coroutine[Any, Any, None]) -> None:
    run(story, 1)


# ------------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("writer", Version)
@pytest.mark.parametrize("reader", Version)
def test_a_record_passes_from_each_version_to_each(writer: Version, reader: Version) -> None:
    """Only ``settled`` is lost on the way, where either does not know it."""

    async def story() -> None:
        store = MemoryStore()
        assert isinstance(await ownership.store(speaker(store, writer), RECORD, LEFT, 0), ownership.Stored)
        found, _ = await ownership.read(speaker(store, reader), RECORD)
        knows = Version.EARLIER not in (writer, reader)
        assert found == (LEFT if knows else replace(LEFT, is_settled=False))

    play(story())


def test_what_a_later_version_writes_holds_more_than_this_one_knows() -> None:
    async def story() -> None:
        store = MemoryStore()
        await ownership.store(speaker(store, Version.LATER), RECORD, LEFT, 0)
        entry = await MemoryKeyValue(store).get(RECORD)
        assert entry is not None
        assert entry.value.startswith(ownership.encode(LEFT)[:-1] + b',"of a later version"')

    play(story())


@pytest.mark.parametrize("version", Version)
def test_each_version_knows_its_own_write_again(version: Version) -> None:
    """A commit whose answer was lost is asked again, and refused by itself."""

    async def story() -> None:
        store = MemoryStore()
        await ownership.store(speaker(store, version), RECORD, LEFT, 0)
        assert isinstance(await ownership.store(speaker(store, version), RECORD, LEFT, 0), ownership.Stored)

    play(story())


def test_messages_of_each_version() -> None:
    """A later version's tagged field is passed over; the version before sends no releases."""

    async def story() -> None:
        world = ClusterWorld(1)
        world.versions = {"b-0": Version.EARLIER, "b-1": Version.THIS, "b-2": Version.LATER}
        release = Release(7, b"record", b"index")
        told = HandedOverRequest(((KEY.topic_id, KEY.partition),), (release,))
        with spoken(world):
            for process, releases in (("b-0", ()), ("b-1", (release,)), ("b-2", (release,))):
                token = PROCESS.set(process)
                sent, ping = (b"".join(map(bytes, message.encode())) for message in (told, PingRequest()))
                PROCESS.reset(token)
                assert HandedOverRequest.decode(memoryview(sent)).releases == releases
                assert PingRequest.decode(memoryview(ping)) == PingRequest()
                assert (b"later" in ping) == (process == "b-2")

    play(story())


# ------------------------------------------------------------------------------------------------ one process's storage


def test_a_last_step_is_done_and_never_returns() -> None:
    async def story() -> None:
        storage = MemoryStorage()
        died: list[str] = []

        def die() -> None:
            died.append("now")
            fs.crash()

        fs = FrailFileSystem(storage, "p0", die)
        await write_once(fs, "/a", b"1")
        fs.last_step = "rename"
        task = asyncio.create_task(fs.rename("/a", "/b"))
        await asyncio.sleep(1)
        assert died == ["now"]
        assert not task.done()
        assert (await FrailFileSystem(storage, "p1", die).status("/b")).length == 1
        task.cancel()

    play(story())


def test_without_descriptors_no_file_is_opened() -> None:
    async def story() -> None:
        fs = FrailFileSystem(MemoryStorage(Random(1)), "p0", lambda: None)
        await write_once(fs, "/a", b"1")
        fs.lacks_descriptors = True
        outcomes: list[object] = []
        for number in range(20):
            with pytest.raises((OutOfSpace, StorageUnavailable)) as refused:
                await fs.create(f"/b{number}")
            outcomes.append(refused.type)
        assert set(outcomes) == {OutOfSpace, StorageUnavailable}
        fs.lacks_descriptors = False
        assert await fs.read("/a", 0, 9) == b"1"

    play(story())


def test_without_descriptors_nobody_is_connected_to_and_callers_wait() -> None:
    async def story() -> None:
        network = ClusterNetwork(Random(1), 0.001)
        loop = asyncio.get_running_loop()
        accepted: list[str] = []

        class Server(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.append("one")

        token = PROCESS.set("b-0")
        await loop.create_server(Server, "b", 1)
        network.lack_descriptors("b-0", True)
        with pytest.raises(OSError, match="Too many open files") as refused:
            await loop.create_connection(asyncio.Protocol, "b", 1)
        assert refused.value.errno == errno.EMFILE
        PROCESS.reset(token)
        await loop.create_connection(asyncio.Protocol, "b", 1)
        await asyncio.sleep(1)
        assert accepted == []
        network.lack_descriptors("b-0", False)
        await asyncio.sleep(1)
        assert accepted == ["one"]

    play(story())


# --------------------------------------------------------------------------------------------------------------- copies


def test_the_judge_counts_copies() -> None:
    """As many as were asked for when the batch was accepted, or fewer if the setting was lowered since."""

    judge = Judge()
    batch = Batch(make(1, 7, pid=1, size=5))
    judge.ask_copies("p0", encode(1, 7), 3)
    judge.check_copies("p0", [batch], 3)
    with pytest.raises(AssertionError, match="2 copies of 3"):
        judge.check_copies("p0", [batch], 2)
    judge.check_copies("p1", [batch], 1)
    judge.lower_copies(2)
    judge.check_copies("p0", [batch], 2)

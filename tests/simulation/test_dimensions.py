"""The simulation's own parts do what they say: processes of other versions, last steps, descriptors, copies."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from random import Random

import pytest

from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch
from bmq.core.rpc.messages.broker import HandedOverRequest, Release
from bmq.core.rpc.messages.member import PingRequest
from bmq.meta import ownership
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.ownership import N_MAX, PartitionRecord, SegmentEntry
from bmq.storage.filesystem import OutOfSpace, StorageUnavailable, write_once
from bmq.storage.memory import Faults, MemoryStorage
from bmq.storage.memory.namespace import Datanode, NodeState
from tests.harness.loop import PROCESS
from tests.harness.waiting import until
from tests.simulation.cluster_network import ClusterNetwork
from tests.simulation.cluster_versions import spoken
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.frail_files import FrailFileSystem
from tests.simulation.judge import KEY, Judge, encode, make
from tests.simulation.stories import delete_records, nodes_of, owner, write, writer_of
from tests.simulation.versions import SpokenKeyValue, Version
from tests.simulation.world import SMALL_LOG, World

pytestmark = pytest.mark.leaves_tasks

RECORD = ownership.partition_key("bmq", KEY)
LEFT = PartitionRecord(
    epoch=3,
    segments=(SegmentEntry(name=SegmentName(0, 3, 0), spare="/s", holder="p0", file_id=9, length=10, end_offset=2),),
    journals=("p0",),
    is_settled=True,
    last=(3, 1),
)


def speaker(store: MemoryStore, version: Version, faults: KvFaults | None = None) -> SpokenKeyValue:
    kv = SpokenKeyValue(store, random=Random(1), faults=faults)
    kv.version = version
    return kv


# ------------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("writer", Version)
@pytest.mark.parametrize("reader", Version)
@pytest.mark.seed(1)
async def test_a_record_passes_from_each_version_to_each(writer: Version, reader: Version) -> None:
    """Only ``settled`` and ``last`` are lost on the way, where either does not know them."""

    store = MemoryStore()
    assert isinstance(await ownership.store(speaker(store, writer), RECORD, LEFT, 0), ownership.Stored)
    found, _ = await ownership.read(speaker(store, reader), RECORD)
    knows = Version.EARLIER not in (writer, reader)
    assert found == (LEFT if knows else replace(LEFT, is_settled=False, last=(3, N_MAX)))


@pytest.mark.seed(1)
async def test_what_a_later_version_writes_holds_more_than_this_one_knows() -> None:
    store = MemoryStore()
    await ownership.store(speaker(store, Version.LATER), RECORD, LEFT, 0)
    entry = await MemoryKeyValue(store).get(RECORD)
    assert entry is not None
    assert entry.value.startswith(ownership.encode(LEFT)[:-1] + b',"of a later version"')


@pytest.mark.parametrize("version", Version)
@pytest.mark.seed(1)
async def test_each_version_knows_its_own_write_again(version: Version) -> None:
    """A commit whose answer was lost is asked again, and refused by itself."""

    store = MemoryStore()
    await ownership.store(speaker(store, version), RECORD, LEFT, 0)
    assert isinstance(await ownership.store(speaker(store, version), RECORD, LEFT, 0), ownership.Stored)


@pytest.mark.seed(1)
async def test_messages_of_each_version() -> None:
    """A later version's tagged field is passed over; the version before sends no releases."""

    world = ClusterWorld(1)
    world.versions = {"b-0": Version.EARLIER, "b-1": Version.THIS, "b-2": Version.LATER}
    release = Release(7, b"record", b"index")
    handover = HandedOverRequest(((KEY.topic_id, KEY.partition),), (release,))
    with spoken(world):
        for process, releases in (("b-0", ()), ("b-1", (release,)), ("b-2", (release,))):
            token = PROCESS.set(process)
            sent, ping = (b"".join(map(bytes, message.encode())) for message in (handover, PingRequest()))
            PROCESS.reset(token)
            assert HandedOverRequest.decode(memoryview(sent)).releases == releases
            assert PingRequest.decode(memoryview(ping)) == PingRequest()
            assert (b"later" in ping) == (process == "b-2")


# ------------------------------------------------------------------------------------------------ one process's storage


@pytest.mark.seed(1)
async def test_a_last_step_is_done_and_never_returns() -> None:
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


@pytest.mark.seed(1)
async def test_without_descriptors_no_file_is_opened() -> None:
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


@pytest.mark.seed(1)
async def test_without_descriptors_nobody_is_connected_to_and_callers_wait() -> None:
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


@pytest.mark.seed(1)
async def test_who_waits_to_be_accepted_by_a_process_that_ends_is_told() -> None:
    network = ClusterNetwork(Random(1), 0.001)
    loop = asyncio.get_running_loop()
    lost: list[BaseException | None] = []

    class Caller(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.append(exc)

    token = PROCESS.set("b-0")
    server = await loop.create_server(asyncio.Protocol, "b", 1)
    PROCESS.reset(token)
    network.lack_descriptors("b-0", True)
    await loop.create_connection(Caller, "b", 1)
    server.close()
    await asyncio.sleep(1)
    assert [type(error) for error in lost] == [ConnectionResetError]
    assert not network.ends


# --------------------------------------------------------------------------------------------------------------- copies


def test_the_judge_counts_copies() -> None:
    """Ask for three copies, then for two: a batch needs the copies of its acceptance, or a lower later setting's."""

    judge = Judge()
    batch = Batch(make(1, 7, pid=1, size=5))
    judge.ask_copies("p0", encode(1, 7), 3)
    judge.check_copies("p0", batch, 3)
    with pytest.raises(AssertionError, match="2 copies of 3"):
        judge.check_copies("p0", batch, 2)
    judge.check_copies("p1", batch, 1)
    judge.lower_copies(2)
    judge.check_copies("p0", batch, 2)


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.seed(1)
async def test_copies_are_those_of_the_pipeline_that_acknowledged(is_deleted: bool) -> None:
    """A paused owner receives its ack when the file has one copy left, after a take-over, or is deleted."""

    world = World(1, datanodes=3, log_config=replace(SMALL_LOG, min_insync=3, file_delete_delay_ms=0))
    zombie = await owner(world)
    await write(zombie, range(1))
    world.storage.faults = Faults(ack_s=(0.2, 0.2))
    world.judge.ask_copies("p0", encode(1, 1), 3)
    response = writer_of(zombie).append(make(1, 1, pid=1, size=100))
    await asyncio.sleep(0)
    zombie.pause()
    await asyncio.sleep(1)
    *dead, kept = nodes_of(zombie)
    world.storage.faults = Faults()
    for name in dead:
        world.storage.datanodes[name].state = NodeState.DEAD  # its connections hang
    heir = await owner(world)
    assert writer_of(heir).machine.high_watermark == 2
    (file,) = (file for file in world.storage.namespace.files.values() if file.name.endswith(".log"))
    assert [replica.node.name for replica in file.replicas] == [kept]
    if is_deleted:
        for name in dead:
            world.storage.start_datanode(name)
        await write(heir, range(2, 3))
        await delete_records(heir, 2)
        await until(lambda: file.is_deleted, every_s=0.1)
    zombie.resume()
    assert await response == 1


@pytest.mark.seed(1)
async def test_copies_of_a_repeated_batch_are_those_that_its_owner_has_flushed() -> None:
    """The take-over of the owner's own failed file leaves one; it acknowledges the batch again nevertheless."""

    world = World(1, log_config=replace(SMALL_LOG, min_insync=2))
    process = await owner(world)
    world.judge.ask_copies("p0", encode(1, 0), 2)
    await write(process, range(1))
    segment = writer_of(process).machine.current
    assert segment is not None
    file = world.storage.namespace.files[segment.entry.file_id]
    for name in nodes_of(process)[1:]:
        world.storage.kill_datanode(name)
    await write(process, range(1, 2))
    await until(lambda: not file.is_open)
    assert len(file.replicas) == 1
    assert await writer_of(process).append(make(1, 0, pid=1, size=100)) == 0
    world.check_repeated(process, 0, 2)
    world.ask_copies(3)  # a setting that is raised has the owner count again
    with pytest.raises(AssertionError, match="offset 0 again with 1 copies of 3"):
        world.check_repeated(process, 0, 3)


@pytest.mark.seed(1)
async def test_the_judge_looks_at_the_segment_that_holds_the_batch() -> None:
    """Put the next segment on more datanodes than the one that holds the batch: only the latter's copies count."""

    world = World(1, datanodes=1)
    process = await owner(world)
    await write(process, range(1))
    for name in ("dn1", "dn2"):
        world.storage.datanodes[name] = Datanode(name)
    world.storage.kill_datanode("dn0")
    await write(process, range(1, 2))
    world.storage.start_datanode("dn0")
    first, second = (Batch(make(1, number, pid=1, size=5)) for number in range(2))
    second.assign(1, 1)
    assert world.copies_of(process, first) == 1
    assert world.copies_of(process, second) == 2

"""A topic's owner, group and mode: refused if storage refuses, else given to every file, whatever ends on the way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from bmq.controller.topics import access_walks
from bmq.controller.topics.access import access_prefix
from bmq.controller.topics.access_walks import AccessWalks
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.file_access import NO_ACCESS, Access
from bmq.meta.catalog import Topic
from bmq.meta.config_changes import ConfigChange, Operation
from bmq.meta.kv import Compare
from bmq.meta.kv_memory import MemoryKeyValue
from bmq.storage.access_files import AccessFiles
from bmq.storage.filesystem import CreateOptions, StorageUnavailable, write_once
from bmq.storage.memory import MemoryFileSystem
from tests.unit.controller.admin.world import AdminWorld, world

pytestmark = pytest.mark.slow
READERS = {"storage.group": "readers", "storage.mode": "750"}
LONG_S = 1_000.0
"""Long enough for every walk of these tests, in virtual time."""


def walks(
    w: AdminWorld, fs: MemoryFileSystem | None = None, shared: Access = NO_ACCESS, guard: Any = list
) -> AccessWalks:
    files, kv = AccessFiles(fs or w.fs), MemoryKeyValue(w.store)
    return AccessWalks(kv, "c", w.catalog, w.config, files, LoopClock(), guard=guard, shared=shared)


async def fill(w: AdminWorld, topic: Topic) -> None:
    """Write two files for each partition, as brokers that do not know of any access."""
    for partition in range(topic.partitions):
        for name in ("x.log", ".spare"):
            await write_once(w.fs, f"/topics/{topic.name}/{topic.topic_id}/{partition}/{name}", b"data")


async def tree(w: AdminWorld, path: str) -> dict[str, tuple[str, int]]:
    """Return group and mode of all under `path`."""
    found = {}
    async for entry in w.fs.list(path):
        found[entry.path] = (entry.group, entry.mode)
        if entry.is_dir:
            found.update(await tree(w, entry.path))
    return found


def is_given(found: dict[str, tuple[str, int]], group: str = "readers", mode: int = 0o750) -> bool:
    return bool(found) and all(
        each == (group, mode & 0o666 if "." in path.rpartition("/")[2] else mode) for path, each in found.items()
    )


def sets(**configs: str) -> list[ConfigChange]:
    return [ConfigChange(name.replace("_", "."), Operation.SET, value) for name, value in configs.items()]


async def records(w: AdminWorld) -> int:
    return len([entry async for entry in MemoryKeyValue(w.store).list(access_prefix("c"))])


async def test_a_jobs_folder_in_a_partition_is_left_as_the_job_made_it() -> None:
    """Storage may refuse to change it, since it is another user's."""
    async with world() as w:
        partition = f"/topics/t/{UUID(int=1)}/0"
        for path in (f"{partition}/x.log", f"{partition}/.compact-job/part-0.log"):
            await write_once(w.fs, path, b"data")
        before = await tree(w, f"{partition}/.compact-job")
        folder = (await tree(w, partition))[f"{partition}/.compact-job"]
        assert await AccessFiles(w.fs).give_some("t", UUID(int=1), Access("", "readers", 0o750), "", 10)
        found = await tree(w, partition)
        assert found[f"{partition}/x.log"] == ("readers", 0o640)
        assert found[f"{partition}/.compact-job"] == folder
        assert await tree(w, f"{partition}/.compact-job") == before


async def test_a_new_topics_folder_has_its_rights_before_it_exists() -> None:
    async with world() as w:
        topic = await w.admin.create_topic("t", 1, configs=READERS)
        found = await w.fs.status(f"/topics/t/{topic.topic_id}")
        assert (found.group, found.mode) == ("readers", 0o750)
        json = [path for path in await tree(w, "/topics/t") if path.endswith(".json")]
        assert [(await w.fs.status(path)).mode for path in json] == [0o640]
        assert [name for name in await w.names("/") if name.startswith(".trial")] == []


async def test_what_storage_refuses_is_refused_before_anything_is_written() -> None:
    async with world() as w:
        w.storage.refused_names = frozenset({"others"})
        topic = await w.admin.create_topic("t", 1)
        before, names = w.store.revision, await tree(w, "/")
        for act in (
            w.admin.create_topic("u", 1, configs={"storage.group": "others"}),
            w.admin.create_topic("u", 1, configs={"storage.owner": "others"}, validate_only=True),
            w.admin.alter_topic_configs("t", sets(storage_group="others")),
            w.admin.alter_topic_configs("t", sets(storage_group="others"), validate_only=True),
            w.admin.alter_broker_configs(None, sets(log_storage_group="others")),
        ):
            with pytest.raises(RequestError, match="may not set others") as caught:
                await act
            assert caught.value.code is ErrorCode.INVALID_CONFIG
        assert (w.store.revision, await tree(w, "/")) == (before, names)
        assert w.catalog.topics == {"t": topic}


@pytest.mark.parametrize(("name", "value"), [("mode", "650"), ("mode", "75"), ("group", "a b"), ("owner", "-x")])
async def test_a_value_of_another_form_is_refused(name: str, value: str) -> None:
    async with world() as w:
        with pytest.raises(RequestError, match=f"Invalid value {value} for configuration storage.{name}") as caught:
            await w.admin.create_topic("t", 1, configs={f"storage.{name}": value})
        assert caught.value.code is ErrorCode.INVALID_CONFIG


async def test_a_default_that_storage_refuses_stops_no_topic() -> None:
    async with world(config=NodeConfig(log_storage_group="others")) as w:
        w.storage.refused_names = frozenset({"others"})
        topic = await w.admin.ensure_topic("t")
        assert w.catalog.topics["t"] == topic
        keeper = walks(w)
        await keeper.start()
        await asyncio.sleep(5)
        assert (keeper.under_way, keeper.failing) == (1, 1)
        w.storage.refused_names = frozenset()  # the process is a member of the group now
        await asyncio.sleep(LONG_S)
        assert (keeper.under_way, keeper.failing) == (0, 0)
        assert (await w.fs.status(f"/topics/t/{topic.topic_id}")).group == "others"
        await keeper.close()


async def test_a_changed_setting_reaches_every_file_and_no_other_topic() -> None:
    async with world() as w:
        topic, other = await w.admin.create_topic("t", 50), await w.admin.create_topic("other", 2)
        for each in (topic, other):
            await fill(w, each)
        before = await tree(w, "/topics/other")
        keeper = walks(w)
        await keeper.start()
        await asyncio.sleep(LONG_S)
        assert await records(w) == 0, "nothing is asked for"
        await w.admin.alter_topic_configs("t", sets(**{k.replace(".", "_"): v for k, v in READERS.items()}))
        await asyncio.sleep(LONG_S)
        assert is_given(await tree(w, "/topics/t"))
        assert (await w.fs.status("/topics/t")).mode == 0o750
        assert await tree(w, "/topics/other") == before
        assert (keeper.under_way, await records(w)) == (0, 1)
        await w.admin.alter_topic_configs("t", sets(storage_mode="700"))
        await asyncio.sleep(access_walks.LOOK_S * 2)
        assert (await w.fs.status("/topics/t")).mode == 0o700, "the folder bounds all in it at once"
        await asyncio.sleep(LONG_S)
        assert is_given(await tree(w, "/topics/t"), mode=0o700)
        await keeper.close()


async def test_a_file_that_a_broker_made_by_its_old_view_is_given_the_rights_too() -> None:
    async with world() as w:
        topic = await w.admin.create_topic("t", 3, configs=READERS)
        keeper = walks(w)
        await keeper.start()
        await asyncio.sleep(access_walks.LOOK_S * 3)
        await fill(w, topic)
        assert not is_given(await tree(w, "/topics/t"))
        await asyncio.sleep(LONG_S)
        assert is_given(await tree(w, "/topics/t"))
        await keeper.close()


async def test_a_changed_default_reaches_the_topics_that_have_no_own() -> None:
    async with world() as w:
        for name, configs in (("t", {}), ("own", {"storage.mode": "755"})):
            await fill(w, await w.admin.create_topic(name, 2, configs=configs))
        keeper = walks(w)
        await keeper.start()
        await w.admin.alter_broker_configs(None, sets(log_storage_group="readers", log_storage_mode="750"))
        await asyncio.sleep(LONG_S)
        assert is_given(await tree(w, "/topics/t"))
        assert is_given(await tree(w, "/topics/own"), mode=0o755)
        await keeper.close()


async def test_what_is_not_asked_for_any_more_stays_as_it_is_and_leaves_no_record() -> None:
    async with world() as w:
        topic = await w.admin.create_topic("t", 2, configs=READERS)
        await fill(w, topic)
        gone = await w.admin.create_topic("gone", 2, configs=READERS)
        keeper = walks(w)
        await keeper.start()
        await asyncio.sleep(LONG_S)
        assert await records(w) == 2
        before = {path: each for path, each in (await tree(w, "/topics/t")).items() if not path.endswith(".json")}
        await w.admin.alter_topic_configs("t", [ConfigChange(name, Operation.DELETE, None) for name in READERS])
        await w.admin.delete_topic("gone", gone.topic_id)
        await asyncio.sleep(LONG_S)
        after = {path: each for path, each in (await tree(w, "/topics/t")).items() if not path.endswith(".json")}
        assert (after, await records(w)) == (before, 0)
        await keeper.close()


@pytest.mark.parametrize("calls", [*range(1, 40, 3), 60, 90])
async def test_a_walk_whose_process_dies_is_ended_by_the_next_leader(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_walks, "FOLDERS_PER_STEP", 3)

    class Dying(MemoryFileSystem):
        left = calls

        async def set_access(self, path: str, access: Access) -> bool:
            self.left -= 1
            if self.left < 0:
                raise StorageUnavailable("the process is gone")
            return await super().set_access(path, access)

    async with world() as w:
        topic = await w.admin.create_topic("t", 10)
        await fill(w, topic)
        await w.admin.alter_topic_configs("t", sets(storage_group="readers", storage_mode="750"))
        first = walks(w, Dying(w.storage, "dying"))
        await first.start()
        await asyncio.sleep(8)
        await first.close()
        second = walks(w)
        await second.start()
        await asyncio.sleep(LONG_S)
        assert is_given(await tree(w, "/topics/t"))
        assert second.under_way == 0
        await second.close()


async def test_a_walk_that_is_done_costs_the_next_leader_no_call_to_storage() -> None:
    async with world() as w:
        await fill(w, await w.admin.create_topic("t", 5, configs=READERS))
        first = walks(w)
        await first.start()
        await asyncio.sleep(LONG_S)
        await first.close()

        class Silent(MemoryFileSystem):
            def list(self, path: str, *, after: str = "") -> Any:
                raise AssertionError(f"{path} is listed")

        second = walks(w, Silent(w.storage, "second"))
        await second.start()
        await asyncio.sleep(LONG_S)
        assert (second.under_way, second.failing) == (0, 0)
        await second.close()


async def test_a_process_that_does_not_lead_any_more_writes_no_record() -> None:
    async with world() as w:
        await fill(w, await w.admin.create_topic("t", 2, configs=READERS))
        deposed = walks(w, guard=lambda: [Compare("/c/controller", 99)])
        await deposed.start()
        await asyncio.sleep(60)
        assert await records(w) == 0
        await deposed.close()


async def test_files_that_are_open_are_met_again_until_they_are_closed() -> None:
    class Local(MemoryFileSystem):
        """Leaves open files alone, as a local root."""

        async def set_access(self, path: str, access: Access) -> bool:
            found = self.storage.namespace.find(path)
            return not getattr(found, "is_open", False) and await super().set_access(path, access)

    async with world() as w:
        topic = await w.admin.create_topic("t", 1, configs=READERS)
        appender = await w.fs.create(f"/topics/t/{topic.topic_id}/0/x.log")
        keeper = walks(w, Local(w.storage, "local"))
        await keeper.start()
        await asyncio.sleep(LONG_S)
        assert keeper.under_way == 1
        await appender.close()
        await asyncio.sleep(LONG_S)
        assert keeper.under_way == 0
        assert is_given(await tree(w, "/topics/t"))
        await keeper.close()


async def test_readers_of_any_topic_pass_the_root_and_read_its_journals() -> None:
    async with world() as w:
        topic = await w.admin.create_topic("t", 1, configs=READERS)
        for path in ("/cluster.json", "/root.json", "/journals/b-00000001.jnl"):
            await write_once(w.fs, path, b"x", replace(CreateOptions(block_bytes=1 << 20), access=Access(mode=0o700)))
        keeper = walks(w, shared=Access(group="all", mode=0o711))
        await keeper.start()
        await asyncio.sleep(LONG_S)
        found = await tree(w, "/")
        assert {path: found[path] for path in found if path.count("/") == 1 or "journals" in path} == {
            "/topics": ("all", 0o711),
            "/journals": ("all", 0o755),
            "/journals/b-00000001.jnl": ("all", 0o644),
            "/cluster.json": ("all", 0o644),
            "/root.json": ("all", 0o644),
        }
        assert (await w.fs.status("/")).mode == 0o711
        assert is_given(await tree(w, f"/topics/t/{topic.topic_id}") or {"/": ("readers", 0o750)})
        await keeper.close()

"""A job without the right to a topic: it fails, names the topic and the rights, and never reads less instead."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bmq.core.errors import RequestError
from bmq.core.file_access import Access
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs, find_topics, newest_checkpoints
from bmq.spark.planning.permissions import NotReadable, reading
from bmq.spark.streaming.topic_follower import Follower
from bmq.storage.access_files import AccessFiles
from bmq.storage.filesystem import FileStatus, NoSuchFile, NotAllowed
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.storing import Store

pytestmark = pytest.mark.slow
GROUPS = {"orders": 64_321, "payments": 64_322}
"""Groups that no machine has."""


class Closed(MemoryFileSystem):
    """A file system whose folders `closed` must not be listed."""

    closed: frozenset[str] = frozenset()

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        if path in self.closed:
            raise NotAllowed(f"list {path}: Permission denied: user=eve, access=READ_EXECUTE")
        async for each in super().list(path, after=after):
            yield each


async def stored() -> Closed:
    fs = Closed(MemoryStorage(), "test")
    for name in ("orders", "payments"):
        await (await Store(fs, name, uuid.uuid4()).create(1)).resize(2)
    await fs.set_access("/topics/orders", Access(owner="bmq", group="orders-readers", mode=0o750))
    fs.closed = frozenset({"/topics/orders"})
    return fs


TEXT = (
    r"may not read topic orders in memory:: /topics/orders is of bmq:orders-readers with mode 750; list /topics/orders:"
    r" Permission denied: user=eve.*storage\.group.*storage\.mode"
)


@pytest.mark.parametrize(
    "given", [{"subscribe": "payments,orders"}, {"subscribePattern": ".*"}, {"assign": '{"orders": [0]}'}]
)
async def test_a_topic_that_may_not_be_read_ends_the_query_and_is_named(given: dict[str, str]) -> None:
    fs = await stored()
    options = ReadOptions.parse({"root": "memory:", **given})
    with pytest.raises(NotReadable, match=TEXT):
        await find_logs(fs, options)
    with pytest.raises(NotReadable, match=TEXT):
        await Follower(fs, options).refresh()
    assert await find_topics(fs, ReadOptions.parse({"root": "memory:", "subscribe": "payments"}))


async def test_what_all_readers_need_is_named() -> None:
    fs = await stored()
    fs.closed = frozenset({"/topics", "/journals"})
    with pytest.raises(NotReadable, match=r"the list of topics.*/topics is of bmq:hadoop with mode 755.*stora"):
        await find_topics(fs, ReadOptions.parse({"root": "memory:", "subscribePattern": ".*"}))
    with pytest.raises(NotReadable, match=r"may not read the journals.*storage_shared_mode"):
        await newest_checkpoints(fs, set())
    with pytest.raises(NotReadable, match="the journals"):
        await Follower(fs, ReadOptions.parse({"root": "memory:", "subscribe": "payments"})).refresh()


async def test_other_errors_and_those_that_are_named_already_stay() -> None:
    fs = await stored()
    named = NotReadable("named")

    async def fails(error: Exception) -> None:
        raise error

    for error in (named, NoSuchFile("gone")):
        with pytest.raises(type(error)) as caught:
            await reading(fs, "orders", fails(error))
        assert caught.value is error


READER = """
import asyncio, concurrent.futures.thread, os, sys
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs
from bmq.storage.local.filesystem import LocalFileSystem  # imported as root: the interpreter may be root's alone
from bmq.storage.open import open_filesystem
uid, group, root, topic = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
os.setgroups([group]); os.setgid(uid); os.setuid(uid)
async def read():
    fs = await open_filesystem(root, holder="reader", must_exist=True)
    for log in await find_logs(fs, ReadOptions.parse({"root": root, "subscribe": topic})):
        async for file in fs.list(log.path.folder):
            print(file.path.rpartition("/")[2], len(await fs.read(file.path, 0, 1000)))
    print("read", topic)
try:
    asyncio.run(read())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.loops("asyncio")
@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes other users")
async def test_another_user_reads_the_topic_of_its_group_on_a_local_root_and_no_other(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)  # pytest's own are its user's alone
    root = tmp_path / "root"
    before = os.umask(0o077)  # as `bmq serve` has it
    try:
        fs = LocalFileSystem(root, "server")
        access = AccessFiles(fs)
        for name, group in GROUPS.items():
            store = await Store(fs, name, uuid.uuid4()).create(1)
            await fs.make_folder(f"/topics/{name}/{store.topic_id}/0")
            appender = await fs.create(f"/topics/{name}/{store.topic_id}/0/{'0' * 20}-00000001-0001.log")
            appender.write(b"x" * 10)
            await appender.close()
            given = Access(group=str(group), mode=0o750)
            await access.give_some(name, store.topic_id, given, "", 10)
        assert refusal(root, "orders", "orders").startswith(
            "NotReadable this user may not read topic orders in file://"
        )
        await access.give_shared(Access(mode=0o711))
        await fs.close()
    finally:
        os.umask(before)
    assert refusal(root, "orders", "orders").endswith("read orders")
    refused = refusal(root, "orders", "payments")
    assert refused.startswith("NotReadable this user may not read topic payments in file://")
    assert f"/topics/payments is of root:{GROUPS['payments']} with mode 750" in refused
    assert "Permission denied" in refused


def refusal(root: Path, group: str, topic: str) -> str:
    """Return what a process of another user, in the group of topic `group`, prints when it reads `topic`."""
    command = [sys.executable, "-c", READER, "64400", str(GROUPS[group]), root.as_uri(), topic]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


async def test_a_right_that_storage_refuses_is_a_requests_error() -> None:
    fs = await stored()
    fs.storage.refused_names = frozenset({"others"})
    with pytest.raises(RequestError, match="may not set others"):
        await AccessFiles(fs).give_shared(Access(group="others"))

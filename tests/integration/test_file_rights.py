"""Rights on topics' files on a real HDFS that checks permissions: users of a topic's group read it, and nobody else.

`bmq serve` runs as a user of HDFS that is no superuser. What it may not give is refused with HDFS's own reason.
"""

from __future__ import annotations

import getpass
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from bmq.core.file_access import Access
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs
from bmq.spark.planning.permissions import NotReadable
from bmq.storage.filesystem import FileStatus, FileSystem, NotAllowed
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.settings import HdfsSettings
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_config import write_conf

pytestmark = pytest.mark.loops("asyncio")

USERS = {"bmq": "hadoop,orders-readers,payments-readers", "alice": "orders-readers", "eve": "visitors"}
"""The groups of each user, as the NameNode has them."""
WAIT_S = 120.0


@pytest.fixture(scope="module")
def guarded() -> Iterator[HdfsCluster]:
    groups = ";".join(f"{user}={names}" for user, names in USERS.items())
    properties = {"dfs.permissions.enabled": "true", "hadoop.user.group.static.mapping.overrides": f"{groups};"}
    with HdfsCluster(properties=properties) as cluster:
        yield cluster


async def as_user(cluster: HdfsCluster, root: str, user: str = "") -> FileSystem:
    """Open the root as this user; as the NameNode's superuser if it is empty."""
    return await HdfsFileSystem.open(root, holder=f"test-{user}", settings=HdfsSettings(user=user))


def acls_of(cluster: HdfsCluster, operation: str, path: str, method: str = "GET") -> dict[str, Any]:
    """Return what the NameNode says to this operation of WebHDFS, by its superuser."""
    web = cluster.webhdfs_root.replace("webhdfs:", "http:")
    url = f"{web}/webhdfs/v1{path}?user.name={getpass.getuser()}&op={operation}"
    with urlopen(Request(url, method=method), timeout=30) as response:
        return json.loads(response.read() or "{}")  # type: ignore[no-any-return]


async def tree(fs: FileSystem, path: str) -> dict[str, FileStatus]:
    found = {}
    async for entry in fs.list(path):
        found[entry.path] = entry
        if entry.is_dir:
            found.update(await tree(fs, entry.path))
    return found


async def offsets(fs: FileSystem, topic: str) -> int:
    """Return how many records a job of this user finds in the topic."""
    logs = await find_logs(fs, ReadOptions.parse({"root": fs.url, "subscribe": topic}))
    return sum(log.log.end - log.log.start for log in logs)


def produce(server: BmqServer, topic: str, count: int, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all"})
    failed: list[object] = []

    def noted(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(count):
        producer.produce(topic, b"%d" % number, key, partition=number % 2, on_delivery=noted)
    assert producer.flush(60) == 0
    assert failed == []


def is_cleaned(path: str) -> bool:
    """Return whether this is a cleaned segment, base-epoch-n-c.log."""
    name = path.rpartition("/")[2]
    return name.endswith(".log") and name.count("-") == 3


def alter(admin: AdminClient, topic: str, **configs: str) -> None:
    entries = [
        ConfigEntry(f"storage.{name}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


def is_for_readers(found: dict[str, FileStatus], group: str) -> bool:
    return all(each.group == group and each.mode == (0o750 if each.is_dir else 0o640) for each in found.values())


async def until(holds: Callable[[dict[str, FileStatus]], bool], fs: FileSystem, path: str) -> dict[str, FileStatus]:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = await tree(fs, path)
        if holds(found):
            return found
        assert time.monotonic() < deadline, {each: (s.owner, s.group, oct(s.mode)) for each, s in found.items()}


async def test_a_user_reads_the_topics_of_its_groups_and_no_others(guarded: HdfsCluster, tmp_path: Path) -> None:
    place = guarded.root + "/guarded"
    superuser = await as_user(guarded, guarded.root)
    await superuser.make_folder("/guarded")
    await superuser.set_access("/guarded", Access(owner="bmq", group="hadoop", mode=0o755))
    environment = {**os.environ, "HADOOP_USER_NAME": "bmq", "BMQ_STORAGE_SHARED_MODE": "711"}
    with BmqServer(place, folder=tmp_path / "server", environment=environment) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {"storage.group": "orders-readers", "storage.mode": "750"}
        admin.create_topics([NewTopic("orders", 2, config=config)])["orders"].result(30)
        admin.create_topics([NewTopic("payments", 2)])["payments"].result(30)
        for topic in ("orders", "payments"):
            produce(server, topic, 20)
        alter(admin, "payments", group="payments-readers", mode="750")

        own = await as_user(guarded, place, "bmq")
        for topic in ("orders", "payments"):
            found = await until(
                lambda found, topic=topic: is_for_readers(found, f"{topic}-readers"),  # type: ignore[misc]
                own, f"/topics/{topic}",
            )  # fmt: skip
            assert any(path.endswith(".log") for path in found)
        alice, eve = await as_user(guarded, place, "alice"), await as_user(guarded, place, "eve")
        assert await offsets(alice, "orders") > 0
        for fs, topic in ((alice, "payments"), (eve, "orders"), (eve, "payments")):
            with pytest.raises(
                NotReadable, match=rf"topic {topic} in hdfs.*bmq:{topic}-readers.*Permission denied: user="
            ):
                await offsets(fs, topic)

        with pytest.raises(KafkaException, match="User bmq does not belong to visitors"):
            alter(admin, "orders", group="visitors")
        with pytest.raises(KafkaException, match=r"(?i)cannot change owner|non-super user"):
            admin.create_topics([NewTopic("refused", 1, config={"storage.owner": "alice"})])["refused"].result(30)
        assert "refused" not in admin.list_topics(timeout=30).topics

        alter(admin, "orders", mode="700")
        await until(lambda found: all(not each.mode & 0o077 for each in found.values()), own, "/topics/orders")
        with pytest.raises(NotReadable, match="topic orders"):
            await offsets(alice, "orders")
        produce(server, "orders", 20)  # writers are not concerned
        for fs in (own, alice, eve):
            await fs.close()
    await superuser.close()


@pytest.mark.parametrize("has_acl", [True, False])
async def test_the_sites_umask_closes_files_and_a_default_acl_opens_them_to_its_users(
    has_acl: bool, guarded: HdfsCluster, tmp_path: Path
) -> None:
    """A default ACL decides in the umask's place, as for files of Hadoop's own clients (HDFS-6962)."""
    name = "/listed" if has_acl else "/masked"
    place, superuser = guarded.root + name, await as_user(guarded, guarded.root)
    await superuser.make_folder(name)
    await superuser.set_access(name, Access(owner="bmq", group="hadoop", mode=0o755))
    if has_acl:
        rights = ("user::rwx", "user:alice:r-x", "group::r-x", "mask::r-x", "other::---")
        entries = [*rights, *(f"default:{entry}" for entry in rights)]
        acls_of(guarded, f"SETACL&aclspec={','.join(entries)}", name, "PUT")
    write_conf(tmp_path / "conf", {**guarded.client_settings, "fs.permissions.umask-mode": "u=rwx,go="})
    environment = {**os.environ, "HADOOP_USER_NAME": "bmq", "HADOOP_CONF_DIR": str(tmp_path / "conf")}
    environment["BMQ_LOG_CLEANER_BACKOFF_MS"] = "200"
    with BmqServer(place, folder=tmp_path / "server", environment=environment) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {"segment.bytes": str(1 << 20), "max.compaction.lag.ms": "1000", "min.cleanable.dirty.ratio": "0.0"}
        compacted = {**config, "cleanup.policy": "compact", "segment.ms": "1000"}
        for topic, configs in (("orders", config), ("states", compacted)):
            admin.create_topics([NewTopic(topic, 2, config=configs)])[topic].result(30)
            produce(server, topic, 20, key=b"k")
        own = await as_user(guarded, place, "bmq")
        await until(
            lambda found: any(is_cleaned(path) for path in found),
            own, "/topics/states",
        )  # fmt: skip
        found = {**await tree(own, "/topics"), **await tree(own, "/journals")}
        assert {path.rpartition(".")[2] for path, entry in found.items() if not entry.is_dir} >= {"log", "idx", "json"}
        alice, eve = await as_user(guarded, place, "alice"), await as_user(guarded, place, "eve")
        if has_acl:
            for path, entry in found.items():
                assert entry.mode == (0o750 if entry.is_dir else 0o640), path
                acl = acls_of(guarded, "GETACLSTATUS", name + path)["AclStatus"]["entries"]
                assert "user:alice:r-x" in acl, path
            for topic in ("orders", "states"):
                assert await offsets(alice, topic) > 0
        else:
            assert {path for path, entry in found.items() if not entry.is_dir and entry.mode & 0o077} == set()
            with pytest.raises(NotAllowed):
                await offsets(alice, "orders")
        with pytest.raises(NotAllowed):
            await offsets(eve, "orders")
        if has_acl:  # chmod sets an ACL's mask: a mode without the group's bits closes the topic to its users, too
            alter(admin, "orders", mode="700")
            await until(lambda found: all(not each.mode & 0o077 for each in found.values()), own, "/topics/orders")
            with pytest.raises(NotReadable, match="topic orders"):
                await offsets(alice, "orders")
            assert await offsets(alice, "states") > 0
        for fs in (own, alice, eve, superuser):
            await fs.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to any group")
def test_every_file_of_a_local_root_has_its_topics_rights_from_its_creation_on(tmp_path: Path) -> None:
    root, readers = tmp_path / "root", 64_321
    environment = {"BMQ_STORAGE_SHARED_MODE": "711", "BMQ_LOG_STORAGE_MODE": "750"}
    with BmqServer(root.as_uri(), folder=tmp_path / "server", environment=environment) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        config = {"storage.group": str(readers)}
        admin.create_topics([NewTopic("orders", 2, config=config)])["orders"].result(30)
        produce(server, "orders", 20)
    files = [path for path in (root / "topics" / "orders").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".log", ".idx", ".json"}
    for path in (root / "topics" / "orders").rglob("*"):
        found = path.stat()
        assert found.st_gid == readers, path
        assert stat.S_IMODE(found.st_mode) == (0o2750 if path.is_dir() else 0o440), path
    for path in (root, root / "topics"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o711
    assert stat.S_IMODE((root / "journals").stat().st_mode) == 0o755
    journals = list((root / "journals").iterdir())
    assert journals
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in journals)

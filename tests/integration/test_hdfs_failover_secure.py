"""A secure HA pair that fails over by itself: the active NameNode is killed, or stopped, in the middle of everything.

The pair has ZooKeeper and failover controllers (ZKFC), Kerberos, block tokens of a minute, and an observer beside it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CannotLogIn, CreateOptions, read_parts, write_once
from bmq.storage.hdfs import HdfsFileSystem
from bmq.storage.hdfs.delegation_token import StorageToken
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.open import cancel_storage_token, fetch_storage_token, open_filesystem, renew_storage_token
from tests.integration.driver import DriverProcess
from tests.integration.history import report
from tests.integration.test_hdfs_secure_files import PATIENT as PATIENT_WITH_DATANODES
from tests.integration.test_hdfs_secure_files import TOKEN_LIFE_S
from tests.integration.test_hdfs_tokens import EXECUTOR
from tests.integration.test_log_faults import PARTITIONS, STEADY_ACKS, load_on
from tests.integration.test_log_takeover import take_over_again_and_again
from tests.integration.test_spark_kerberos import Driver, Secure, without_log_in
from tests.services.hdfs import HdfsCluster
from tests.services.kdc import REALM
from tests.unit.spark.storing import series

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

pytestmark = pytest.mark.loops("uvloop", limit_s=240)

PATIENT = replace(PATIENT_WITH_DATANODES, call_deadline_s=120.0, complete_timeout_s=120.0)
"""Settings by which each call waits for a failover; servers have 15 s, and wait above the storage."""
LARGE = os.urandom(3 << 20)
WORKERS = 6
ROUNDS_AFTER = 3
_names = itertools.count()

BreakNameNode = Callable[[HdfsCluster], int]
"""A function that breaks the active NameNode, and returns its index."""


def kill(hdfs: HdfsCluster) -> int:
    """Kill the active NameNode: its connections are reset."""
    return hdfs.kill_namenode()


def stop(hdfs: HdfsCluster) -> int:
    """Stop the active NameNode: its connections stay open and silent."""
    active = hdfs.active_index()
    hdfs.namenodes[active].pause()
    return active


@pytest.fixture
def ha(secure_ha_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[HdfsCluster]:
    """Yield the cluster, to be broken; this process knows its realm and configuration, and has no ticket."""
    assert secure_ha_hdfs.security is not None
    kdc = secure_ha_hdfs.security.kdc
    monkeypatch.setenv("KRB5_CONFIG", kdc.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.folder}/none")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_ha_hdfs.conf_folder))
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)
    yield secure_ha_hdfs
    secure_ha_hdfs.heal()


@pytest.fixture
def login(ha: HdfsCluster) -> HdfsLogin:
    """Return the log-in of the user bmq by keytab."""
    assert ha.security is not None
    kdc, user = ha.security.kdc, f"bmq@{REALM}"
    return HdfsLogin(str(kdc.keytab(user) if kdc.keytab(user).exists() else kdc.add_service(user)))


@pytest.fixture
def tickets(ha: HdfsCluster, login: HdfsLogin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process and its children a ticket of the user bmq."""
    assert ha.security is not None
    monkeypatch.setenv("KRB5CCNAME", ha.security.kdc.ticket(f"bmq@{REALM}"))


@pytest.fixture
def recoveries(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths for which this process calls ``recoverLease``."""
    paths: list[str] = []
    recover = NameNode.recover_lease

    async def note(self: NameNode, path: str, holder: str) -> bool:
        paths.append(path)
        return await recover(self, path, holder)

    monkeypatch.setattr(NameNode, "recover_lease", note)
    return paths


def new_root(ha: HdfsCluster) -> str:
    return f"{ha.root}/failover-{next(_names)}"


@asynccontextmanager
async def clients(
    root: str, login: HdfsLogin, count: int, *, token: StorageToken | None = None
) -> AsyncIterator[list[HdfsFileSystem]]:
    """Yield clients of one folder, each with a holder of its own."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(count):
            fs = await HdfsFileSystem.open(
                root, holder=f"holder-{uuid.uuid4().hex}", login=login, settings=PATIENT, token=token
            )
            stack.push_async_callback(fs.close)
            opened.append(fs)
        yield opened


class Work:
    """Loops that create, flush, fence, roll and delete files without pause; a file's bytes are known by its name."""

    def __init__(self, writer: HdfsFileSystem, heir: HdfsFileSystem) -> None:
        self.writer = writer
        self.heir = heir
        self.rounds = [0] * WORKERS
        self.kept: dict[str, bytes] = {}
        self.deleted: list[str] = []
        self.is_ending = False

    async def run(self, worker: int) -> None:
        """Make rounds until ``is_ending``.  A result that a repeated call would spoil is checked at once."""
        for number in itertools.count():
            if self.is_ending:
                return
            name, data = f"/{worker}-{number}", f"{worker} {number} ".encode() * 100
            await self.writer.make_folder("/gone" + name)
            assert await self.writer.delete("/gone" + name, recursive=True), "deleted twice"
            appender = await self.writer.create(name, CreateOptions(replication=3))
            for _ in range(3):
                appender.write(data)
                await appender.flush()
            if number % 3 == 0:
                assert await self.heir.fence(appender.lease) == 3 * len(data)
                appender.abort()
            else:
                assert await appender.close() == 3 * len(data)
            if number % 3 == 1:
                again = await self.writer.append(name, CreateOptions())
                again.write(data)
                assert await again.close() == 4 * len(data)
            following = f"/next{name[1:]}"
            await self.writer.rename(name, following)
            self.kept[following] = data * (4 if number % 3 == 1 else 3)
            if number % 4 == 0:
                assert await self.writer.delete(following), "deleted twice"
                del self.kept[following]
                self.deleted.append(following)
            self.rounds[worker] += 1

    async def until_rounds(self, more: int) -> None:
        """Wait until each worker has made so many rounds more."""
        wanted = [done + more for done in self.rounds]
        while any(done < want for done, want in zip(self.rounds, wanted, strict=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)

    async def check(self) -> None:
        """Check that the folder has exactly the files that were kept, with their bytes."""
        found = {status.path async for status in self.heir.list("/") if not status.is_dir}
        assert found == set(self.kept)
        for path, data in self.kept.items():
            assert await self.heir.read(path, 0, 1 << 20) == data


@pytest.mark.parametrize("break_it", [kill, stop])
async def test_files_are_created_flushed_fenced_renamed_and_deleted_through_a_failover(
    ha: HdfsCluster,
    login: HdfsLogin,
    break_it: BreakNameNode,
    recoveries: list[str],
    request: pytest.FixtureRequest,
) -> None:
    """No call fails; none is done twice; each file has all that was flushed."""
    async with clients(new_root(ha), login, 2) as (writer, heir):
        work = Work(writer, heir)
        workers = [asyncio.create_task(work.run(number)) for number in range(WORKERS)]
        try:
            async with asyncio.timeout(100):
                await work.until_rounds(2)
                began = time.monotonic()
                former = await asyncio.to_thread(break_it, ha)
                await asyncio.to_thread(ha.wait_failover, former)
                took_s = time.monotonic() - began
                await work.until_rounds(ROUNDS_AFTER)
                went_on_s = time.monotonic() - began
                work.is_ending = True
                await asyncio.gather(*workers)
                await work.check()
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        assert work.deleted
        assert recoveries == []
        report(request, f"another NameNode is active after {took_s:.1f} s, all work is done after {went_on_s:.1f} s")


async def test_a_stopped_namenode_that_wakes_up_spoils_nothing(ha: HdfsCluster, login: HdfsLogin) -> None:
    """The former NameNode takes itself for active until its next edit. The journal refuses the edit: then it ends."""
    async with clients(new_root(ha), login, 1) as (fs,):
        appender = await fs.create("/f", CreateOptions(replication=3))
        appender.write(LARGE)
        await appender.flush()
        former = await asyncio.to_thread(stop, ha)
        await asyncio.to_thread(ha.wait_failover, former)
        await write_once(fs, "/after", LARGE, CreateOptions())
        await asyncio.to_thread(ha.namenodes[former].resume)
        async with clients(new_root(ha), login, 1) as (other,):  # a client that may find the former one first
            await write_once(other, "/new", b"1")
            assert await other.read("/new", 0, 10) == b"1"
        assert await fs.fence(appender.lease) == len(LARGE)
        for path in ("/f", "/after"):
            assert b"".join(await read_parts(fs, path, 0, [1 << 20] * 3)) == LARGE


def test_a_healed_pair_can_fail_over_again(ha: HdfsCluster) -> None:
    """The former NameNode wakes up, and ends a moment later: ``heal`` returns when the pair has a standby again."""
    former = stop(ha)
    ha.wait_failover(former)
    ha.namenodes[former].resume()
    ha.heal()
    assert {ha.namenode_state(0), ha.namenode_state(1)} == {"active", "standby"}


@pytest.mark.parametrize("break_it", [kill, stop])
def test_a_log_is_written_and_rolls_through_a_failover(
    ha: HdfsCluster,
    tickets: None,
    break_it: BreakNameNode,
    recoveries: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Open segments go on, new segments wait.  Afterwards another broker takes all partitions over, and reads all."""

    async def test() -> None:
        async with load_on(ha, new_root(ha), tmp_path, log={"segment_bytes": 300_000}) as load:
            began = time.monotonic()
            former = await asyncio.to_thread(break_it, ha)
            await asyncio.to_thread(ha.wait_failover, former)
            took_s, events = time.monotonic() - began, len(load.seen.events)
            await load.driver.until(
                lambda _: len(load.segments(events)) >= 2 * PARTITIONS, "new segments", timeout_s=90
            )
            await load.until_all_flow(STEADY_ACKS // PARTITIONS)
            report(request, f"failover {took_s:.1f} s, longest pause {load.pause_ms(began):.0f} ms")

    uvloop.run(test())
    assert recoveries == []


@pytest.mark.parametrize("break_it", [kill, stop])
def test_a_log_is_taken_over_while_the_namenode_fails_over(
    ha: HdfsCluster,
    tickets: None,
    break_it: BreakNameNode,
    recoveries: list[str],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """The NameNode breaks in the moment in which a partition is taken from a process that writes."""

    async def at_once(hdfs: HdfsCluster, zombie: DriverProcess, nodes: list[int]) -> None:
        await asyncio.to_thread(break_it, hdfs)

    report(request, str(take_over_again_and_again(ha, new_root(ha), tmp_path, at_once, 1)))
    assert recoveries == []


async def test_block_tokens_end_while_a_file_stays_open_through_a_failover(ha: HdfsCluster, login: HdfsLogin) -> None:
    """The former NameNode gave the tokens.  Readers that keep them get others from the one that is active now."""
    async with clients(new_root(ha), login, 3) as (writer, reader, heir):
        appender = await writer.create("/f", CreateOptions(replication=3, block_bytes=64 << 20))
        appender.write(LARGE)
        await appender.flush()
        assert await reader.read("/f", 0, len(LARGE)) == LARGE
        began = time.monotonic()
        await asyncio.to_thread(ha.wait_failover, await asyncio.to_thread(kill, ha))
        length = len(LARGE)
        while time.monotonic() - began < TOKEN_LIFE_S + 5:
            appender.write(b"more")
            length = await appender.flush()
            assert await reader.visible_length("/f") == length
            assert await reader.read("/f", 0, len(LARGE)) == LARGE
            assert reader._client.suspected() == set()
            await asyncio.sleep(2)  # a token's life passes on the NameNode's clock alone
        assert await heir.fence(appender.lease) == length
        assert heir._client.suspected() == set()
        assert await reader.read("/f", length - 4, 10) == b"more"


async def test_a_delegation_token_is_known_to_both_namenodes(ha: HdfsCluster, login: HdfsLogin) -> None:
    """One NameNode gives it, the other takes it: for log-ins, a process with nothing else, a renewal and its end."""
    root = new_root(ha)
    async with clients(root, login, 1) as (fs,):
        await write_once(fs, "/f", b"twelve words")
    token = await fetch_storage_token(root, "bmq", hdfs_login=login)
    assert token is not None
    assert token.token.service == "ha-hdfs:bmq"
    assert token.namenodes == ",".join(f"{host}:{port}" for host, port in ha.namenode_addresses)
    async with clients(root, login, 1, token=token) as (by_token,):
        await write_once(by_token, "/before", b"1")
        await asyncio.to_thread(ha.wait_failover, await asyncio.to_thread(kill, ha))
        await write_once(by_token, "/after", b"1")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HADOOP", "KRB5", "BMQ_"))}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", EXECUTOR],
        input=pickle.dumps((root, token)),
        capture_output=True,
        check=False,
        timeout=100,
        env={**environment, "KRB5_CONFIG": os.devnull, "KRB5CCNAME": f"FILE:{os.devnull}/none"},
    )
    assert done.stdout.decode().splitlines()[1:] == ["twelve words", "bmq"], done.stderr.decode()
    assert await renew_storage_token(token, hdfs_login=login) > token.token.content.issued_ms
    await cancel_storage_token(token, hdfs_login=login)
    with pytest.raises(CannotLogIn, match="InvalidToken"):
        await open_filesystem(root, holder="late", token=token)


async def test_spark_reads_by_a_token_of_the_name_service_while_a_namenode_is_dead(
    ha: HdfsCluster, login: HdfsLogin, tmp_path: Path
) -> None:
    """Executors have neither a ticket nor Hadoop's files: the NameNodes come with the token."""
    assert ha.security is not None
    secure = Secure(ha, ha.security.kdc)
    name = f"spark-{uuid.uuid4().hex[:8]}"
    fs, store = await secure.store(name)
    await store.segment(series(0, 500))
    await fs.close()
    await asyncio.to_thread(ha.wait_failover, await asyncio.to_thread(kill, ha))
    environment = secure.environment(BMQ_HADOOP_CONF_DIR=str(ha.conf_folder), BMQ_HDFS_KEYTAB=login.keytab)
    driver = await Driver.start("batch", f"{ha.root}/{name}", tmp_path, 500, environment)
    try:
        async with asyncio.timeout(100):
            assert await driver.until("offsets") == list(range(500))
            await driver.end()
    finally:
        await driver.kill()
    assert without_log_in(driver.facts["environment"])


async def test_an_observer_first_in_the_list_is_left_alone(ha: HdfsCluster, login: HdfsLogin) -> None:
    """Reads without a state id are refused there, and a token that is new is not known there yet."""
    assert [ha.namenode_state(index) for index in range(3)].count("observer") == 1
    names = [f"{host}:{port}" for host, port in reversed(ha.namenode_addresses)]
    root = f"hdfs://{','.join(names)}/failover-{next(_names)}"
    for number in range(10):
        async with clients(root, login, 2) as (writer, reader):
            await write_once(writer, f"/{number}", b"1")
            assert await reader.read(f"/{number}", 0, 10) == b"1", "a stale read"
        token = await fetch_storage_token(root, hdfs_login=login)
        assert token is not None
        async with clients(root, login, 1, token=token) as (by_token,):
            assert await by_token.delete(f"/{number}")

"""Reads of erasure-coded files: through hdfs-native, or an error that names the file and the way on."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import StorageUnavailable, Unsupported
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.erasure_coded import THREADS, THREADS_MAX, ErasureCodedReader, client_config
from bmq.storage.hdfs.security import HdfsSecurity
from tests.harness.waiting import until

pytestmark = pytest.mark.loops("asyncio")
ADDRESS = HdfsAddress.parse("hdfs://nn1:8020,[::1]:8021/bmq?dfs.client.use.datanode.hostname=true")
DATA = b"0123456789"


class Reader:
    """A file of the library, of ten bytes; a read beyond its end is an error there."""

    def __len__(self) -> int:
        return len(DATA)

    def read_range(self, offset: int, length: int) -> bytes:
        assert length > 0
        assert offset + length <= len(DATA)
        return DATA[offset : offset + length]


class Library:
    """Stand-in for hdfs-native: its clients, and what reads by them do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.failure: Exception | None = None
        self.blocks: threading.Event | None = None
        self.connect_blocks: threading.Event | None = None
        self.reading = 0
        self.read_by: list[int] = []
        """The number of the client, from 1, of each read."""
        self.clients: weakref.WeakValueDictionary[int, Client] = weakref.WeakValueDictionary()
        """The clients that something still refers to, by number: the library has no other end for a client."""
        monkeypatch.setitem(sys.modules, "hdfs_native", SimpleNamespace(Client=self.connect))

    def connect(self, url: str, config: dict[str, str], **login: Any) -> Client:
        self.made.append((url, config, login))
        client = Client(self, len(self.made))
        self.clients[client.number] = client
        if self.connect_blocks is not None:
            self.connect_blocks.wait(60)
        return client


class Client:
    """A client of the library."""

    def __init__(self, library: Library, number: int) -> None:
        self._library = library
        self.number = number

    def read(self, path: str) -> Reader:
        library = self._library
        if library.failure is not None:
            raise library.failure
        library.read_by.append(self.number)
        if library.blocks is not None:
            library.reading += 1
            library.blocks.wait(60)
        return Reader()


def reader(
    security: HdfsSecurity | None = None, login: HdfsLogin | None = None, timeout_s: float = 30.0
) -> ErasureCodedReader:
    return ErasureCodedReader(ADDRESS, security or HdfsSecurity(), login or HdfsLogin(), timeout_s)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(monkeypatch)


@pytest.mark.parametrize(
    ("position", "length", "expected"), [(0, 4, b"0123"), (8, 4, b"89"), (10, 1, b""), (12, 1, b""), (3, 0, b"")]
)
async def test_a_range_ends_at_the_end_of_the_file(
    library: Library, position: int, length: int, expected: bytes
) -> None:
    assert await reader().read("/bmq/f", "XOR-2-1-1024k", position, length) == expected


async def test_one_client_is_made_with_the_namenodes_of_the_root(library: Library) -> None:
    coded = reader()
    for _ in range(2):
        await coded.read("/bmq/f", "XOR-2-1-1024k", 0, 1)
    ((url, config, login),) = library.made
    assert url == "hdfs://bmq"
    assert config == {
        "dfs.nameservices": "bmq",
        "dfs.ha.namenodes.bmq": "nn0,nn1",
        "dfs.namenode.rpc-address.bmq.nn0": "nn1:8020",
        "dfs.namenode.rpc-address.bmq.nn1": "[::1]:8021",
        "dfs.client.use.datanode.hostname": "true",
    }
    assert login == {}


async def test_the_log_in_is_by_this_process_s_keytab_and_principal(library: Library) -> None:
    security = HdfsSecurity(is_kerberos=True, namenode_principal="nn/_HOST@R", transfer_levels=("auth-conf", "auth"))
    await reader(security, HdfsLogin("/k", "bmq@R")).read("/bmq/f", "p", 0, 1)
    await reader(security).read("/bmq/f", "p", 0, 1)
    assert [made[2] for made in library.made] == [
        {"kerberos_principal": "bmq@R", "kerberos_keytab": "/k"},
        {"kerberos_principal": None, "kerberos_keytab": None},
    ]
    config = client_config(ADDRESS, security)
    assert config["hadoop.security.authentication"] == "kerberos"
    assert config["dfs.data.transfer.protection"] == "privacy,authentication"


async def test_without_the_library_the_error_names_file_policy_and_the_ways_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(
        Unsupported, match=r"^/bmq/f is erasure-coded by RS-6-3-1024k, and hdfs-native is not installed"
    ) as caught:
        await reader().read("/bmq/f", "RS-6-3-1024k", 0, 1)
    assert "pip install 'hdfs-native>=0.14'" in str(caught.value)
    assert "hdfs ec -setPolicy -replicate" in str(caught.value)


async def test_a_failure_of_the_library_is_storage_that_is_away(library: Library) -> None:
    library.failure = RuntimeError("not enough cells")
    with pytest.raises(StorageUnavailable, match="read /bmq/f, erasure-coded by p, through hdfs-native: not enough"):
        await reader().read("/bmq/f", "p", 0, 1)


async def test_a_library_that_never_responds_is_left(library: Library) -> None:
    library.blocks = threading.Event()
    coded = reader(timeout_s=0.01)
    try:
        with pytest.raises(StorageUnavailable, match=r"no response within 0\.01 s"):
            await coded.read("/bmq/f", "p", 0, 1)
    finally:
        library.blocks.set()
        coded.close()


async def test_a_time_out_of_the_library_is_an_error_of_the_library(library: Library) -> None:
    library.failure = TimeoutError()
    with pytest.raises(StorageUnavailable, match=r"through hdfs-native: TimeoutError$"):
        await reader().read("/bmq/f", "p", 0, 1)


async def test_reads_that_never_end_leave_room_for_others(library: Library) -> None:
    """A datanode that stands still holds its reads for good, or for a while."""
    hung = library.blocks = threading.Event()
    coded = reader(timeout_s=0.01)
    try:
        for _ in range(2):  # the threads of the first time have ended, and count no more
            for _ in range(THREADS_MAX - 1):
                with pytest.raises(StorageUnavailable, match="no response within"):
                    await coded.read("/bmq/f", "p", 0, 1)
            await until(lambda: coded._threads.overdue == THREADS_MAX - 1)
            hung.set()
            await until(lambda: coded._threads.overdue == 0)
            hung = library.blocks = threading.Event()
        library.blocks = None
        coded._timeout_s = 30.0
        assert await coded.read("/bmq/f", "p", 1, 1) == b"1"
    finally:
        hung.set()
        coded.close()


async def test_hung_reads_whose_callers_have_left_fail_no_later_read(library: Library) -> None:
    """Cancel the callers before the time-out, as a fetch's deadline does, or the end of a client."""
    hung = library.blocks = threading.Event()
    coded = reader(timeout_s=0.5)
    try:
        left = [asyncio.create_task(coded.read("/bmq/f", "p", 0, 1)) for _ in range(THREADS)]
        await until(lambda: library.reading == THREADS)
        for task in left:
            task.cancel()
        await asyncio.wait(left)
        library.blocks = None
        coded._timeout_s = 30.0
        assert await asyncio.gather(*(coded.read("/bmq/f", "p", 1, 1) for _ in range(40))) == [b"1"] * 40
        assert len(library.made) > 1, "a hung connection is not used again"
    finally:
        hung.set()
        coded.close()


async def test_a_client_that_is_made_too_late_replaces_no_newer_client(library: Library) -> None:
    """Hold the first client's making until a second client has served a read."""
    held = library.connect_blocks = threading.Event()
    coded = reader(timeout_s=0.05)
    try:
        with pytest.raises(StorageUnavailable, match="no response within"):
            await coded.read("/bmq/f", "p", 0, 1)
        await until(lambda: coded._threads.overdue == 1)
        library.connect_blocks = None
        coded._timeout_s = 30.0
        assert await coded.read("/bmq/f", "p", 0, 1) == b"0"
        held.set()
        await until(lambda: coded._threads.overdue == 0)
        assert await coded.read("/bmq/f", "p", 1, 1) == b"1"
        assert library.read_by == [2, 1, 2]
        assert len(library.made) == 2
        await until(lambda: list(library.clients) == [2])
    finally:
        held.set()
        coded.close()


async def test_a_closed_reader_has_no_client(library: Library) -> None:
    coded = reader()
    await coded.read("/bmq/f", "p", 0, 1)
    assert list(library.clients) == [1]
    coded.close()
    assert list(library.clients) == []


async def test_a_read_of_a_closed_reader_is_storage_that_is_away(library: Library) -> None:
    coded = reader()
    coded.close()
    with pytest.raises(StorageUnavailable, match="read /bmq/f, erasure-coded by p: hdfs-coded is closed"):
        await coded.read("/bmq/f", "p", 0, 1)


async def test_a_reader_that_is_cancelled_is_cancelled(library: Library) -> None:
    library.blocks = threading.Event()
    coded = reader()
    task = asyncio.create_task(coded.read("/bmq/f", "p", 0, 1))
    try:
        await until(lambda: library.reading == 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    finally:
        library.blocks.set()
        coded.close()


async def test_reads_block_no_other_read_and_not_the_loop(library: Library) -> None:
    library.blocks = threading.Event()
    coded = reader()
    reads = [asyncio.create_task(coded.read("/bmq/f", "p", number, 1)) for number in range(THREADS + 2)]
    try:
        await until(lambda: library.reading == THREADS)  # the loop runs, and one client serves all
        library.blocks.set()
        assert await asyncio.gather(*reads) == [b"%d" % number for number in range(THREADS + 2)]
        assert len(library.made) == 1
    finally:
        library.blocks.set()
        coded.close()


async def test_with_a_token_alone_the_error_says_so_and_the_library_is_not_asked(library: Library) -> None:
    """Read on an executor of Spark: a retriable error about tickets would be repeated without end."""
    coded = ErasureCodedReader(ADDRESS, HdfsSecurity(is_kerberos=True), HdfsLogin(), 30.0, has_token_alone=True)
    with pytest.raises(Unsupported, match=r"^/bmq/f is erasure-coded by p, and this reader has a delegation token"):
        await coded.read("/bmq/f", "p", 0, 1)
    assert library.made == []

"""The test HDFS itself: what other integration tests rely on when they break it."""

import time
from collections.abc import Callable
from urllib.parse import urlsplit

import hdfs_native
import psutil
import pytest
from hdfs import InsecureClient

from tests.services.hdfs import HdfsCluster

DATA = bytes(range(256)) * 4096


def write(client: hdfs_native.Client, path: str, data: bytes = DATA) -> None:
    with client.create(path) as file:
        file.write(data)


def read(client: hdfs_native.Client, path: str) -> bytes:
    with client.read(path) as file:
        return bytes(file.read())


@pytest.mark.smoke
def test_write_read_and_lose_a_datanode(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """A file is written and read; a datanode dies and comes back."""
    client = hdfs_native.Client(hdfs.root)
    folder = urlsplit(hdfs_root).path
    write(client, f"{folder}/before")
    assert read(client, f"{folder}/before") == DATA
    hdfs.wait_replicated(f"{folder}/before")
    assert [hdfs.datanode_of(datanode.uuid) for datanode in hdfs.datanodes] == [0, 1, 2, 3]

    pid = hdfs.datanodes[0].process.pid
    hdfs.kill_datanode(0)
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert read(client, f"{folder}/before") == DATA

    hdfs.restart_datanode(0)
    write(client, f"{folder}/after")
    assert read(client, f"{folder}/after") == DATA


def test_replica_paths_name_the_files_of_a_block(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """Tests that damage a replica find it by the number of its block, and know whose it is."""
    path = urlsplit(hdfs_root).path + "/file"
    write(hdfs_native.Client(hdfs.root), path)
    hdfs.wait_replicated(path)
    (block,) = hdfs.blocks(path)
    assert block.length == len(DATA)
    holders = sorted(hdfs.datanode_of(address) for address in block.xfer_addresses)
    replicas = hdfs.replica_paths(block.block_id)
    assert len(holders) == 3
    folders = [hdfs.datanodes[index].data_dir for index in holders]
    assert all(replica.is_relative_to(folder) for replica, folder in zip(replicas, folders, strict=True))
    assert all(replica.read_bytes() == DATA for replica in replicas)


def test_webhdfs_reads(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """The other protocol, for `webhdfs://` roots: the NameNode sends its client on to a datanode that it can reach."""
    path = urlsplit(hdfs_root).path + "/file"
    write(hdfs_native.Client(hdfs.root), path)
    with InsecureClient(hdfs.webhdfs_root.replace("webhdfs", "http")).read(path) as file:
        assert file.read() == DATA


def test_faults_of_datanodes_end_with_heal(hdfs: HdfsCluster) -> None:
    """Stopped, slow and killed at once; `heal`, which every test gets, undoes it all."""
    hdfs.stop_datanode(0)
    hdfs.slow_datanode(1, stopped=0.5, period_s=0.1)
    hdfs.kill_datanode(2)
    assert psutil.Process(hdfs.datanodes[0].process.pid).status() == psutil.STATUS_STOPPED
    states: set[bool] = set()
    deadline = time.monotonic() + 20
    while len(states) < 2 and time.monotonic() < deadline:
        states.add(psutil.Process(hdfs.datanodes[1].process.pid).status() == psutil.STATUS_STOPPED)
        time.sleep(0.01)
    assert states == {True, False}

    hdfs.heal()
    assert all(process.is_running and not process.is_paused and not process.is_slow for process in hdfs.processes)
    assert all(psutil.Process(process.pid).status() != psutil.STATUS_STOPPED for process in hdfs.processes)


def test_namenode_restart_keeps_files(hdfs: HdfsCluster, hdfs_root: str) -> None:
    """A killed NameNode comes back with its files, out of safe mode and with datanodes to write to."""
    client = hdfs_native.Client(hdfs.root)
    folder = urlsplit(hdfs_root).path
    write(client, f"{folder}/before")
    hdfs.kill_namenode()
    hdfs.restart_namenode()
    client = hdfs_native.Client(hdfs.root)
    assert read(client, f"{folder}/before") == DATA
    write(client, f"{folder}/after")


def hdfs_states(hdfs: HdfsCluster) -> list[str | None]:
    return [hdfs.namenode_state(index) for index in range(len(hdfs.namenodes))]


def test_failover(hdfs_ha: Callable[..., HdfsCluster]) -> None:
    """The standby takes over from a dead NameNode, and back from a living one, with all files."""
    hdfs = hdfs_ha(datanodes=3)
    client = hdfs_native.Client(hdfs.root, hdfs.client_settings)
    write(client, "/before")
    assert hdfs.kill_namenode() == 0
    assert hdfs.failover() == 1
    assert read(client, "/before") == DATA
    write(client, "/between")

    hdfs.heal()
    assert hdfs.active_index() == 1
    assert hdfs.failover() == 0
    assert read(client, "/between") == DATA
    write(client, "/after")

    hdfs.namenodes[0].pause()
    assert hdfs.failover() == 1
    hdfs.heal()  # the paused one wakes up and still believes that it is active
    assert hdfs.active_index() == 1
    assert hdfs_states(hdfs) == ["standby", "active"]

"""``HdfsFileSystem.copies``: what HDFS holds of a file on datanodes that answer, while these die and come back."""

from __future__ import annotations

import asyncio

import uvloop

from bmq.storage.filesystem import CreateOptions, FileSystem
from bmq.storage.open import open_filesystem
from tests.integration.conftest import HdfsFactory

DATA = b"0123456789" * 1000
TIMEOUT_S = 90.0


async def until_copies(fs: FileSystem, path: str, copies: int) -> list[int]:
    """Count until there are so many; return the counts before."""
    before: list[int] = []
    async with asyncio.timeout(TIMEOUT_S):
        while (count := await fs.copies(path)) != copies:
            before.append(count)
            await asyncio.sleep(0.2)
    return before


def test_rule_1_copies_on_dead_silent_and_outdated_datanodes_do_not_count(hdfs_new: HdfsFactory) -> None:
    """The NameNode lists a dead datanode for minutes.  A takeover leaves replicas of an earlier generation on the dead
    node and on the silent one: the NameNode has both replaced when they are back."""
    hdfs = hdfs_new(datanodes=3, properties={"dfs.namenode.reconstruction.pending.timeout-sec": "2"})

    async def test() -> None:
        writer = await open_filesystem(hdfs.root, holder="writer")
        heir = await open_filesystem(hdfs.root, holder="heir")
        try:
            appender = await writer.create("/f", CreateOptions(block_bytes=1 << 20))
            appender.write(DATA)
            await appender.flush()
            assert await heir.copies("/f") == 3, "the block is open, and all of its pipeline hold it"
            killed, stopped = (hdfs.datanode_of(node) for node in appender.nodes[:2])
            hdfs.kill_datanode(killed)
            assert await heir.copies("/f") == 2
            hdfs.stop_datanode(stopped)
            assert await heir.copies("/f") == 1
            appender.abort()

            assert await heir.fence(appender.lease) == len(DATA)
            assert await heir.copies("/f") == 1
            hdfs.resume_datanode(stopped)
            await asyncio.to_thread(hdfs.restart_datanode, killed)
            assert set(await until_copies(heir, "/f", 3)) <= {1, 2}
            assert await heir.read("/f", 0, len(DATA)) == DATA
        finally:
            await writer.close()
            await heir.close()

    uvloop.run(test())

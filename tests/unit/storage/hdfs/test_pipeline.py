"""A pipeline that is being opened to a datanode that does not respond."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.pipeline import Pipeline, SetupTimedOut
from bmq.storage.hdfs.pipeline_timer import PipelineClock
from bmq.storage.hdfs.settings import HdfsSettings

pytestmark = pytest.mark.loops("asyncio")


async def test_a_datanode_that_accepts_and_does_not_respond_times_the_setup_out() -> None:
    gone = asyncio.Event()

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        gone.set()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    settings = HdfsSettings()
    pipeline = Pipeline(
        members=[pb.NodeId(ip=host, host="dn", uuid="1", data_port=port, info_port=1, ipc_port=1)],
        block=pb.Block(),
        base=0,
        length=0,
        chunk_bytes=512,
        settings=settings,
        watch=PipelineClock(settings, lambda _: None),
    )
    with pytest.raises(SetupTimedOut):
        await pipeline.open(host, port, b"request", 0.05)
    await gone.wait()
    server.close()
    await server.wait_closed()

"""Why no pipeline opens: datanodes without room, slow ones, and silent ones are told apart."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.storage.filesystem import OutOfSpace, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs import opening
from bmq.storage.hdfs.clock import PipelineClock
from bmq.storage.hdfs.pipeline import Pipeline, SetupTimedOut
from bmq.storage.hdfs.settings import HdfsSettings


@pytest.mark.parametrize(
    ("failure", "silent", "error"),
    [
        (PipelineFailed("connection lost", ["a"]), [], OutOfSpace),  # how a datanode without room says so
        (PipelineFailed("connection lost", ["a"]), ["a"], StorageUnavailable),
        (SetupTimedOut("no answer in 5 s", ["a"]), [], StorageUnavailable),  # alive and slow: no want of room
        (SetupTimedOut("no answer in 5 s", ["a"]), ["a"], StorageUnavailable),
    ],
)
def test_why_no_pipeline_opens(
    failure: PipelineFailed, silent: list[str], error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def located(*_: Any) -> pb.LocatedBlock:
        return pb.LocatedBlock()

    async def fails(*_: Any, **__: Any) -> Pipeline:
        raise failure

    async def nothing(*_: Any) -> None: ...

    async def asked(*_: Any) -> list[str]:
        return silent

    monkeypatch.setattr(opening, "_add_block", located)
    monkeypatch.setattr(opening, "_abandon", nothing)
    monkeypatch.setattr(opening, "_create_setup", lambda *_: None)
    monkeypatch.setattr(opening, "open_pipeline", fails)
    client: Any = SimpleNamespace(
        settings=HdfsSettings(), suspected=set, suspect=lambda _: None, datanodes=SimpleNamespace(silent=asked)
    )
    file: Any = SimpleNamespace(path="/f", chunk_bytes=512, all_copies=False)
    with pytest.raises(error) as caught:
        asyncio.run(opening.open_new_block(client, file, base=0, advised=set()))
    assert type(caught.value) is error


def test_a_datanode_that_takes_the_connection_and_says_nothing_is_slow() -> None:
    async def main() -> None:
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

    asyncio.run(main())

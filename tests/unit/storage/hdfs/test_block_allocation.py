"""The reasons why no pipeline opens: datanodes without room, slow ones, and silent ones are told apart."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.storage.filesystem import OutOfSpace, PipelineFailed, StorageError, StorageUnavailable
from bmq.storage.hdfs import block_allocation, pipeline_setup
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import STATUS_SUCCESS
from bmq.storage.hdfs.datanode import Datanodes, NodeUnreachable, SuspectNodes, node_name
from bmq.storage.hdfs.pipeline import Pipeline, SetupTimedOut
from bmq.storage.hdfs.pipeline_timer import PipelineClock
from bmq.storage.hdfs.settings import HdfsSettings
from tests.harness.loop import run

pytestmark = pytest.mark.loops("asyncio")

SETTINGS = HdfsSettings()


@pytest.mark.parametrize(
    ("failure", "silent", "error"),
    [
        (PipelineFailed("connection lost", ["a"]), [], OutOfSpace),  # how a datanode without room says so
        (PipelineFailed("connection lost", ["a"]), ["a"], StorageUnavailable),
        (SetupTimedOut("no answer in 5 s", ["a"]), [], StorageUnavailable),  # alive and slow: no want of room
        (SetupTimedOut("no answer in 5 s", ["a"]), ["a"], StorageUnavailable),
    ],
)
async def test_why_no_pipeline_opens(
    failure: PipelineFailed, silent: list[str], error: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def located(*_: Any) -> pb.LocatedBlock:
        return pb.LocatedBlock()

    async def fails(*_: Any, **__: Any) -> Pipeline:
        raise failure

    async def nothing(*_: Any) -> None: ...

    async def asked(*_: Any) -> list[str]:
        return silent

    monkeypatch.setattr(block_allocation, "_add_block", located)
    monkeypatch.setattr(block_allocation, "_abandon", nothing)
    monkeypatch.setattr(block_allocation, "_create_setup", lambda *_: None)
    monkeypatch.setattr(block_allocation, "open_pipeline", fails)
    client: Any = SimpleNamespace(
        settings=HdfsSettings(), suspected=set, suspect=lambda _: None, datanodes=SimpleNamespace(silent=asked)
    )
    file: Any = SimpleNamespace(path="/f", chunk_bytes=512, all_copies=False)
    with pytest.raises(error) as caught:
        await block_allocation.open_new_block(client, file, base=0, advised=set())
    assert type(caught.value) is error


async def test_a_datanode_that_takes_the_connection_and_says_nothing_is_slow() -> None:
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


KNOWN = [
    pb.Node(id=pb.NodeId(ip="127.0.0.1", host="dn", uuid=str(port), data_port=port, info_port=1, ipc_port=1))
    for port in range(1, 6)
]


@pytest.mark.parametrize(
    ("known", "silent", "is_blamed"),
    [
        (5, [1], True),
        (3, [1], True),
        (2, [1], True),
        (5, [1, 2], True),
        (5, [1, 2, 3], False),  # rather the own network, or they have just been started
        (3, [1, 2], False),
        (1, [1], False),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_a_slow_setup_blames_silent_datanodes_unless_most_are(
    known: int, silent: list[int], is_blamed: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline of three that opens after a second, or fails while its datanodes are asked."""

    async def open_slowly(self: Pipeline, *_: object) -> pb.BlockOpResponse:
        await asyncio.sleep(SETTINGS.probe_timeout_s * (1.5 if fails else 2.5))
        if fails:
            raise SetupTimedOut("no answer")
        return pb.BlockOpResponse(status=STATUS_SUCCESS)

    async def ask(self: Datanodes, node: pb.NodeId, block: pb.Block, timeout_s: float) -> int:
        if node.data_port not in silent:
            return 0
        await asyncio.sleep(timeout_s)
        raise NodeUnreachable(node_name(node))

    async def main() -> Pipeline:
        suspects = SuspectNodes(SETTINGS.suspect_s)
        suspects.learn(KNOWN[:known])
        client: Any = HdfsClient.__new__(HdfsClient)  # connected to nothing
        client.settings, client.suspects = SETTINGS, suspects
        client.datanodes = Datanodes(SETTINGS, SimpleAuthenticator("tester"))
        client.clock = PipelineClock(SETTINGS, lambda _: None)
        members = [pipeline_setup.PipelineNode(node, 1, "") for node in KNOWN[: min(3, known)]]
        request = pipeline_setup.Setup(
            stage=pb.WriteBlock.SETUP_CREATE,
            block=pb.Block(pool="p", id=1, generation=1),
            token=pb.Token(identifier=b"", password=b"", kind="", service=""),
            client_name="me",
        )
        return await pipeline_setup.open_pipeline(client, request, members, base=0, length=0, chunk_bytes=512)

    monkeypatch.setattr(Pipeline, "open", open_slowly)
    monkeypatch.setattr(Datanodes, "visible_length", ask)
    if not is_blamed and not fails:
        run(main())
        return
    with pytest.raises(PipelineFailed) as caught:
        run(main())
    assert {int(name.rpartition(":")[2]) for name in caught.value.suspects} == set(silent) & {1, 2, 3}
    assert isinstance(caught.value, SetupTimedOut) is not is_blamed

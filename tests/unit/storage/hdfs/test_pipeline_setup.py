"""A pipeline's set-up that takes long: which datanodes are blamed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs import pipeline_setup
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.context import HdfsClient
from bmq.storage.hdfs.data_transfer import STATUS_SUCCESS
from bmq.storage.hdfs.datanode import Datanodes, NodeUnreachable, SuspectNodes, node_name
from bmq.storage.hdfs.handshake import OPEN_TRANSFER
from bmq.storage.hdfs.pipeline import Pipeline, SetupTimedOut
from bmq.storage.hdfs.pipeline_timer import PipelineClock
from bmq.storage.hdfs.settings import HdfsSettings
from tests.unit.storage.hdfs.fakes import unencrypted

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
async def test_a_slow_setup_blames_silent_datanodes_unless_most_are(
    known: int, silent: list[int], is_blamed: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline of three that opens after a second, or fails while its datanodes are asked."""

    async def open_slowly(self: Pipeline, *_: object) -> pb.BlockOpResponse:
        await asyncio.sleep(SETTINGS.probe_timeout_s * (1.5 if fails else 2.5))
        if fails:
            raise SetupTimedOut("no answer")
        return pb.BlockOpResponse(status=STATUS_SUCCESS)

    async def ask(self: Datanodes, node: pb.NodeId, block: pb.Block, token: pb.Token, timeout_s: float) -> int:
        if node.data_port not in silent:
            return 0
        await asyncio.sleep(timeout_s)
        raise NodeUnreachable(node_name(node))

    async def opened() -> Pipeline:
        return await open_pipeline(new_client(known), known)

    monkeypatch.setattr(Pipeline, "open", open_slowly)
    monkeypatch.setattr(Datanodes, "visible_length", ask)
    if not is_blamed and not fails:
        await opened()
        return
    with pytest.raises(PipelineFailed) as caught:
        await opened()
    assert {int(name.rpartition(":")[2]) for name in caught.value.suspects} == set(silent) & {1, 2, 3}
    assert isinstance(caught.value, SetupTimedOut) is not is_blamed


def new_client(known: int) -> HdfsClient:
    """Return a client that is connected to nothing, and has seen so many datanodes."""
    suspects = SuspectNodes(SETTINGS.suspect_s)
    suspects.learn(KNOWN[:known])
    client: Any = HdfsClient.__new__(HdfsClient)
    client.settings, client.suspects, client.transfer = SETTINGS, suspects, OPEN_TRANSFER
    client.encryption, client.cipher_threads = unencrypted(), None
    client.datanodes = Datanodes(SETTINGS, SimpleAuthenticator("tester"))
    client.clock = PipelineClock(SETTINGS, lambda _: None)
    assert isinstance(client, HdfsClient)
    return client


async def open_pipeline(client: HdfsClient, known: int) -> Pipeline:
    members = [pipeline_setup.PipelineNode(node, 1, "") for node in KNOWN[: min(3, known)]]
    request = pipeline_setup.Setup(
        stage=pb.WriteBlock.SETUP_CREATE,
        block=pb.Block(pool="p", id=1, generation=1),
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
        client_name="me",
    )
    return await pipeline_setup.open_pipeline(client, request, members, base=0, length=0, chunk_bytes=512)


@pytest.mark.parametrize("turns", range(6))
async def test_an_opening_that_is_cancelled_when_its_pipeline_has_opened_leaves_none(
    turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancel in each turn of the loop from the response on: heartbeats would keep the pipeline for ever."""

    answered = asyncio.Event()

    async def open_once_answered(self: Pipeline, *_: object) -> pb.BlockOpResponse:
        await answered.wait()
        self._watch.add(self)
        return pb.BlockOpResponse(status=STATUS_SUCCESS)

    monkeypatch.setattr(Pipeline, "open", open_once_answered)
    client = new_client(3)
    task = asyncio.create_task(open_pipeline(client, 3))
    await asyncio.sleep(0.1)
    answered.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert len(client.clock) == (0 if task.cancelled() else 1)
    client.clock.close()


SETTINGS = HdfsSettings()

"""NameNode calls against a small server that speaks Hadoop RPC: retries, failover, time-outs, what is refused."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from bmq.core.aio.backoff import Backoff
from bmq.storage.filesystem import NoSuchFile, OutOfSpace, StorageUnavailable, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.data_transfer import decode_varint, delimited
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.lease_renewer import LeaseRenewer
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.settings import HdfsSettings

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

SETTINGS = HdfsSettings(call_timeout_s=0.3, call_deadline_s=2.0, backoff_s=Backoff(0.01, 0.05))
STANDBY = "org.apache.hadoop.ipc.StandbyException"
SAFE_MODE = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"

Answer = Callable[["Call"], "bytes | str | None"]
"""The response's bytes, an exception class (": " and a text may follow), or None: no answer at all."""


@dataclass
class Call:
    method: str
    call_id: int
    retry_count: int
    client_id: bytes
    request: bytes


@dataclass
class FakeNameNode:
    """A NameNode that responds to every call with ``answer``, and keeps all of them."""

    answer: Answer
    calls: list[Call] = field(default_factory=list)
    heard: asyncio.Condition = field(default_factory=asyncio.Condition)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    user: str = ""
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            assert await reader.readexactly(7) == b"hrpc\x09\x00\x00"
            frame = await read_frame(reader)
            self.user = pb.ConnectionContext.FromString(frame[1]).user.effective_user
            while True:
                header, call, request = await read_frame(reader)
                rpc = pb.RpcRequestHeader.FromString(header)
                method = pb.CallHeader.FromString(call).method
                self.calls.append(Call(method, rpc.call_id, rpc.retry_count, rpc.client_id, request))
                self.respond(writer, rpc.call_id, self.answer(self.calls[-1]))
                async with self.heard:
                    self.heard.notify_all()

    async def wait_calls(self, count: int) -> None:
        async with self.heard:
            await self.heard.wait_for(lambda: len(self.calls) >= count)

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def respond(self, writer: asyncio.StreamWriter, call_id: int, answer: bytes | str | None) -> None:
        if answer is None:
            return
        response = pb.RpcResponseHeader(call_id=call_id, status=pb.RpcResponseHeader.SUCCESS)
        if isinstance(answer, str):
            status = pb.RpcResponseHeader.FATAL if "AccessControl" in answer else pb.RpcResponseHeader.ERROR
            exception_class, _, text = answer.partition(": ")
            response = pb.RpcResponseHeader(
                call_id=call_id,
                status=status,
                exception_class=exception_class,
                error_message=f"{text or 'no'}\n\tat x.y",
            )
        body = delimited(response)
        if isinstance(answer, bytes):
            body += bytes([len(answer)]) + answer
        frame = struct.pack(">I", len(body)) + body
        writer.write(frame[:3])  # in two pieces: frames end where they like
        writer.write(frame[3:])


async def read_frame(reader: asyncio.StreamReader) -> list[bytes]:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    frame = await reader.readexactly(length)
    parts = []
    position = 0
    while position < length:
        size, position = decode_varint(frame, position)
        parts.append(frame[position : position + size])
        position += size
    return parts


@contextlib.asynccontextmanager
async def namenode(*answers: Answer, dead: int = 0) -> AsyncIterator[tuple[NameNode, list[FakeNameNode]]]:
    """Yield a client and its fake NameNodes, one for each answer, after ``dead`` addresses where nothing listens."""
    fakes = [FakeNameNode(answer) for answer in answers]
    async with contextlib.AsyncExitStack() as stack:
        for fake in fakes:
            server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
            fake.port = server.sockets[0].getsockname()[1]
            stack.push_async_callback(fake.close)
            stack.callback(server.close)
        unused = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        dead_port = unused.sockets[0].getsockname()[1]
        unused.close()
        await unused.wait_closed()
        addresses = [("127.0.0.1", dead_port)] * dead + [("127.0.0.1", fake.port) for fake in fakes]
        client = NameNode(addresses, SETTINGS, SimpleAuthenticator("alice"))
        try:
            yield client, fakes
        finally:
            await client.close()


TRUE = pb.BoolResponse(result=True).SerializeToString()


async def test_calls_are_pipelined_and_named() -> None:
    async with namenode(lambda _call: TRUE) as (client, (fake,)):
        answers = await asyncio.gather(*(client.is_file_closed(f"/{n}") for n in range(50)))
        assert all(answers)
        assert fake.user == "alice"
        assert len({call.call_id for call in fake.calls}) == 50
        assert {call.method for call in fake.calls} == {"isFileClosed"}


async def test_retry_keeps_the_call_id_and_raises_the_count() -> None:
    """The NameNode's retry cache recognises a repetition by client id and call id."""

    async with namenode(lambda call: TRUE if call.retry_count == 2 else SAFE_MODE) as (client, (fake,)):
        assert await client.delete("/x", recursive=False)
        assert [call.retry_count for call in fake.calls] == [0, 1, 2]
        assert len({(call.client_id, call.call_id) for call in fake.calls}) == 1


async def test_lost_answer_is_asked_for_again() -> None:
    async with namenode(lambda call: TRUE if call.retry_count else None) as (client, (fake,)):
        assert await client.delete("/x", recursive=False)
        assert len({(call.client_id, call.call_id) for call in fake.calls}) == 1


async def test_failover_from_standby_and_from_the_dead() -> None:
    async with namenode(lambda _call: STANDBY, lambda _call: TRUE, dead=1) as (client, (standby, active)):
        assert await client.is_file_closed("/x")
        assert [len(standby.calls), len(active.calls)] == [1, 1]
        assert await client.is_file_closed("/y")
        assert [len(standby.calls), len(active.calls)] == [1, 2], "the one that answered is asked first"


async def test_safe_mode_is_unavailable_after_a_while() -> None:
    async with namenode(lambda _call: SAFE_MODE) as (client, _):
        started = asyncio.get_running_loop().time()
        with pytest.raises(StorageUnavailable, match="SafeModeException"):
            await client.delete("/x", recursive=False)
        assert asyncio.get_running_loop().time() - started <= SETTINGS.call_deadline_s + 0.5


async def test_errors_are_translated_and_not_repeated() -> None:
    async with namenode(lambda _call: "java.io.FileNotFoundException") as (client, (fake,)):
        with pytest.raises(NoSuchFile, match=r"concat /x: FileNotFoundException: no$"):
            await client.concat("/x", ["/y"])
        assert len(fake.calls) == 1


@pytest.mark.parametrize(
    ("name", "command"), [("NSQuotaExceededException", "-setQuota"), ("DSQuotaExceededException", "-setSpaceQuota")]
)
async def test_a_quota_says_which_one_and_what_to_do(name: str, command: str) -> None:
    async with namenode(lambda _call: f"org.apache.hadoop.hdfs.protocol.{name}") as (client, _):
        with pytest.raises(OutOfSpace, match=command):
            await client.mkdirs("/x")


async def test_kerberos_is_refused_clearly() -> None:
    async with namenode(lambda _call: "org.apache.hadoop.security.AccessControlException") as (client, _):
        with pytest.raises(Unsupported, match="Kerberos"):
            await client.server_defaults()


async def test_a_datanode_that_leaves_the_cluster_holds_no_new_copy() -> None:
    """Live are also those being decommissioned or in maintenance; an admin state left out is the normal one."""
    datanode = pb.GetDatanodeReportResponse.Datanode
    states = [datanode(), *(datanode(admin_state=state) for state in range(5))]
    report = pb.GetDatanodeReportResponse(datanodes=states).SerializeToString()
    defaults = pb.GetServerDefaultsResponse.Defaults(
        block_size=1, chunk_bytes=1, packet_bytes=1, replication=1, buffer_bytes=1
    )
    answers = {
        "getServerDefaults": pb.GetServerDefaultsResponse(defaults=defaults).SerializeToString(),
        "getDatanodeReport": report,
    }

    async with namenode(lambda call: answers[call.method]) as (_, (fake,)):
        fs = await HdfsFileSystem.open(f"hdfs://127.0.0.1:{fake.port}/", holder="a", settings=SETTINGS)
        assert await fs.replicas_max() == 2
        assert pb.GetDatanodeReportRequest.FromString(fake.calls[-1].request).type == 2
        await fs.close()


async def test_cancelled_call_leaves_the_connection_usable() -> None:
    async with namenode(lambda call: None if call.call_id == 1 else TRUE) as (client, (fake,)):
        task = asyncio.create_task(client.is_file_closed("/x"))
        await fake.wait_calls(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.is_file_closed("/y")


async def test_server_that_speaks_something_else() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = NameNode([server.sockets[0].getsockname()[:2]], SETTINGS, SimpleAuthenticator("alice"))
    with pytest.raises(StorageUnavailable):
        await client.server_defaults()
    await client.close()
    server.close()
    await server.wait_closed()


async def test_lease_is_renewed_only_while_files_are_open() -> None:
    async with namenode(lambda _call: b"") as (client, (fake,)):
        renewer = LeaseRenewer(client, "holder", 0.01)
        renewer.add(1)
        renewer.add(2)
        renewer.remove(1)
        await fake.wait_calls(3)
        renewer.remove(2)
        await asyncio.sleep(0.03)  # one renewal may be under way
        count = len(fake.calls)
        await asyncio.sleep(0.05)
        assert len(fake.calls) == count
        assert pb.RenewLeaseRequest.FromString(fake.calls[0].request).holder == "holder"
        await renewer.close()


async def test_failed_renewals_go_on() -> None:
    async with namenode(lambda _call: "java.io.FileNotFoundException") as (client, (fake,)):
        renewer = LeaseRenewer(client, "holder", 0.01)
        renewer.add(1)
        await fake.wait_calls(3)
        await renewer.close()


async def test_renewals_go_on_after_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    """A renewal raises an error that is not expected: unless renewals continue, HDFS takes the files after 20
    minutes."""
    renewals: list[str] = []

    class Broken:
        async def renew_lease(self, holder: str) -> None:
            renewals.append(holder)
            if len(renewals) == 1:
                raise ZeroDivisionError

    renewer = LeaseRenewer(cast("NameNode", Broken()), "holder", 0.001)
    renewer.add(1)
    async with asyncio.timeout(10):
        while len(renewals) < 3:  # noqa: ASYNC110  # the renewer's own timer moves it
            await asyncio.sleep(0.001)
    await renewer.close()
    text = "bug: cannot renew the HDFS lease of holder, trying again in 0.001 s"
    assert [record.message for record in caplog.records] == [text]


async def test_a_connection_that_is_not_accepted_in_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    settings = HdfsSettings(connect_timeout_s=0.01, call_timeout_s=0.01, call_deadline_s=0.01)
    namenode = NameNode((("127.0.0.1", 1),), settings, SimpleAuthenticator("alice"))
    with pytest.raises(StorageUnavailable, match=r"cannot connect to 127\.0\.0\.1:1: timed out"):
        await namenode.server_defaults()
    await namenode.close()

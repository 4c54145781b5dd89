"""NameNode calls against a small server that speaks Hadoop RPC: retries, failover, time-outs, what is refused."""

import asyncio

import pytest

from bmq.storage.filesystem import NoSuchFile, OutOfSpace, StorageUnavailable, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.namenode import NameNode
from bmq.storage.hdfs.settings import HdfsSettings
from tests.unit.storage.hdfs.fakes import SETTINGS, STANDBY, namenode

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

SAFE_MODE = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
TRUE = pb.BoolResponse(result=True).SerializeToString()


async def test_calls_share_a_connection_each_with_an_id_and_the_user() -> None:
    async with namenode(lambda _call: TRUE) as (client, (fake,)):
        answers = await asyncio.gather(*(client.is_file_closed(f"/{n}") for n in range(50)))
        assert all(answers)
        assert fake.user == "alice"
        assert len({call.call_id for call in fake.calls}) == 50
        assert {call.method for call in fake.calls} == {"isFileClosed"}


async def test_a_retry_keeps_the_call_id_and_raises_its_count() -> None:
    """The NameNode's retry cache recognises a repetition by client id and call id."""

    async with namenode(lambda call: TRUE if call.retry_count == 2 else SAFE_MODE) as (client, (fake,)):
        assert await client.delete("/x", recursive=False)
        assert [call.retry_count for call in fake.calls] == [0, 1, 2]
        assert len({(call.client_id, call.call_id) for call in fake.calls}) == 1


async def test_a_call_whose_response_is_lost_is_repeated() -> None:
    async with namenode(lambda call: TRUE if call.retry_count else None) as (client, (fake,)):
        assert await client.delete("/x", recursive=False)
        assert len({(call.client_id, call.call_id) for call in fake.calls}) == 1


async def test_calls_fail_over_from_a_standby_and_from_a_dead_namenode() -> None:
    async with namenode(lambda _call: STANDBY, lambda _call: TRUE, dead=1) as (client, (standby, active)):
        assert await client.is_file_closed("/x")
        assert [len(standby.calls), len(active.calls)] == [1, 1]
        assert await client.is_file_closed("/y")
        assert [len(standby.calls), len(active.calls)] == [1, 2], "the one that answered is asked first"


async def test_safe_mode_is_storage_unavailable_after_the_deadline() -> None:
    async with namenode(lambda _call: SAFE_MODE) as (client, _):
        started = asyncio.get_running_loop().time()
        with pytest.raises(StorageUnavailable, match="SafeModeException"):
            await client.delete("/x", recursive=False)
        assert asyncio.get_running_loop().time() - started <= SETTINGS.call_deadline_s + 0.5


async def test_a_call_that_fails_is_translated_and_not_repeated() -> None:
    async with namenode(lambda _call: "java.io.FileNotFoundException") as (client, (fake,)):
        with pytest.raises(NoSuchFile, match=r"concat /x: FileNotFoundException: no$"):
            await client.concat("/x", ["/y"])
        assert len(fake.calls) == 1


@pytest.mark.parametrize(
    ("name", "command"), [("NSQuotaExceededException", "-setQuota"), ("DSQuotaExceededException", "-setSpaceQuota")]
)
async def test_an_exceeded_quota_is_an_error_that_says_what_to_do(name: str, command: str) -> None:
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


async def test_a_cancelled_call_leaves_the_connection_usable() -> None:
    async with namenode(lambda call: None if call.call_id == 1 else TRUE) as (client, (fake,)):
        task = asyncio.create_task(client.is_file_closed("/x"))
        await fake.wait_calls(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await client.is_file_closed("/y")


async def test_a_server_that_does_not_speak_hadoop_rpc_is_storage_unavailable() -> None:
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


async def test_a_connection_that_is_not_accepted_in_time_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    settings = HdfsSettings(connect_timeout_s=0.01, call_timeout_s=0.01, call_deadline_s=0.01)
    namenode = NameNode((("127.0.0.1", 1),), settings, SimpleAuthenticator("alice"))
    with pytest.raises(StorageUnavailable, match=r"cannot connect to 127\.0\.0\.1:1: timed out"):
        await namenode.server_defaults()
    await namenode.close()

"""The health that NameNodes report, asked of small servers that speak Hadoop RPC."""

from __future__ import annotations

import pytest

from bmq.storage.filesystem import CannotLogIn
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.auth import SimpleAuthenticator
from bmq.storage.hdfs.health import ask_namenodes, read_health
from bmq.storage.health import NameNodeState, StorageHealth
from tests.unit.storage.hdfs.fakes import STANDBY, Answer, Call, namenode

pytestmark = pytest.mark.loops("asyncio")

NO_HA = "org.apache.hadoop.ha.ServiceFailedException"
NO_METHOD = "org.apache.hadoop.ipc.RpcNoSuchMethodException"


def of_state(number: int) -> Answer:
    return lambda call: pb.HAServiceStateResponse(state=number).SerializeToString()


@pytest.mark.slow
async def test_each_namenode_is_asked_for_its_state() -> None:
    answers: list[Answer] = [of_state(1), of_state(2), of_state(0), lambda call: NO_METHOD, lambda call: NO_HA]
    answers.append(lambda call: None)
    async with namenode(*answers) as (_, fakes):
        address = HdfsAddress(namenodes=tuple(("127.0.0.1", fake.port) for fake in fakes), root="")
        states = await ask_namenodes(address, 0.5)
        names = [f"127.0.0.1:{fake.port}" for fake in fakes]
        assert states[:5] == [
            NameNodeState(names[0], "active"),
            NameNodeState(names[1], "standby"),
            NameNodeState(names[2], "initializing"),
            NameNodeState(names[3]),
            NameNodeState(names[4]),
        ]
        assert (states[5].address, states[5].state) == (names[5], "")
        assert "no response within 0.5 s" in states[5].error
        assert {call.method for fake in fakes for call in fake.calls} == {"getHAServiceState"}


@pytest.mark.slow
async def test_a_namenode_that_is_down_is_told_so() -> None:
    async with namenode(of_state(1)) as (_, (fake,)):
        port = fake.port
    (state,) = await ask_namenodes(HdfsAddress(namenodes=(("127.0.0.1", port),), root=""), 0.5)
    assert state.state == ""
    assert state.error


async def test_an_identity_that_cannot_be_made_ends_the_other_calls() -> None:
    """Fail the identity for the second NameNode while the first is silent: no call is left without its caller."""
    opened: list[SimpleAuthenticator] = []
    closed: list[SimpleAuthenticator] = []

    class Identity(SimpleAuthenticator):
        def close(self) -> None:
            closed.append(self)

    def make_identity() -> SimpleAuthenticator:
        if opened:
            raise CannotLogIn("no ticket")
        opened.append(Identity("alice"))
        return opened[-1]

    async with namenode(lambda call: None, of_state(2)) as (_, fakes):
        address = HdfsAddress(namenodes=tuple(("127.0.0.1", fake.port) for fake in fakes), root="")
        with pytest.raises(CannotLogIn):
            await ask_namenodes(address, 5.0, make_identity)
        assert closed == opened, "its call has ended"
    assert len(opened) == 1


def respond(call: Call) -> bytes | str:
    match call.method:
        case "setSafeMode":
            asked = pb.SetSafeModeRequest.FromString(call.request)
            assert asked.action == 3, "the doctor never changes it"
            return pb.SetSafeModeResponse(result=True).SerializeToString()
        case "getFsStats":
            stats = pb.GetFsStatsResponse(
                capacity=100, used=60, remaining=40, under_replicated=1, corrupt_blocks=2, missing_blocks=3
            )
            return stats.SerializeToString()
        case "getFileInfo":
            return FOUND
        case "getQuotaUsage":
            assert pb.PathRequest.FromString(call.request).path == "/bmq"
            usage = pb.GetQuotaUsageResponse.Usage(names=5, names_quota=-1, bytes=7, bytes_quota=9)
            return pb.GetQuotaUsageResponse(usage=usage).SerializeToString()
    raise AssertionError(call.method)


def _found() -> bytes:
    info = pb.FileInfo(
        kind=pb.FileInfo.DIRECTORY, path=b"", length=0, permission=pb.Permission(mode=0o755), owner="o", group="g",
        modification_time=0, access_time=0,
    )  # fmt: skip
    return pb.GetFileInfoResponse(file=info).SerializeToString()


FOUND = _found()


async def test_safe_mode_room_and_quota() -> None:
    async with namenode(lambda call: STANDBY, respond) as (client, _):
        health = await read_health(client, "/bmq")
    assert health == StorageHealth(
        capacity_bytes=100, remaining_bytes=40, is_in_safe_mode=True, missing_blocks=3,
        root_names=5, root_names_quota=-1, root_bytes=7, root_bytes_quota=9,
    )  # fmt: skip


async def test_a_root_that_is_not_there_has_no_quota() -> None:
    def without(call: Call) -> bytes | str:
        return b"" if call.method == "getFileInfo" else respond(call)

    async with namenode(without) as (client, _):
        assert (await read_health(client, "/bmq")).root_bytes_quota == -1


async def test_a_root_in_a_zone_has_the_reason_of_its_refusal() -> None:
    def in_zone(call: Call) -> bytes | str:
        if call.method != "getFileInfo":
            return respond(call)
        found = pb.GetFileInfoResponse.FromString(FOUND)
        found.file.flags = 2
        return found.SerializeToString()

    async with namenode(in_zone) as (client, _):
        assert (await read_health(client, "/bmq")).root_refusal.startswith("/bmq is in an encryption zone")

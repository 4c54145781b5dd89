"""Encryption zones and erasure coding, as a NameNode shows them of folders and files."""

from __future__ import annotations

import pytest

from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.errors import RemoteError, translate
from bmq.storage.hdfs.own_user import own_user
from bmq.storage.hdfs.zones import policy_name, refuse_zone
from tests.unit.storage.hdfs.fakes import Call, namenode

pytestmark = pytest.mark.loops("asyncio")
KEY = pb.EncryptionInfo(key_name="k1")


def info(**fields: object) -> pb.FileInfo:
    return pb.FileInfo(
        kind=pb.FileInfo.DIRECTORY,
        path=b"",
        length=0,
        permission=pb.Permission(mode=0o755),
        owner="bmq",
        group="g",
        modification_time=1,
        access_time=1,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (None, ""),
        (pb.ErasureCodingPolicy(id=0), ""),
        (pb.ErasureCodingPolicy(id=0, name="REPLICATION"), ""),
        (pb.ErasureCodingPolicy(id=1), "RS-6-3-1024k"),
        (pb.ErasureCodingPolicy(id=4), "XOR-2-1-1024k"),
        (pb.ErasureCodingPolicy(id=64, name="RS-4-2-1024k"), "RS-4-2-1024k"),
        (pb.ErasureCodingPolicy(id=65), "number 65"),
    ],
)
def test_a_policy_has_its_name_and_replication_is_none(policy: pb.ErasureCodingPolicy | None, name: str) -> None:
    assert policy_name(info(erasure_coding=policy)) == name
    refuse_zone("/bmq", info(erasure_coding=policy))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (info(flags=2), r"^/bmq is in an encryption zone: HDFS's clients"),
        (info(flags=1 | 2 | 8), r"/bmq is in an encryption zone"),
        (info(encryption=KEY), r"/bmq is encrypted by the key k1"),
        (
            pb.LocatedBlocks(file_length=1, under_construction=False, last_block_complete=True, encryption=KEY),
            r"/bmq is encrypted by the key k1",
        ),
    ],
)
def test_a_zone_is_refused_with_the_two_ways_on(found: pb.FileInfo | pb.LocatedBlocks, said: str) -> None:
    with pytest.raises(Unsupported, match=said) as caught:
        refuse_zone("/bmq", found)
    assert "Choose a root outside of the zone" in str(caught.value)
    assert "dfs.encrypt.data.transfer=true" in str(caught.value)


def test_other_flags_are_no_zone() -> None:
    refuse_zone("/bmq", info(flags=1 | 4 | 8))  # ACLs, erasure coding, snapshots


def test_the_namenode_s_own_refusal_of_a_file_in_a_zone_has_the_same_advice() -> None:
    error = translate(
        RemoteError("a.UnknownCryptoProtocolVersionException", "No crypto protocol versions"), "create /f"
    )
    assert isinstance(error, Unsupported)
    assert "Choose a root outside of the zone" in str(error)


async def test_a_root_in_a_zone_is_refused_and_its_folder_goes() -> None:
    def respond(call: Call) -> bytes:
        if call.method == "getFileInfo":
            return pb.GetFileInfoResponse(file=info(flags=2)).SerializeToString()
        return pb.BoolResponse(result=True).SerializeToString()

    async with namenode(respond) as (client, (fake,)):
        with pytest.raises(Unsupported, match=r"^/bmq is in an encryption zone"):
            await own_user(client, "/bmq")
        assert [call.method for call in fake.calls] == ["mkdirs", "getFileInfo", "getFileInfo", "delete"]


async def test_a_root_with_a_policy_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def respond(call: Call) -> bytes:
        if call.method == "getFileInfo":
            policy = pb.ErasureCodingPolicy(id=2)
            return pb.GetFileInfoResponse(file=info(erasure_coding=policy)).SerializeToString()
        return pb.BoolResponse(result=True).SerializeToString()

    async with namenode(respond) as (client, _):
        with caplog.at_level("INFO"):
            assert await own_user(client, "/bmq") == "bmq"
    (record,) = [each for each in caplog.records if "erasure-coding" in each.getMessage()]
    assert "segments are replicated there all the same" in record.getMessage()

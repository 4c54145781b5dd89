"""The HDFS user of a process, by the owner of a folder that it makes."""

from __future__ import annotations

import pytest

from bmq.storage.filesystem import NotAllowed, StorageUnavailable, Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.own_user import own_user
from tests.unit.storage.hdfs.fakes import Call, namenode

pytestmark = pytest.mark.loops("asyncio")
SAFE_MODE = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
DENIED = "org.apache.hadoop.security.AccessControlException: Permission denied: user=alice, access=WRITE, inode=/bmq"


def respond(call: Call) -> bytes | str:
    match call.method:
        case "mkdirs" | "delete":
            return pb.BoolResponse(result=True).SerializeToString()
        case "getFileInfo":
            info = pb.FileInfo(
                kind=pb.FileInfo.DIRECTORY,
                path=b"",
                length=0,
                permission=pb.Permission(mode=0o755),
                owner="bmq",
                group="g",
                modification_time=1,
                access_time=1,
            )
            return pb.GetFileInfoResponse(file=info).SerializeToString()
    raise AssertionError(call.method)


async def test_the_owner_of_a_new_folder_is_the_user_and_the_folder_goes() -> None:
    async with namenode(respond) as (client, (fake,)):
        assert await own_user(client, "/bmq") == "bmq"
        assert [call.method for call in fake.calls] == ["mkdirs", "getFileInfo", "getFileInfo", "delete"]
        paths = {
            pb.MkdirsRequest.FromString(fake.calls[0].request).path,
            pb.DeleteRequest.FromString(fake.calls[3].request).path,
        }
        assert len(paths) == 1
        assert paths.pop().startswith("/bmq/.user-")


@pytest.mark.parametrize(
    "found",
    [
        pb.GetFileInfoResponse().SerializeToString(),
        "java.io.IOException: Cannot find locations for /.reserved/.inodes/0",
    ],
    ids=["nothing", "no mount point"],
)
async def test_a_root_behind_a_router_is_refused_by_name(found: bytes | str) -> None:
    """A router finds no file by its id, and a fence would take each segment for deleted."""

    def route(call: Call) -> bytes | str:
        if b"/.reserved/.inodes/" in call.request:
            return found
        return respond(call)

    async with namenode(route) as (client, (fake,)):
        with pytest.raises(Unsupported, match=r"^/bmq: a folder is not found by its id .*router"):
            await own_user(client, "/bmq")
        assert fake.calls[-1].method == "delete"


async def test_a_missing_right_names_path_user_and_right() -> None:
    async with namenode(lambda call: DENIED) as (client, _):
        with pytest.raises(NotAllowed, match=r"mkdirs /bmq/\.user.*user=alice, access=WRITE, inode=/bmq"):
            await own_user(client, "/bmq/")


@pytest.mark.slow
async def test_a_folder_that_cannot_be_deleted_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with namenode(lambda call: SAFE_MODE if call.method == "delete" else respond(call)) as (client, _):
        assert await own_user(client, "/bmq") == "bmq"
    assert "an empty folder of the start stays behind" in caplog.text


@pytest.mark.slow
async def test_safe_mode_is_storage_that_is_away() -> None:
    async with namenode(lambda call: SAFE_MODE) as (client, _):
        with pytest.raises(StorageUnavailable):
            await own_user(client, "/bmq")

"""The umask of the site's files, and the modes of a create that it and a default ACL decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.delegation_token import HadoopToken, StorageToken
from bmq.storage.hdfs.filesystem import HdfsFileSystem
from bmq.storage.hdfs.login import find_login
from bmq.storage.hdfs.security import HdfsSecurity
from bmq.storage.hdfs.site_files import SiteConfig, SiteFileError
from bmq.storage.hdfs.umask import UMASK, CreateMode, file_mode, folder_mode, read_umask
from tests.services.hdfs_config import write_conf
from tests.unit.storage.hdfs.fakes import SETTINGS, Call, namenode

pytestmark = pytest.mark.loops("asyncio")

DEFAULTS = pb.GetServerDefaultsResponse.Defaults(
    block_size=1, chunk_bytes=1, packet_bytes=1, replication=1, buffer_bytes=1
)


def umask_of(text: str) -> int:
    return read_umask(SiteConfig({UMASK: text}, "core-site.xml"))


@pytest.mark.parametrize(
    ("text", "umask"),
    [
        ("", 0o022),
        ("000", 0),
        ("022", 0o022),
        ("0027", 0o027),
        ("+077", 0o077),
        ("u=rwx,g=rx,o=", 0o027),
        ("u=rwx, g=rx, o=", 0o027),
        ("u=rwx,go=", 0o077),
        ("a=rx,u=rwx", 0o022),
        ("ug=rwx", 0o007),
        ("u+rwx,g+r", 0o037),
        ("=rwx", 0),
        ("u=rwx,g-w,o-rwx", 0o077),
    ],
)
def test_the_umask_is_octal_or_names_the_rights_that_stay(text: str, umask: int) -> None:
    """The same texts give the same bits as Hadoop's UmaskParser."""
    assert umask_of(text) == umask


def test_a_site_without_an_umask_has_hadoops_default() -> None:
    assert read_umask(SiteConfig({})) == 0o022


@pytest.mark.parametrize("text", ["22", "1022", "089", "u=rwX", "rwxr-x---", "u=rwx;g=", "0x1f", "u", "-022"])
def test_a_text_without_meaning_is_refused_with_its_file_and_a_right_one(text: str) -> None:
    with pytest.raises(SiteFileError, match=r"core-site\.xml: fs\.permissions\.umask-mode=.* is no umask: .*027"):
        umask_of(text)


@pytest.mark.parametrize(("text", "right"), [("777", "077"), ("0227", "027"), ("g=rx,o=", "027"), ("u=rw,g=r", "037")])
def test_an_umask_that_takes_rights_from_the_writer_is_refused(text: str, right: str) -> None:
    with pytest.raises(SiteFileError, match=rf"takes rights from the owner of new files.*begins with 0, as {right}$"):
        umask_of(text)


def test_an_asked_mode_has_no_umask_and_no_unmasked_mode() -> None:
    """A default ACL takes from it what the ACL does not allow, and adds nothing."""
    assert file_mode(0o640, 0o077) == CreateMode(0o640)
    assert folder_mode(0o750, 0o077) == CreateMode(0o750)
    assert CreateMode(0o750).unmasked_permission is None


def test_a_mode_that_nobody_asked_for_is_masked_and_goes_unmasked_beside_it() -> None:
    assert file_mode(None, 0o027) == CreateMode(0o640, 0o666)
    assert folder_mode(None, 0o027) == CreateMode(0o750, 0o777)
    assert file_mode(None, 0o022).masked == 0o644
    assert folder_mode(None, 0o022).masked == 0o755


@pytest.mark.parametrize("mode", [None, 0o700])
async def test_a_root_creates_by_the_umask_of_its_site(mode: int | None, tmp_path: Path) -> None:
    requests: list[Call] = []

    def respond(call: Call) -> bytes | str:
        requests.append(call)
        if call.method == "getServerDefaults":
            return pb.GetServerDefaultsResponse(defaults=DEFAULTS).SerializeToString()
        if call.method == "mkdirs":
            return pb.BoolResponse(result=True).SerializeToString()
        return "java.io.IOException: no more"

    async with namenode(respond) as (_, (fake,)):
        write_conf(tmp_path, {UMASK: "027"})
        url = f"hdfs://127.0.0.1:{fake.port}/bmq"
        fs = await HdfsFileSystem.open(url, holder="a", settings=SETTINGS, conf_folder=str(tmp_path))
        await fs._client.namenode.mkdirs("/bmq/topics", mode)
        with pytest.raises(Exception, match="no more"):
            await fs._client.namenode.create("/bmq/x", "a", block_bytes=1 << 20, replication=3, mode=mode)
        await fs.close()
    folder = next(pb.MkdirsRequest.FromString(each.request) for each in requests if each.method == "mkdirs")
    file = next(pb.CreateRequest.FromString(each.request) for each in requests if each.method == "create")
    if mode is None:
        assert (folder.permission.mode, folder.unmasked.mode) == (0o750, 0o777)
        assert (file.permission.mode, file.unmasked.mode) == (0o640, 0o666)
    else:
        assert (folder.permission.mode, folder.HasField("unmasked")) == (mode, False)
        assert (file.permission.mode, file.HasField("unmasked")) == (mode, False)


async def test_a_fetched_token_brings_the_umask_where_no_configuration_is() -> None:
    token = HadoopToken("HDFS_DELEGATION_TOKEN", "ha-hdfs:ns", b"identifier", b"password")
    given = StorageToken(
        root="hdfs://ns/a", namenodes="nn1:8020", token=token, security=HdfsSecurity(is_kerberos=True), umask=0o077
    )
    assert (await find_login("hdfs://ns/a", token=given)).umask == 0o077

"""The way from a root's URL to its file system."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from bmq.storage.filesystem import NoSuchFile, StorageError, Unsupported
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.open import SCHEMES, namenode_states, open_filesystem, resolved_url, unknown_root

pytestmark = pytest.mark.loops("asyncio")


async def test_a_local_root_is_made_unless_it_must_exist(tmp_path: Path) -> None:
    root = tmp_path / "a b" / "root"
    with pytest.raises(NoSuchFile, match="there is no folder"):
        await open_filesystem(root.as_uri(), holder="me", must_exist=True)
    assert not root.exists()
    fs = await open_filesystem(root.as_uri(), holder="me")
    assert isinstance(fs, LocalFileSystem)
    assert (fs.url, fs.holder) == (root.as_uri(), "me")
    assert root.is_dir()
    await fs.close()
    await (await open_filesystem(root.as_uri(), holder="me", must_exist=True)).close()


async def test_memory_roots_of_one_name_share_their_files_while_one_is_in_use() -> None:
    shared = [await open_filesystem("memory:shared", holder=name) for name in "ab"]
    await (await shared[0].create("/f")).close()
    assert await shared[1].read("/f", 0, 1) == b""
    alone = await open_filesystem("memory:", holder="c")
    with pytest.raises(NoSuchFile):
        await alone.read("/f", 0, 1)
    shared.clear()
    gc.collect()
    later = await open_filesystem("memory:shared", holder="d")
    with pytest.raises(NoSuchFile):
        await later.read("/f", 0, 1)


@pytest.mark.parametrize("url", ["s3://bucket", "/plain/path", "", "file://host/dir", "file:relative", "file:///a?b"])
async def test_a_url_that_names_no_root_is_refused(url: str) -> None:
    with pytest.raises(Unsupported, match=r"root|path"):
        await open_filesystem(url, holder="me")


async def test_a_file_in_the_place_of_the_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        await open_filesystem((tmp_path / "file").as_uri(), holder="me")


def test_for_a_path_the_error_suggests_a_url_and_no_error_shows_a_password() -> None:
    assert unknown_root("/a b", SCHEMES) == "unknown root '/a b': for a local folder give file:///a%20b"
    assert "the hdfs:// URL behind the mount point" in unknown_root("viewfs://cluster/bmq", SCHEMES)
    text = unknown_root("s3://user:secret@bucket", SCHEMES)
    assert text.endswith(f": use one of {SCHEMES}")
    assert "secret" not in text


async def test_a_root_that_is_not_on_hdfs_is_its_own_address_and_has_no_namenode() -> None:
    assert resolved_url("file:///a") == "file:///a"
    assert await namenode_states("file:///a", "", 1.0) == ()


def test_a_name_service_becomes_the_addresses_that_the_configuration_gives(tmp_path: Path) -> None:
    properties = {"dfs.nameservices": "cluster", "dfs.namenode.rpc-address.cluster": "nn.example.org:9000"}
    text = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{text}</configuration>")
    assert resolved_url("hdfs://cluster/a", hadoop_conf_dir=str(tmp_path)) == "hdfs://nn.example.org:9000/a"
    with pytest.raises(ValueError, match=r"has no fs\.defaultFS"):
        resolved_url("hdfs:///a", hadoop_conf_dir=str(tmp_path))

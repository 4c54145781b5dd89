"""WebHDFS of a cluster with Kerberos: refused by name, with the hdfs:// address to use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bmq.storage.filesystem import Unsupported
from bmq.storage.open import open_filesystem
from tests.services.hdfs_config import write_conf

pytestmark = pytest.mark.loops("asyncio")

KERBEROS = {"hadoop.security.authentication": "kerberos", "dfs.namenode.kerberos.principal": "nn/_HOST@EXAMPLE.ORG"}
SINGLE = {"fs.defaultFS": "hdfs://nn.example.org:8021"}
PAIR = {
    "dfs.nameservices": "ns",
    "dfs.ha.namenodes.ns": "a,b",
    "dfs.namenode.rpc-address.ns.a": "nn.example.org:8020",
    "dfs.namenode.rpc-address.ns.b": "nn2.example.org:8020",
}
URL = "webhdfs://nn.example.org:9870/bmq"


@pytest.mark.parametrize(
    ("namenodes", "instead"),
    [
        (SINGLE, "nn.example.org:8021"),
        (PAIR, "ns"),
        ({"fs.defaultFS": "hdfs://NN.example.org:8021"}, "nn.example.org:8021"),
        ({"fs.defaultFS": "hdfs://another.example.org:8020"}, "nn.example.org"),
        ({}, "nn.example.org"),
    ],
)
async def test_kerberos_in_the_configuration(tmp_path: Path, namenodes: dict[str, str], instead: str) -> None:
    write_conf(tmp_path, KERBEROS | namenodes)
    with pytest.raises(Unsupported) as raised:
        await open_filesystem(URL, holder="h", hadoop_conf_dir=str(tmp_path))
    assert str(raised.value) == (
        f"{URL} is on an HDFS with Kerberos, which is not read over WebHDFS: use hdfs://{instead}/bmq"
    )


@pytest.mark.parametrize("properties", [SINGLE, PAIR])
async def test_an_open_cluster_is_opened(tmp_path: Path, properties: dict[str, str]) -> None:
    write_conf(tmp_path, properties)
    fs = await open_filesystem(URL, holder="h", hadoop_conf_dir=str(tmp_path))
    await fs.close()


async def test_a_namenode_that_demands_a_log_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The NameNode's own response shows Kerberos, without any configuration."""
    for name in ("HADOOP_CONF_DIR", "HADOOP_HOME"):
        monkeypatch.delenv(name, raising=False)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 401 Authentication required\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n"
        )
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        fs = await open_filesystem(f"webhdfs://127.0.0.1:{port}/bmq", holder="h")
        with pytest.raises(Unsupported, match=r" with Kerberos, .* over WebHDFS: use hdfs://127\.0\.0\.1/bmq$"):
            await fs.status("/a")
        await fs.close()

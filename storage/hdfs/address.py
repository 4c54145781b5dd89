"""The parts of ``hdfs://`` URLs: one or several NameNodes, and the folder that is this root.

``name_service`` completes a URL by Hadoop's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bmq.core.urls import split_url, without_userinfo
from bmq.storage.paths import split

DEFAULT_RPC_PORT = 8020
USE_DATANODE_HOSTNAME = "dfs.client.use.datanode.hostname"
"""Hadoop's name of the property; a URL may have it as its query."""
_QUERIES: Mapping[str, bool | None] = {
    "": None, f"{USE_DATANODE_HOSTNAME}=true": True, f"{USE_DATANODE_HOSTNAME}=false": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsAddress:
    """The parsed URL of a root on HDFS.

    ``namenodes`` are (host, port) in the order given.  ``root`` is a path without a trailing slash, empty for the root
    folder of HDFS.  ``use_datanode_hostname``: datanodes are reached by host name, not by address; None: the URL does
    not say.
    """

    namenodes: tuple[tuple[str, int], ...]
    root: str
    use_datanode_hostname: bool | None = None

    @classmethod
    def parse(cls, url: str) -> HdfsAddress:
        """Parse ``hdfs://nn1[:port][,nn2[:port]...][/folder][?dfs.client.use.datanode.hostname=true]``.

        Raises ValueError that says what is wrong with it.
        """
        parts = split_url(url)
        if parts.scheme != "hdfs":
            raise ValueError(f"{without_userinfo(url)!r}: expected hdfs://namenode:port/folder")
        if parts.query not in _QUERIES or parts.fragment or "@" in parts.netloc:
            raise ValueError(f"{without_userinfo(url)!r}: user, query and fragment have no meaning here")
        namenodes = tuple(_host_and_port(name, url) for name in parts.netloc.split(","))
        return cls(namenodes=namenodes, root=_normal_root(parts.path, url), use_datanode_hostname=_QUERIES[parts.query])

    def full_path(self, path: str) -> str:
        """Return the HDFS path of a path within the root.

        Raises Unsupported if it is not a path, or would leave the root.
        """
        split(path)
        return (self.root + path).rstrip("/") or "/"

    def __str__(self) -> str:
        names = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.namenodes)
        query = f"?{USE_DATANODE_HOSTNAME}=true" if self.use_datanode_hostname else ""
        return f"hdfs://{names}{self.root}{query}"


def canonical_host(host: str) -> str:
    """Return a host's name in lower case, without the dot that may end a full name: equal names are equal texts."""
    return host.lower().removesuffix(".")


def _host_and_port(name: str, url: str) -> tuple[str, int]:
    host, colon, port = name.strip().rpartition(":")
    if not colon or port.endswith("]"):  # no port; a bare IPv6 address ends with its bracket
        host, port = name.strip(), str(DEFAULT_RPC_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{without_userinfo(url)!r}: a NameNode is host or host:port; several are separated by commas")
    return host.strip("[]"), int(port)


def _normal_root(path: str, url: str) -> str:
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise ValueError(f"{without_userinfo(url)!r}: the folder must not contain . or ..")
    return "".join("/" + part for part in parts)

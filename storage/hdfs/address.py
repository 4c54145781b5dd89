"""``hdfs://`` URLs: one or several NameNodes and the folder that is this root."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.urls import split_url, without_userinfo
from bmq.storage.paths import split

DEFAULT_RPC_PORT = 8020


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsAddress:
    """``namenodes`` in the order given; ``root`` without a trailing slash, empty for the file system's own root."""

    namenodes: tuple[tuple[str, int], ...]
    root: str

    @classmethod
    def parse(cls, url: str) -> HdfsAddress:
        """From ``hdfs://nn1[:port][,nn2[:port]...][/folder]``.  ValueError says what is wrong with it."""
        parts = split_url(url)
        if parts.scheme != "hdfs":
            raise ValueError(f"{without_userinfo(url)!r}: expected hdfs://namenode:port/folder")
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise ValueError(f"{without_userinfo(url)!r}: user, query and fragment have no meaning here")
        namenodes = tuple(_host_and_port(name, url) for name in parts.netloc.split(","))
        return cls(namenodes=namenodes, root=_normal_root(parts.path, url))

    def full_path(self, path: str) -> str:
        """The HDFS path of a path within the root.  Unsupported when it is no path, or would leave the root."""
        split(path)
        return (self.root + path).rstrip("/") or "/"

    def __str__(self) -> str:
        return "hdfs://" + ",".join(f"{host}:{port}" for host, port in self.namenodes) + self.root


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

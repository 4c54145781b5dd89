"""A read-only root over WebHDFS, for readers that reach an open cluster by HTTP only.

The ``hdfs`` package is synchronous and reads about 20 MB/s: its calls run in threads.  An open file shows the length
that the NameNode has of it, which may be less than was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NoReturn, TypeVar

import hdfs
import requests
from hdfs.client import _Request

from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.urls import split_url, without_userinfo
from bmq.storage.filesystem import (
    Appender,
    BlockPlace,
    CreateOptions,
    FileStatus,
    Lease,
    NoSuchFile,
    NotAllowed,
    StorageError,
    StorageUnavailable,
    Unsupported,
)
from bmq.storage.hdfs.auth import SimpleAuthenticator, refuse_proxy_user
from bmq.storage.hdfs.name_service import read_config, rpc_authority
from bmq.storage.hdfs.security import is_kerberos
from bmq.storage.paths import split

_DEFAULTS = CreateOptions()
_TIMEOUT_S = 30.0
_AUTHENTICATION_FAILURE = "Authentication failure"
"""The package's text for a response with status 401, of which it shows nothing else."""
# The package has no listing by pages, so its class for calls is used.
_list_page = _Request("GET").to_method("LISTSTATUS_BATCH")

Response = TypeVar("Response")


class WebHdfsFileSystem:
    """The ``FileSystem`` of ``webhdfs://host:port/folder`` (``bmq.storage.filesystem``).

    It only reads: all other calls raise Unsupported.
    """

    def __init__(self, url: str, holder: str, client: hdfs.InsecureClient, root: str) -> None:
        self._url = url
        self._holder = holder
        self._client = client
        self._root = root

    @classmethod
    async def open(cls, url: str, *, holder: str, user: str = "", conf_folder: str = "") -> WebHdfsFileSystem:
        """Make the file system, without a connection yet.

        Raises ValueError for a malformed URL or a HADOOP_PROXY_USER, and Unsupported if Hadoop's configuration has
        Kerberos.
        """
        parts = split_url(url)
        if parts.scheme != "webhdfs" or not parts.hostname or not parts.port:
            raise ValueError(f"{without_userinfo(url)!r}: expected webhdfs://host:port/folder")
        root = "".join("/" + part for part in parts.path.split("/") if part)
        refuse_proxy_user()
        config = read_config(conf_folder)
        if is_kerberos(config):
            authority = rpc_authority(parts.hostname, config) or parts.hostname
            raise Unsupported(_needs_kerberos(url, f"hdfs://{authority}{root}"))
        name = SimpleAuthenticator.for_user(user).user
        client = hdfs.InsecureClient(f"http://{parts.netloc}", user=name, timeout=_TIMEOUT_S)
        return cls(url.rstrip("/"), holder, client, root)

    @property
    def url(self) -> str:
        return without_userinfo(self._url)

    @property
    def holder(self) -> str:
        return self._holder

    async def read(self, path: str, position: int, length: int) -> bytes:
        def read() -> bytes:
            with self._client.read(self._full(path), offset=position, length=length) as reader:
                data: bytes = reader.read()
                return data

        if length <= 0:
            return b""
        size = (await self.status(path)).length
        if position >= size:
            return b""  # WebHDFS would return an error
        return await self._ask(read)

    async def status(self, path: str) -> FileStatus:
        info = await self._ask(lambda: self._client.status(self._full(path)))
        return _status(path, info)

    async def visible_length(self, path: str) -> int:
        return (await self.status(path)).length

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        """List as ``FileSystem.list``, one page of the NameNode at a time (LISTSTATUS_BATCH)."""
        last = after
        while True:
            page, remaining = await self._page(path, last)
            if page and last and page[0]["pathSuffix"] <= last:
                raise Unsupported(f"{self._url}: this server does not list folders by pages; use its hdfs:// address")
            for info in page:
                last = info["pathSuffix"]
                if last:
                    yield _status(f"{path.rstrip('/')}/{last}", info)
            if not remaining or not page:
                return

    async def close(self) -> None:
        await asyncio.to_thread(self._client._session.close)

    # ---- what a read-only root refuses

    async def create(self, path: str, options: CreateOptions = _DEFAULTS) -> Appender:
        self._refuse("create")

    async def append(self, path: str, options: CreateOptions = _DEFAULTS) -> Appender:
        self._refuse("append")

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        self._refuse("fence")

    async def rename(self, source: str, target: str) -> None:
        self._refuse("rename")

    async def replace(self, source: str, target: str) -> None:
        self._refuse("replace")

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        self._refuse("delete")

    async def make_folder(self, path: str, access: Access = NO_ACCESS) -> None:
        self._refuse("make_folder")

    async def set_access(self, path: str, access: Access) -> bool:
        self._refuse("set_access")

    async def concat(self, target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        self._refuse("concat")

    async def probe(self, node: str) -> bool:
        """Return True: WebHDFS names no nodes."""
        return True

    async def replicas_max(self) -> int:
        self._refuse("replicas_max")

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        raise Unsupported(f"block_places: {self._url} does not name datanodes; use its hdfs:// address")

    async def copies(self, path: str) -> int:
        self._refuse("copies")

    # ---- within

    def _refuse(self, what: str) -> NoReturn:
        raise Unsupported(f"{what}: {self._url} is read-only; use its hdfs:// address to write")

    def _full(self, path: str) -> str:
        split(path)
        return (self._root + path).rstrip("/") or "/"

    async def _page(self, path: str, after: str) -> tuple[Sequence[dict[str, Any]], int]:
        def ask() -> tuple[Sequence[dict[str, Any]], int]:
            # NameNodes spell the parameter differently: 3.5 lowers the names of all parameters before it finds one.
            response = _list_page(self._client, self._full(path), startAfter=after, startafter=after)
            listing = response.json()["DirectoryListing"]
            return listing["partialListing"]["FileStatuses"]["FileStatus"], listing["remainingEntries"]

        try:
            return await self._ask(ask)
        except NoSuchFile:
            return [], 0

    async def _ask(self, call: Callable[[], Response]) -> Response:
        try:
            return await asyncio.to_thread(call)
        except hdfs.HdfsError as error:
            if _AUTHENTICATION_FAILURE in str(error):
                host = split_url(self._url).hostname
                raise Unsupported(_needs_kerberos(self._url, f"hdfs://{host}{self._root}")) from error
            if error.exception == "FileNotFoundException" or "does not exist" in str(error):
                raise NoSuchFile(str(error)) from error
            if error.exception in ("AccessControlException", "SecurityException"):
                raise NotAllowed(f"{self._url}: {error}") from error
            if error.exception in ("StandbyException", "RetriableException", "SafeModeException"):
                raise StorageUnavailable(str(error)) from error
            raise StorageError(f"{self._url}: {error}") from error
        except (requests.RequestException, OSError) as error:
            raise StorageUnavailable(f"{self._url}: {error}") from error


def _needs_kerberos(url: str, instead: str) -> str:
    return f"{without_userinfo(url)} is on an HDFS with Kerberos, which is not read over WebHDFS: use {instead}"


def _status(path: str, info: dict[str, Any]) -> FileStatus:
    return FileStatus(
        path=path,
        length=info["length"],
        is_dir=info["type"] == "DIRECTORY",
        modified_ms=info["modificationTime"],
        file_id=info.get("fileId", 0),
        block_bytes=info.get("blockSize", 0),
        owner=info.get("owner", ""),
        group=info.get("group", ""),
        mode=int(info.get("permission", "0"), 8) & 0o777,
    )

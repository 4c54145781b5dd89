"""Ranged reads of large closed files through ``hdfs-native``: its threads check the checksums, not our loop.

A reader keeps the block locations of one file, so that the next read of it asks the NameNode nothing.  That is worth
it, and safe, for files that no longer change: large ones.  They are forgotten after ``reader_ttl_s`` or on any doubt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import hdfs_native

from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.settings import HdfsSettings

_NAME_SERVICE = "bmq"


class NativeReadFailed(Exception):
    """hdfs-native could not read this; our own reader may.  Never leaves this package."""


@dataclass(slots=True)
class _Reader:
    native: Any  # hdfs_native.AsyncFileReader
    length: int
    expires: float


class ClosedFiles:
    """Readers of closed files, least recently used ones dropped."""

    def __init__(self, address: HdfsAddress, settings: HdfsSettings) -> None:
        self._settings = settings
        url, config = _native_config(address)
        self._client = hdfs_native.AsyncClient(url, config)
        self._readers: OrderedDict[str, _Reader] = OrderedDict()

    def is_worth_it(self, length: int) -> bool:
        return length >= self._settings.reader_file_min_bytes

    async def read_known(self, path: str, position: int, length: int) -> bytes | None:
        """The bytes, if the file's locations are known and it was long enough; None: find out what it is."""
        reader = self._readers.get(path)
        if reader is None:
            return None
        if reader.expires < asyncio.get_running_loop().time() or position + length > reader.length:
            del self._readers[path]
            return None
        self._readers.move_to_end(path)
        try:
            return await self._read(reader, position, length)
        except NativeReadFailed:
            self.forget(path)
            return None

    async def read(self, path: str, position: int, length: int) -> bytes:
        """Open, remember and read a file that is closed.  NativeReadFailed."""
        try:
            native = await self._client.read(path)
        except (OSError, RuntimeError, ValueError) as error:
            raise NativeReadFailed(str(error)) from error
        expires = asyncio.get_running_loop().time() + self._settings.reader_ttl_s
        reader = self._readers[path] = _Reader(native, len(native), expires)
        while len(self._readers) > self._settings.readers_max:
            self._readers.popitem(last=False)
        return await self._read(reader, position, length)

    def forget(self, path: str) -> None:
        self._readers.pop(path, None)

    def forget_all_under(self, path: str) -> None:
        for known in [known for known in self._readers if known == path or known.startswith(path + "/")]:
            del self._readers[known]

    async def _read(self, reader: _Reader, position: int, length: int) -> bytes:
        wanted = min(length, reader.length - position)
        if wanted <= 0:
            return b""
        try:
            data: bytes = await reader.native.read_range(position, wanted)
        except (OSError, RuntimeError, ValueError) as error:
            raise NativeReadFailed(str(error)) from error
        if len(data) != wanted:
            raise NativeReadFailed(f"{len(data)} bytes instead of {wanted}")
        return data


def _native_config(address: HdfsAddress) -> tuple[str, dict[str, str]]:
    """Several NameNodes are a name service to hdfs-native."""
    names = [f"{host}:{port}" for host, port in address.namenodes]
    if len(names) == 1:
        return f"hdfs://{names[0]}", {}
    config = {
        "dfs.nameservices": _NAME_SERVICE,
        f"dfs.ha.namenodes.{_NAME_SERVICE}": ",".join(f"nn{index}" for index in range(len(names))),
    }
    for index, name in enumerate(names):
        config[f"dfs.namenode.rpc-address.{_NAME_SERVICE}.nn{index}"] = name
    return f"hdfs://{_NAME_SERVICE}", config

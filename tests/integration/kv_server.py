"""A ``MemoryStore`` behind a unix socket, so that several operating-system processes share epochs.

The store lives in the test's own process.  One pickled tuple a frame: ``(call, arguments)`` one way, ``(is_ok, answer
or error)`` back, one call at a time on each connection; clients open one connection per call under way.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bmq.meta.kv import Changes, Commit, Compare, Entry, KeyValue, KvError, KvUnavailable, KvUnknown, Write
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.open import open_keyvalue

_LENGTH = struct.Struct(">I")
CALLS = frozenset({"get", "revision", "commit", "grant", "keep_alive", "revoke"})


async def _receive(reader: asyncio.StreamReader) -> Any:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


def _send(writer: asyncio.StreamWriter, message: object) -> None:
    data = pickle.dumps(message)
    writer.write(_LENGTH.pack(len(data)) + data)


@asynccontextmanager
async def serve_store(store: MemoryStore, path: Path) -> AsyncGenerator[str, None]:
    """Serve ``store`` at this socket; gives the URL for ``open_shared``."""
    connections: set[asyncio.Task[None]] = set()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        kv = MemoryKeyValue(store)
        try:
            while True:
                call, arguments = await _receive(reader)
                assert call in CALLS
                try:
                    _send(writer, (True, await getattr(kv, call)(*arguments)))
                except KvError as error:
                    _send(writer, (False, error))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            return  # the client is gone (killed, maybe), or the server ends
        finally:
            connections.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(respond, path)
    try:
        yield f"unix:{path}"
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


class SharedKeyValue:
    """One process's client.  Lists and watches are not served: a broker needs neither."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def _call(self, call: str, *arguments: object) -> Any:
        try:
            streams = self._idle.pop() if self._idle else await asyncio.open_unix_connection(self._path)
        except OSError as error:
            raise KvUnavailable(str(error)) from error
        try:
            _send(streams[1], (call, arguments))
            await streams[1].drain()
            is_ok, response = await _receive(streams[0])
        except (asyncio.IncompleteReadError, OSError) as error:
            streams[1].close()
            raise KvUnknown(str(error)) from error
        except BaseException:
            streams[1].close()  # its answer may still come: not to be taken for another's
            raise
        self._idle.append(streams)
        if not is_ok:
            raise response
        return response

    async def get(self, key: str) -> Entry | None:
        entry: Entry | None = await self._call("get", key)
        return entry

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        raise KvUnavailable("not served here")

    async def revision(self) -> int:
        return int(await self._call("revision"))

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        done: Commit = await self._call("commit", list(compares), list(writes))
        return done

    async def grant(self, ttl_s: float) -> int:
        return int(await self._call("grant", ttl_s))

    async def keep_alive(self, lease: int) -> float:
        return float(await self._call("keep_alive", lease))

    async def revoke(self, lease: int) -> None:
        await self._call("revoke", lease)

    def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        raise KvUnavailable("not served here")

    async def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def open_shared(url: str) -> KeyValue:
    """``unix:/path`` of ``serve_store``, or what ``open_keyvalue`` opens."""
    if url.startswith("unix:"):
        return SharedKeyValue(url.removeprefix("unix:"))
    return await open_keyvalue(url)

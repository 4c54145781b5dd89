"""The metadata store for the writes of a proxy's clients: no late write for a client that has gone.

The clients of a process that stood still may have gone on through another process.  A late write would replace a later
change.  So each write first looks for a standstill (``core.aio.standstill``).  The look cancels the requests of clients
that have gone, and their tasks in the same call (``core.aio.children``).  The writes of other clients go on.

A store may send a commit in a later turn of the loop.  Then it looks once more by itself, directly before the send
(``LooksWhenSending``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from bmq.core.aio.standstill import Standstill
from bmq.meta.kv import Changes, Commit, Compare, Entry, KeyValue, Write


@runtime_checkable
class LooksWhenSending(Protocol):
    """A store whose commits wait before they are sent: for room, for a connection, or for a turn of the loop."""

    def looking(self, standstill: Standstill) -> KeyValue:
        """Return the same store, with commits that look for a standstill directly before the send."""


class KvForClients:
    """A ``KeyValue`` whose commits look for a standstill first.  The store is its owner's to close."""

    def __init__(self, kv: KeyValue, standstill: Standstill) -> None:
        self._kv = kv.looking(standstill) if isinstance(kv, LooksWhenSending) else kv
        self._standstill = standstill

    def __repr__(self) -> str:
        return f"<KvForClients of {self._kv!r}>"

    async def get(self, key: str) -> Entry | None:
        return await self._kv.get(key)

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        return self._kv.list(prefix, after=after, limit=limit)

    async def revision(self) -> int:
        return await self._kv.revision()

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        await self._standstill.looked()
        return await self._kv.commit(compares, writes)

    async def grant(self, ttl_s: float) -> int:
        return await self._kv.grant(ttl_s)

    async def keep_alive(self, lease: int) -> float:
        return await self._kv.keep_alive(lease)

    async def revoke(self, lease: int) -> None:
        await self._kv.revoke(lease)

    def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        return self._kv.watch(prefix, after_revision=after_revision)

    async def close(self) -> None:
        """Do nothing: other parts of the process use the store."""

"""Processes of several versions in one history: the one before this, this one, and a later one.

What differs is what the versions write and read, no more: a later version's fields and records are not known yet, so
they are made up, by the rules that every format follows (a reader skips what it does not know).

| | the version before | a later one |
|---|---|---|
| values in the store | a partition's record without ``settled`` and ``last`` | an unknown field more in each |
| journals | as now | records of an unknown kind between the checkpoints |

Messages between processes: ``cluster_versions``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from bmq.meta.kv import Changes, Commit, Compare, Entry, Event, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue

LATER_RECORD = 9
"""A kind of journal record that this version does not know."""
_UNKNOWN = re.compile(rb',"settled":true|,"last":\[-?\d+,-?\d+\]')
_LATER = b',"of a later version":[{"a":1}]}'


class Version(Enum):
    """The version of one process."""

    EARLIER = "earlier"
    THIS = "this"
    LATER = "later"


class SpokenKeyValue(MemoryKeyValue):
    """A store's client whose process is of another version: values are written, and read, as that one does."""

    version = Version.THIS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.sees = asyncio.Event()
        """While it is not set, watches show no change.  Calls have their responses meanwhile."""
        self.sees.set()

    def _written(self, value: bytes) -> bytes:
        if self.version is Version.EARLIER:
            return _UNKNOWN.sub(b"", value)
        if self.version is Version.LATER and value.startswith(b"{") and len(value) > 2 and value.endswith(b"}"):
            return value[:-1] + _LATER
        return value

    def _read_as(self, entry: Entry) -> Entry:
        if self.version is Version.EARLIER:
            return replace(entry, value=_UNKNOWN.sub(b"", entry.value))
        if self.version is Version.LATER and entry.value.endswith(_LATER):
            return replace(entry, value=entry.value[: -len(_LATER)] + b"}")
        return entry

    async def get(self, key: str) -> Entry | None:
        entry = await super().get(key)
        return None if entry is None else self._read_as(entry)

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        async for entry in super().list(prefix, after=after, limit=limit):
            yield self._read_as(entry)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        if self.version is Version.THIS:
            return await super().commit(compares, writes)
        spoken = [replace(each, value=self._written(each.value)) if isinstance(each, Put) else each for each in writes]
        done = await super().commit(compares, spoken)
        own = {
            each.key: (each.value, said.value)
            for each, said in zip(writes, spoken, strict=True)
            if isinstance(each, Put) and isinstance(said, Put)
        }
        current = {}
        for key, entry in done.current.items():
            if entry is not None:
                mine = own.get(key)  # by which a process knows its own write again
                is_mine = mine is not None and mine[1] == entry.value
                entry = replace(entry, value=mine[0]) if is_mine and mine else self._read_as(entry)
            current[key] = entry
        return replace(done, current=current)

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        async for changes in super().watch(prefix, after_revision=after_revision):
            await self.sees.wait()
            yield [self._event(event) for event in changes]

    def _event(self, event: Event) -> Event:
        return event if event.entry is None else replace(event, entry=self._read_as(event.entry))

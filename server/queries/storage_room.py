"""Space and health of storage, for the console and the metrics of a ``Node``."""

from __future__ import annotations

import asyncio

from bmq.console.state import RootFacts, SpaceFacts, StorageFacts
from bmq.core.aio.memoized import Memoized
from bmq.core.urls import without_userinfo
from bmq.storage.filesystem import FileSystem, StorageError, Unsupported
from bmq.storage.health import Examined, StorageHealth

TELL_S = 5.0
"""Time-out of the requests to storage."""
KEPT_S = 15.0
"""Facts are shown for so long before they are read again: without a quota, HDFS counts the root's files for them."""


class StorageRoom:
    """Space and health of storage, read once for all requests of ``KEPT_S``.

    ``known`` are the facts that were read last; None before the first.
    """

    def __init__(self, root: str, fs: FileSystem) -> None:
        self._root = root
        self._fs = fs
        self.known: StorageFacts | None = None
        self.facts = Memoized(self._read, KEPT_S).get

    async def _read(self) -> StorageFacts:
        self.known = await self._ask()
        return self.known

    async def _ask(self) -> StorageFacts:
        """Return the facts that storage reports in time; the others are null, with the reason."""
        facts = StorageFacts(
            root=without_userinfo(self._root), datanodes=None, space=None, usage=None,
            is_in_safe_mode=False, missing_blocks=0, error="",
        )  # fmt: skip
        fs = self._fs
        try:
            async with asyncio.timeout(TELL_S):
                if isinstance(fs, Examined):
                    _add_health(facts, await fs.health())
                if fs.url.startswith("hdfs:"):
                    facts["datanodes"] = await fs.replicas_max()
        except Unsupported:  # HDFS reports its datanodes to superusers only
            return facts
        except TimeoutError:
            facts["error"] = f"storage did not answer within {TELL_S:g} s"
        except StorageError as error:
            facts["error"] = f"{type(error).__name__}: {error}"
        return facts


def _add_health(facts: StorageFacts, health: StorageHealth) -> None:
    if health.capacity_bytes:
        facts["space"] = SpaceFacts(
            capacity_bytes=health.capacity_bytes,
            used_bytes=health.capacity_bytes - health.remaining_bytes,
            remaining_bytes=health.remaining_bytes,
        )
    facts["is_in_safe_mode"] = health.is_in_safe_mode
    facts["missing_blocks"] = health.missing_blocks
    if health.root_names:
        facts["usage"] = RootFacts(
            bytes=health.root_bytes,
            bytes_quota=_quota(health.root_bytes_quota),
            names=health.root_names,
            names_quota=_quota(health.root_names_quota),
        )


def _quota(number: int) -> int | None:
    return number if number >= 0 else None

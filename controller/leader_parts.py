"""The parts of a leader besides the assignment: they begin and end with its term."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bmq.controller.feature_finalizer import FeatureFinalizer
from bmq.controller.kv_commit import Guard
from bmq.controller.store_age import StoreAge
from bmq.controller.store_upkeep import StoreUpkeep
from bmq.controller.topics.access_walks import AccessWalks
from bmq.controller.topics.deletion import TopicCleaner
from bmq.controller.topics.topics import TopicAdmin


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderParts:
    """The parts of one term.  None: this process does without the part."""

    topics: TopicAdmin
    """Changes of topics and configs."""
    cleaner: TopicCleaner
    """Removal of deleted topics' files."""
    access: AccessWalks | None = None
    """Owner, group and mode of topics' files."""
    upkeep: StoreUpkeep | None = None
    """Upkeep of etcd; None for every other store."""
    age: StoreAge | None = None
    """The store's count: an old copy of the store has a lower count."""
    features: FeatureFinalizer | None = None
    """Levels of features."""

    async def begin(self) -> None:
        """Check that this process may lead, before the term's first write.

        Raises StoreOlder, UnsupportedLevel or KvError.
        """
        if self.age is not None:
            await self.age.begin()
        if self.features is not None:
            await self.features.begin()

    def tasks(self, since: int) -> list[asyncio.Task[None]]:
        """Start and return the endless tasks of the parts; if a task ends, the term ends.

        ``since``: the revision of the election.
        """
        tasks: list[asyncio.Task[None]] = []
        if self.age is not None:
            tasks.append(asyncio.create_task(self.age.run(), name="store age"))
        if self.features is not None:
            tasks.append(asyncio.create_task(self.features.run(since), name="levels of features"))
        if self.upkeep is not None:
            tasks.append(asyncio.create_task(self.upkeep.run(), name="store upkeep"))
        return tasks

    async def start(self) -> None:
        """Begin the work on topics, deleted topics and access.  Call ``close`` even if this fails."""
        await self.topics.start()
        await self.cleaner.start()
        if self.access is not None:
            await self.access.start()

    async def close(self) -> None:
        """End the work begun by ``start``: also on topics if another part fails."""
        try:
            await self.cleaner.close()
            if self.access is not None:
                await self.access.close()
        finally:
            await self.topics.close()


MakeParts = Callable[[Guard], LeaderParts]
"""Makes the parts of one term.  It neither reads nor writes: the store may be older than storage."""

"""The partitions that this process reads and does not own: each is followed for as long as it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import Turns
from bmq.core.model import PartitionKey
from bmq.proxy.routing.remote_tail import RemoteTail
from bmq.proxy.routing.tail_fetcher import TailFetcher

UNREAD_S = 30.0
"""Time after which a partition without readers that was not asked for is followed no longer."""
QUIET_S = 900.0
"""Time after which a partition that has readers, but was not asked for, is followed no longer: its reader may have gone
without closing its session."""


class TailFetchers:
    """The partitions that are followed, each by the link to its owner.

    ``link_to`` returns the link to a partition's owner, None if it has none; ``is_read`` returns whether a parked fetch
    or a session follows the partition.
    """

    def __init__(
        self, link_to: Callable[[PartitionKey], TailFetcher | None], is_read: Callable[[PartitionKey], bool]
    ) -> None:
        self._link_to = link_to
        self._is_read = is_read
        self._tails: dict[PartitionKey, RemoteTail] = {}
        self._links: dict[PartitionKey, TailFetcher] = {}

    def __repr__(self) -> str:
        return f"<TailFetchers {len(self._tails)} partitions, {sum(t.is_open for t in self._tails.values())} open>"

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._tails

    def __len__(self) -> int:
        """Return the number of partitions that are followed."""
        return len(self._tails)

    def keys(self) -> Collection[PartitionKey]:
        """Return the partitions that are followed."""
        return self._tails.keys()

    def follow(self, key: PartitionKey) -> RemoteTail | None:
        """Return the partition's view; None while its owner has not sent its state yet.

        The first call makes the process follow the partition, and each call keeps it from being forgotten.
        """
        tail = self._tails.get(key)
        now = asyncio.get_running_loop().time()
        if tail is None:
            tail = self._tails[key] = RemoteTail(key, now)
            self.place(key)
        tail.looked_at = now
        return tail if tail.is_open else None

    def place(self, key: PartitionKey) -> None:
        """Move a partition to the link of its present owner, if it is followed."""
        tail = self._tails.get(key)
        if tail is None:
            return
        old, new = self._links.get(key), self._link_to(key)
        if old is new:
            return
        if old is not None:
            del self._links[key]
            old.leave(tail)
        if new is not None:
            self._links[key] = new
            new.join(tail)

    def forget(self, key: PartitionKey) -> None:
        """Follow a partition no longer."""
        tail = self._tails.pop(key, None)
        link = self._links.pop(key, None)
        if tail is not None and link is not None:
            link.leave(tail)

    def sweep(self) -> Steps[None]:
        """Forget partitions that are not read any more, with a pause after some of them."""
        now = asyncio.get_running_loop().time()
        turns = Turns()
        for key, tail in tuple(self._tails.items()):
            if turns.is_over():
                yield
            unseen_s = now - tail.looked_at
            if unseen_s > UNREAD_S and (unseen_s > QUIET_S or not self._is_read(key)):
                self.forget(key)

"""The partitions that this process reads and does not own: followed while somebody looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import Turns
from bmq.core.model import PartitionKey
from bmq.proxy.routing.remote_tail import Tail
from bmq.proxy.routing.tail_fetcher import TailFetcher

UNREAD_S = 30.0
"""A partition that nobody reads and nobody has looked at for so long is followed no longer."""
QUIET_S = 900.0
"""Nor one that is read, but where nothing happened for so long: its reader may have gone without a word."""


class TailFetchers:
    """``link_to`` gives the link to whoever is to own a partition, None when nobody is; ``is_read`` says whether a
    fetch is parked, or a session waits, for it."""

    def __init__(
        self, link_to: Callable[[PartitionKey], TailFetcher | None], is_read: Callable[[PartitionKey], bool]
    ) -> None:
        self._link_to = link_to
        self._is_read = is_read
        self._tails: dict[PartitionKey, Tail] = {}
        self._links: dict[PartitionKey, TailFetcher] = {}

    def __repr__(self) -> str:
        return f"<RemoteTails {len(self._tails)} partitions, {sum(t.is_open for t in self._tails.values())} open>"

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._tails

    def __len__(self) -> int:
        return len(self._tails)

    def keys(self) -> Collection[PartitionKey]:
        """The partitions that are followed."""
        return self._tails.keys()

    def follow(self, key: PartitionKey) -> Tail | None:
        """The partition once its owner is heard."""
        tail = self._tails.get(key)
        now = asyncio.get_running_loop().time()
        if tail is None:
            tail = self._tails[key] = Tail(key, now)
            self.place(key)
        tail.looked_at = now
        return tail if tail.is_open else None

    def place(self, key: PartitionKey) -> None:
        """Its owner may be another; nothing happens to a partition that is not followed."""
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
        """It is followed no longer."""
        tail = self._tails.pop(key, None)
        link = self._links.pop(key, None)
        if tail is not None and link is not None:
            link.leave(tail)

    def sweep(self) -> Steps[None]:
        """Forget what is not read any more, with a pause after some partitions."""
        now = asyncio.get_running_loop().time()
        turns = Turns()
        for key, tail in tuple(self._tails.items()):
            if turns.is_over():
                yield
            unseen_s = now - tail.looked_at
            if unseen_s > UNREAD_S and (unseen_s > QUIET_S or not self._is_read(key)):
                self.forget(key)

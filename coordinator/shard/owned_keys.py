"""The keys of a principal in this process, for a bound: its groups, or its transactional ids.

Each shard counts its own keys, and takes its counts along when it moves.  Two kinds of shards make the sum wrong:

=================================  ====================================  =============================================
shard                              danger                                rule
=================================  ====================================  =============================================
it loads, after a failover         its keys do not count: the user gets  while it loads, no key is created under a
                                   more keys than the bound              bound; the request waits as for its own shard,
                                                                         then gets COORDINATOR_LOAD_IN_PROGRESS
another process has it by now,     the other process's keys count, too:  before a refusal, each shard whose keys count
and this process does not know     POLICY_VIOLATION ends Java's clients  proves its ownership
=================================  ====================================  =============================================

A shard that cannot be loaded must not stop the new keys of all users with a bound.  So it is left out of the sum once a
try has failed and requests no longer wait for it (``Shard.failure``).  The user may then own more keys than the bound
when the shard is back, as after any move of a shard.

After a failover many requests wait for many shards.  The requests share a future, and every load of a shard has a
single callback.  So the memory grows with the sum of requests and shards, not with their product.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from bmq.coordinator.shard.freshness import Freshness
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.shard_kinds import ShardId


class KeyCounts(Protocol):
    """The state of a shard that counts its keys."""

    def owned_by(self, principal: str) -> int:
        """Return how many keys count for a principal."""


class CountedShard(Protocol):
    """A loaded shard whose keys count."""

    @property
    def state(self) -> KeyCounts: ...

    @property
    def freshness(self) -> Freshness: ...

    @property
    def is_closed(self) -> bool: ...


class ComingShard(Protocol):
    """A shard that is being loaded."""

    @property
    def id(self) -> ShardId: ...

    def load(self) -> asyncio.Future[None] | None:
        """Load it if needed; return the future of the load's end, None if there is nothing to wait for."""


class OwnedKeys:
    """The keys of one kind in this process."""

    def __init__(
        self,
        loaded: Callable[[], Iterable[CountedShard]],
        coming: Callable[[], Sequence[ComingShard]],
        wait_s: float,
    ) -> None:
        """Count the keys of the shards that ``loaded`` returns; ``coming`` returns the shards that are being loaded.

        ``wait_s``: the seconds that a request waits for a shard.
        """
        self._loaded = loaded
        self._coming = coming
        self._wait_s = wait_s
        self._known: asyncio.Future[None] | None = None  # done once no shard is coming; of all requests that wait
        self._followed: set[asyncio.Future[None]] = set()  # the loads that have the callback

    def count(self, principal: str) -> int:
        """Return how many keys of the loaded shards count for a principal."""
        return sum(shard.state.owned_by(principal) for shard in self._loaded())

    async def wait_known(self) -> None:
        """Wait until the keys of all shards are known, as long as requests wait for a shard."""
        if not self._follow():
            return
        if self._known is None:
            self._known = asyncio.get_running_loop().create_future()
        await asyncio.wait((self._known,), timeout=self._wait_s)

    def _follow(self) -> bool:
        """Have the end of each coming shard's load looked at.  Return False if there is no load to wait for."""
        loads = [load for shard in self._coming() if (load := shard.load()) is not None]
        for load in loads:
            if load not in self._followed:
                self._followed.add(load)
                load.add_done_callback(self._load_ended)
        return bool(loads)

    def _load_ended(self, load: asyncio.Future[None]) -> None:
        """Let waiting requests go on, unless shards are coming: the view may have shown new shards."""
        self._followed.discard(load)
        if self._known is not None and not self._follow():
            known, self._known = self._known, None
            known.set_result(None)

    def has_room(self, principal: str, bound: int) -> bool:
        """Return whether the principal may own a further key.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS while that is not known.
        """
        if self.count(principal) >= bound:
            return False
        coming = self._coming()
        if coming:
            message = f"{coming[0].id} is being loaded, and its keys count for the bound of {principal:.200}"
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        return True

    async def prove(self, principal: str, bound: int) -> None:
        """Return once shards with ``bound`` keys of the principal have proven their ownership.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS if they have fewer keys: the client must ask again.
        """
        shards = [shard for shard in self._loaded() if shard.state.owned_by(principal)]
        proofs = [shard.freshness.prove_again() for shard in shards]
        proven = 0
        for shard, error in zip(shards, await asyncio.gather(*proofs, return_exceptions=True), strict=True):
            if error is None and not shard.is_closed:
                proven += shard.state.owned_by(principal)
            elif error is not None and not isinstance(error, RequestError):
                raise error
        if proven < bound:
            message = f"shards with {proven} keys of {principal:.200} have proven their ownership, the bound is {bound}"
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)

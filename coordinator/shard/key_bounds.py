"""The bound on a principal's keys in this process: ``max_groups`` or ``max_transactional_ids`` of a user.

A key counts for the principal whose request created it, from then on until it is gone:

=================  ========================================  ===========================
key                created by                                gone when
=================  ========================================  ===========================
group              its first JoinGroup or OffsetCommit       it is deleted, or it expires
transactional id   its first InitProducerId                  it expires
=================  ========================================  ===========================

The state of each shard counts the shard's own keys.  Before a key is created, the sum over the shards of this process
is compared with the bound (``shard.owned_keys``).  So no count can drift, and a shard takes its counts along when it
moves.
"""

from __future__ import annotations

import logging

from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.security.client_quotas import Bounds

_log = logging.getLogger(__name__)


class PastBound(RequestError):
    """The principal ``principal`` owns ``bound`` keys by the count of this process, which is yet to be proven."""

    def __init__(self, kind: str, principal: str, bound: int) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, f"{kind} ({bound}) of {principal:.200} is reached")
        self.principal = principal
        self.bound = bound


class KeyBounds:
    """The bounds of a process on its keys of a kind.  ``refused`` counts the requests that were refused."""

    def __init__(self, bounds: Bounds, keys: OwnedKeys, kind: str, *, key: str, remedy: str) -> None:
        """Compare the bounds of a ``kind``, a name of ``BOUND_KEYS``, with ``keys``, the keys of this process.

        ``key`` and ``remedy`` are for the log: the word for a key, and what makes room.
        """
        self.refused = 0
        self._bounds = bounds
        self._keys = keys
        self._kind = kind
        self._key = key
        self._remedy = remedy

    def __repr__(self) -> str:
        return f"<KeyBounds {self._kind} refused={self.refused}>"

    async def wait_known(self, principal: str) -> None:
        """Wait, before a creation, until it is known how much a principal with a bound owns (``OwnedKeys``)."""
        bound = self._bounds.find_bound(self._kind, principal)
        if bound is not None and self._keys.count(principal) < bound:
            await self._keys.wait_known()

    def check(self, principal: str) -> None:
        """Raise PastBound if the principal may create no further key in this process.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS while that is not known.
        """
        bound = self._bounds.find_bound(self._kind, principal)
        if bound is not None and not self._keys.has_room(principal, bound):
            raise PastBound(self._kind, principal, bound)

    async def refuse(self, past: PastBound, key: str) -> None:
        """Prove the count of a refusal, then count and log it: the responses have no text for the reason.

        Raises RequestError as ``OwnedKeys.prove``, and COORDINATOR_LOAD_IN_PROGRESS if the bound was raised or removed
        meanwhile: the client must ask again.
        """
        await self._keys.prove(past.principal, past.bound)
        bound = self._bounds.find_bound(self._kind, past.principal)
        if bound is None or bound > past.bound:
            message = f"{self._kind} of {past.principal:.200} was raised or removed during the request"
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        self.refused += 1
        owned = self._keys.count(past.principal)
        _log.warning(
            "%s %.200r not created: its user has as many %ss in this process as it may have; %s, or raise its quota",
            self._key,
            key,
            self._key,
            self._remedy,
            extra=fields(error=f"{past.principal:.200} owns {owned}, {self._kind} is {past.bound}"),
        )

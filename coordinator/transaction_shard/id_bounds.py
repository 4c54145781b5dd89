"""The bound on a principal's transactional ids in this process: ``max_transactional_ids`` of a user.

A transactional id counts for the principal that created it by its first InitProducerId, from then on until it expires.
Each shard counts its own ids (``transaction_shard.state``).  Before an id is created, the sum over the shards of this
process is compared with the bound (``shard.owned_keys``).  So no count can drift, and a shard takes its counts along
when it moves.
"""

from __future__ import annotations

import logging

from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.security.client_quotas import MAX_TRANSACTIONAL_IDS, Bounds

_log = logging.getLogger(__name__)


class TransactionalIdBounds:
    """The bounds of one process.  ``refused`` counts the requests that were refused."""

    def __init__(self, bounds: Bounds, ids: OwnedKeys) -> None:
        """Compare ``bounds`` with ``ids``, the transactional ids of this process."""
        self.refused = 0
        self._bounds = bounds
        self._ids = ids

    def __repr__(self) -> str:
        return f"<TransactionalIdBounds refused={self.refused}>"

    async def wait_known(self, principal: str) -> None:
        """Wait, before a creation, until it is known how much a principal with a bound owns (``OwnedKeys``)."""
        bound = self._bounds.find_bound(MAX_TRANSACTIONAL_IDS, principal)
        if bound is not None and self._ids.count(principal) < bound:
            await self._ids.wait_known()

    def may_create(self, principal: str) -> bool:
        """Return whether the principal may create a further transactional id in this process.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS while that is not known.
        """
        bound = self._bounds.find_bound(MAX_TRANSACTIONAL_IDS, principal)
        return bound is None or self._ids.has_room(principal, bound)

    async def refuse(self, principal: str, transactional_id: str) -> None:
        """Prove the count of a refusal, then count and log it: InitProducerId has no text for the reason.

        Raises RequestError as ``OwnedKeys.prove``.
        """
        bound = self._bounds.find_bound(MAX_TRANSACTIONAL_IDS, principal)
        if bound is None:
            message = f"{MAX_TRANSACTIONAL_IDS} of {principal:.200} was removed during the request"
            raise RequestError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        await self._ids.prove(principal, bound)
        self.refused += 1
        owned = self._ids.count(principal)
        _log.warning(
            "transactional id %.200r not created: its user has as many transactional ids in this process as it may"
            " have; let ids of the user expire, or raise its quota",
            transactional_id,
            extra=fields(error=f"{principal:.200} owns {owned}, {MAX_TRANSACTIONAL_IDS} is {bound}"),
        )

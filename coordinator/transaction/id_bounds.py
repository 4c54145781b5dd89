"""The bound on a principal's transactional ids in this process: ``max_transactional_ids`` of a user.

A transactional id counts for the principal that created it by its first InitProducerId, from then on until it expires.
Each shard counts its own ids (``transaction_shard.state``).  Before an id is created, the sum over the shards of this
process is compared with the bound.  So no count can drift, and a shard takes its counts along when it moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bmq.core.logging.fields import fields
from bmq.meta.security.client_quotas import MAX_TRANSACTIONAL_IDS, Bounds

_log = logging.getLogger(__name__)


class TransactionalIdBounds:
    """The bounds of one process.  ``refused`` counts the requests that were refused."""

    def __init__(self, bounds: Bounds, owned_by: Callable[[str], int]) -> None:
        """``owned_by`` returns how many transactional ids of a principal this process serves."""
        self.refused = 0
        self._bounds = bounds
        self._owned_by = owned_by

    def __repr__(self) -> str:
        return f"<TransactionalIdBounds refused={self.refused}>"

    def may_create(self, principal: str) -> bool:
        """Return whether the principal may create a further transactional id in this process."""
        bound = self._bounds.find_bound(MAX_TRANSACTIONAL_IDS, principal)
        return bound is None or self._owned_by(principal) < bound

    def report(self, principal: str, transactional_id: str) -> None:
        """Count and log a refused id: InitProducerId has no text for the reason."""
        self.refused += 1
        bound = self._bounds.find_bound(MAX_TRANSACTIONAL_IDS, principal)
        owned = self._owned_by(principal)
        _log.warning(
            "transactional id %.200r not created: its user has as many transactional ids in this process as it may"
            " have; let ids of the user expire, or raise its quota",
            transactional_id,
            extra=fields(error=f"{principal:.200} owns {owned}, {MAX_TRANSACTIONAL_IDS} is {bound}"),
        )

"""The bound on a principal's groups in this process: ``max_groups`` of a user.

A group counts for the principal that created it, from then on until it is deleted or expires: by its first JoinGroup,
or by its first OffsetCommit.  Each shard counts its own groups (``shard.state``).  Before a group is created, the sum
over the shards of this process is compared with the bound.  So no count can drift, and a shard takes its counts along
when it moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.security.client_quotas import MAX_GROUPS, Bounds

_log = logging.getLogger(__name__)


class GroupBounds:
    """The bounds of one process.  ``refused`` counts the requests that were refused."""

    def __init__(self, bounds: Bounds, owned_by: Callable[[str], int]) -> None:
        """``owned_by`` returns how many groups of a principal this process serves."""
        self.refused = 0
        self._bounds = bounds
        self._owned_by = owned_by

    def __repr__(self) -> str:
        return f"<GroupBounds refused={self.refused}>"

    def check(self, principal: str, group_id: str) -> None:
        """Raise RequestError POLICY_VIOLATION if the principal may create no further group in this process.

        JoinGroup and OffsetCommit have no text for the reason, so it is logged.
        """
        bound = self._bounds.find_bound(MAX_GROUPS, principal)
        if bound is None:
            return
        owned = self._owned_by(principal)
        if owned < bound:
            return
        self.refused += 1
        _log.warning(
            "group %.200r not created: its user has as many groups in this process as it may have; delete groups of"
            " the user, or raise its quota",
            group_id,
            extra=fields(error=f"{principal:.200} owns {owned}, {MAX_GROUPS} is {bound}"),
        )
        raise RequestError(ErrorCode.POLICY_VIOLATION, f"{MAX_GROUPS} ({bound}) of {principal:.200} is reached")

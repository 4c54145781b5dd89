"""The bound on a principal's groups in this process: ``max_groups`` of a user.

A group counts for the principal that created it, from then on until it is deleted or expires: by its first JoinGroup,
or by its first OffsetCommit.  Each shard counts its own groups (``shard.state``).  Before a group is created, the sum
over the shards of this process is compared with the bound (``shard.owned_keys``).  So no count can drift, and a shard
takes its counts along when it moves.
"""

from __future__ import annotations

import logging

from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.security.client_quotas import MAX_GROUPS, Bounds

_log = logging.getLogger(__name__)


class PastBound(RequestError):
    """The principal ``principal`` owns ``bound`` groups by the count of this process, which is yet to be proven."""

    def __init__(self, principal: str, bound: int) -> None:
        super().__init__(ErrorCode.POLICY_VIOLATION, f"{MAX_GROUPS} ({bound}) of {principal:.200} is reached")
        self.principal = principal
        self.bound = bound


class GroupBounds:
    """The bounds of one process.  ``refused`` counts the requests that were refused."""

    def __init__(self, bounds: Bounds, groups: OwnedKeys) -> None:
        """Compare ``bounds`` with ``groups``, the groups of this process."""
        self.refused = 0
        self._bounds = bounds
        self._groups = groups

    def __repr__(self) -> str:
        return f"<GroupBounds refused={self.refused}>"

    async def wait_known(self, principal: str) -> None:
        """Wait, before a creation, until it is known how much a principal with a bound owns (``OwnedKeys``)."""
        bound = self._bounds.find_bound(MAX_GROUPS, principal)
        if bound is not None and self._groups.count(principal) < bound:
            await self._groups.wait_known()

    def check(self, principal: str) -> None:
        """Raise PastBound if the principal may create no further group in this process.

        Raises RequestError COORDINATOR_LOAD_IN_PROGRESS while that is not known.
        """
        bound = self._bounds.find_bound(MAX_GROUPS, principal)
        if bound is not None and not self._groups.has_room(principal, bound):
            raise PastBound(principal, bound)

    async def refuse(self, past: PastBound, group_id: str) -> None:
        """Prove the count of a refusal, then count and log it: JoinGroup and OffsetCommit have no text for the reason.

        Raises RequestError as ``OwnedKeys.prove``.
        """
        await self._groups.prove(past.principal, past.bound)
        self.refused += 1
        owned = self._groups.count(past.principal)
        _log.warning(
            "group %.200r not created: its user has as many groups in this process as it may have; delete groups of"
            " the user, or raise its quota",
            group_id,
            extra=fields(error=f"{past.principal:.200} owns {owned}, {MAX_GROUPS} is {past.bound}"),
        )

"""Bound on the memory of members in all groups of a process.

A member whose connection is lost is kept until its session ends, half an hour at most.  So a client that joins ever
more groups, or the same group under ever new ids, would fill the process's memory without this bound.
"""

from __future__ import annotations

from bmq.coordinator.group.group import Group
from bmq.core.aio.byte_budget import ByteBudget

GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES = 3_000, 2_000, 1_000
"""About the memory of a group, a member and a pending member, without the members' metadata."""


def membership_bytes(group: Group) -> int:
    """Return about the memory of a group's members, pending ones included; 0 if it has none."""
    members, pending = len(group.members), len(group.pending)
    if not members and not pending:
        return 0
    return GROUP_BYTES + members * MEMBER_BYTES + pending * PENDING_BYTES + group.members.metadata_bytes


class MembershipAccount:
    """One shard's part of the process's budget, by group.  With no room in it, no member may be added."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._groups: dict[str, int] = {}
        self._is_closed = False

    def charge(self, group: Group) -> None:
        """Account for the group's present members, in place of its earlier ones.  Does nothing after ``close``."""
        if self._is_closed:
            return
        now = membership_bytes(group)
        before = self._groups.get(group.group_id, 0)
        if now == before:
            return
        self._budget.give_back(before)
        self._budget.take(now)
        if now:
            self._groups[group.group_id] = now
        else:
            del self._groups[group.group_id]

    def forget(self, group_id: str) -> None:
        """Return a deleted group's bytes to the budget."""
        self._budget.give_back(self._groups.pop(group_id, 0))

    def close(self) -> None:
        """Return all bytes of the shard to the budget.  Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.give_back(sum(self._groups.values()))
            self._groups = {}

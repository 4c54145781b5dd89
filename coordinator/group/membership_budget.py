"""The memory of members in all groups of a process.

Members are kept for the length of their session though their connection is gone, for half an hour at most; a client
that joins ever more groups, or ever under a new id, must not take the process's memory.
"""

from __future__ import annotations

from bmq.coordinator.group.group import Group

GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES = 3_000, 2_000, 1_000
"""Of memory, about, without the members' metadata."""


def membership_bytes(group: Group) -> int:
    """Return about the memory of the members, and of those that have only an id yet; 0 when there are none."""
    members, pending = len(group.members), len(group.pending)
    if not members and not pending:
        return 0
    return GROUP_BYTES + members * MEMBER_BYTES + pending * PENDING_BYTES + group.members.metadata_bytes


class MembershipBudget:
    """``used`` of ``bytes_max``, of the groups of all shards."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0

    @property
    def is_exhausted(self) -> bool:
        return self.used >= self.bytes_max


class MembershipAccount:
    """What the groups of one shard have of the budget."""

    def __init__(self, budget: MembershipBudget) -> None:
        self._budget = budget
        self._groups: dict[str, int] = {}
        self._is_closed = False

    def charge(self, group: Group) -> None:
        """Account for the group as it is now."""
        if self._is_closed:
            return
        now = membership_bytes(group)
        before = self._groups.get(group.group_id, 0)
        if now == before:
            return
        self._budget.used += now - before
        if now:
            self._groups[group.group_id] = now
        else:
            del self._groups[group.group_id]

    def forget(self, group_id: str) -> None:
        """The group is deleted."""
        self._budget.used -= self._groups.pop(group_id, 0)

    def close(self) -> None:
        """Give everything back.  Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._budget.used -= sum(self._groups.values())
            self._groups = {}

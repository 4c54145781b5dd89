"""kafka-python's consumer, for polls that end before a rejoin of the group does."""

from __future__ import annotations

from typing import Any

from kafka import KafkaConsumer
from kafka.structs import MemberState


class GroupConsumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer whose short polls finish each rejoin of its group.

    kafka-python 3.0 compares the metadata with the leader's last assignment, and starts a rejoin at a difference.  The
    leader makes a new assignment at the JoinGroup response: the difference ends.  If a poll ends before the SyncGroup
    response, the next poll sees no reason for a rejoin.  Heartbeats stay disabled, and the session ends.
    """

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[Any, list[Any]]:
        """Request an unfinished rejoin again, and return the records that come within ``timeout_ms``."""
        if self.group_metadata().state == MemberState.REBALANCING:
            self._coordinator.request_rejoin()
        found: dict[Any, list[Any]] = super().poll(timeout_ms, max_records, update_offsets)
        return found

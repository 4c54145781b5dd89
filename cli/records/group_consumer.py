"""kafka-python's consumer, for polls that end before a rejoin of the group does."""

from __future__ import annotations

from typing import Any

import kafka
from kafka import KafkaConsumer
from kafka.structs import MemberState

from bmq.cli.usage import UsageError

PRIVATE_PARTS = ("_coordinator", "_coordinator.request_rejoin")
"""Attributes of kafka-python's consumer that are used here and not in its documentation."""


class GroupConsumer(KafkaConsumer):  # type: ignore[misc]
    """A consumer whose short polls finish each rejoin of its group.

    kafka-python 3.0 compares the metadata with the leader's last assignment, and starts a rejoin at a difference.  The
    leader makes a new assignment at the JoinGroup response: the difference ends.  If a poll ends before the SyncGroup
    response, the next poll sees no reason for a rejoin.  Heartbeats stay disabled, and the session ends.
    """

    def __init__(self, *topics: str, **configs: Any) -> None:
        """Connect as kafka-python does.  Raises UsageError if ``group_id`` is set and a private part is missing."""
        super().__init__(*topics, **configs)
        if self.config["group_id"] is not None:
            try:
                check_parts(self)
            except UsageError:
                self.close(autocommit=False, timeout_ms=0)
                raise

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[Any, list[Any]]:
        """Request an unfinished rejoin again, and return the records that come within ``timeout_ms``."""
        if self.group_metadata().state == MemberState.REBALANCING:
            self._coordinator.request_rejoin()
        found: dict[Any, list[Any]] = super().poll(timeout_ms, max_records, update_offsets)
        return found


def check_parts(consumer: object) -> None:
    """Raise UsageError if ``consumer`` lacks one of ``PRIVATE_PARTS``: a poll would end with an AttributeError."""
    for path in PRIVATE_PARTS:
        part: object = consumer
        for name in path.split("."):
            if not hasattr(part, name):
                raise UsageError(
                    f"kafka-python {kafka.__version__} has no KafkaConsumer.{path}, without which short polls lose a"
                    " rejoin of the group: install kafka-python 3.0.12, or leave out --group"
                )
            part = getattr(part, name)

"""Names shared by every layer: identities of partitions and of segments."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition, by its topic's id: names may be reused, ids never."""

    topic_id: uuid.UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class SegmentName(NamedTuple):
    """A segment's identity: its first offset, and the epoch and number by which its owner registered it.

    ``n`` counts the owner's registrations within its epoch.
    """

    base: int
    epoch: int
    n: int

    @property
    def order(self) -> tuple[int, int]:
        """The order of registration: epoch, then number (rule 5)."""
        return (self.epoch, self.n)

    def __str__(self) -> str:
        return f"{self.base:020d}-{self.epoch:08d}-{self.n:04d}"

"""Names shared by every layer: identities of partitions and of segments."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """A partition, by its topic's id: names may be reused, ids never."""

    topic_id: uuid.UUID
    partition: int
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.topic_id, self.partition)))

    def __hash__(self) -> int:
        return self._hash  # a batch looks a dozen tables up by its partition

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition}"


class SegmentName(NamedTuple):
    """A segment's identity: its first offset, and the epoch and number by which its owner registered it.

    ``n`` counts the owner's registrations within its epoch.  ``cleaning`` is 0 but for the result of a compaction: a
    cleaned segment has the base of its first source, epoch and n of its last source, and ``cleaned_name`` numbers it.
    Only closed segments are cleaned.
    """

    base: int
    epoch: int
    n: int
    cleaning: int = 0

    @property
    def registration(self) -> tuple[int, int]:
        """Epoch and number of the registration: a cleaned segment has those of its last source."""
        return (self.epoch, self.n)

    @property
    def order(self) -> tuple[int, int, int]:
        """The order in which segments hide others (rule 5): by registration, then by cleaning."""
        return (self.epoch, self.n, self.cleaning)

    def __str__(self) -> str:
        text = f"{self.base:020d}-{self.epoch:08d}-{self.n:04d}"
        return f"{text}-{self.cleaning:08d}" if self.cleaning else text


CLEANING_MAX = 99_999_999
"""The largest number of a cleaning: a name has eight digits for it."""


def cleaned_name(sources: Sequence[SegmentName]) -> SegmentName:
    """Return the name of the segment that replaces ``sources``: live neighbours, in order of offsets.

    By the reading rule (rule 5) the segment hides every source, whichever of them are left.  The cleaning number is
    above the number of every source, so a name is never used twice.  Raises ValueError without a source, or if the
    number would not fit into a name.
    """
    if not sources:
        raise ValueError("a cleaned segment has a source")
    cleaning = max(source.cleaning for source in sources) + 1
    if cleaning > CLEANING_MAX:
        raise ValueError(f"cleaning {cleaning} of {sources[-1]} does not fit into a segment's name")
    return SegmentName(sources[0].base, sources[-1].epoch, sources[-1].n, cleaning)

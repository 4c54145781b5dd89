"""Events and effects of a transactional id's state machine (``machine``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bmq.coordinator.transaction.records import NO_EPOCH, NO_PRODUCER_ID, StoredTransaction, TopicPartitions
from bmq.core.errors import ErrorCode

# -------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happens to a transactional id.

    ``fresh_id``: a new producer id, for an event that is handled again after ``NeedProducerId``.
    """

    fresh_id: int = NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId(Event):
    """A producer begins, or goes on after an error: then it names its producer id and epoch.

    A transactional id that the event creates counts for ``principal``.
    """

    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    principal: str = ""

    @property
    def is_resumed(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class OfProducer(Event):
    """A request of a producer that has been initialized."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(OfProducer):
    """Partitions become part of the transaction, which begins with the first of them.

    ``client_version``: 2 if each end of the client's transactions bumps the epoch, else 0.
    """

    partitions: tuple[TopicPartitions, ...]
    client_version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(OfProducer):
    """Question whether the producer has an open transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(OfProducer):
    """The producer commits, by EndTxn 0-4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(OfProducer):
    """The producer aborts, by EndTxn 0-4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitV2(OfProducer):
    """The producer commits, by EndTxn 5: the end bumps the epoch (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortV2(OfProducer):
    """The producer aborts, by EndTxn 5: the end bumps the epoch (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue(Event):
    """Time to look whether the open transaction has taken longer than its time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten(Event):
    """Every partition of the transaction has its marker, or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused(Event):
    """Time to look whether the id has been unused for ``retention_ms``."""

    retention_ms: int


# ------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class NeedProducerId:
    """Effect: get a new producer id, and handle the event again with it.  Nothing has changed."""


class Store(NamedTuple):
    """Effect: write the value, None for a tombstone.  The effects that follow wait until it is durable."""

    value: StoredTransaction | None


class Respond(NamedTuple):
    """Effect: respond once what was written before is durable.

    Producer id and epoch are those of the producer from now on, as a request for them has it.
    """

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Effect: send the markers of the stored transaction; then ``MarkersWritten``."""


Effect = NeedProducerId | Store | Respond | SendMarkers

"""The events of one assigned partition, and the effects that they have (``broker.assignment.assigned_partition``)."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.broker.assignment.open_state import OpenState
from bmq.broker.partition.release import ReleaseNote
from bmq.meta.ownership import PartitionRecord

# --------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Asked:
    """A client looked the partition up, and does not wait for it."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """A request waits for the partition; it is among ``waiters``."""


@dataclass(frozen=True, slots=True)
class TurnCame:
    """The partition is the first in the queue of this state, and there is room to open one more.

    ``is_lost``: this process is not a member of the cluster now.
    """

    queue: OpenState
    is_lost: bool


@dataclass(frozen=True, slots=True)
class RecordRead:
    """The record was read before the takeover.

    ``live_owner``: the other live member that it names; "" if it names none, or cannot be decoded, or was not read.
    ``is_written``: it lists a segment that is not known to be closed, so that batches will come.
    """

    live_owner: str
    epoch: int
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The partition is this broker's, and accepts batches."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The takeover has failed, or the ownership has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class WentOffline:
    """The takeover or the ownership has ended OFFLINE, in this epoch."""

    reason: str
    epoch: int


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The present owner has released the partition."""

    note: ReleaseNote


@dataclass(frozen=True, slots=True)
class MemberGone:
    """The present owner is not a member any more."""


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """The timer with this number has expired."""

    number: int


@dataclass(frozen=True, slots=True)
class RecordChecked:
    """The record of the OFFLINE partition was read; None: it cannot be decoded."""

    record: PartitionRecord | None


@dataclass(frozen=True, slots=True)
class CheckFailed:
    """The store did not return the record of the OFFLINE partition."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The partition is not assigned to this broker any more."""


Event = (
    Asked
    | Awaited
    | TurnCame
    | RecordRead
    | Opened
    | Failed
    | WentOffline
    | HandedOver
    | MemberGone
    | TimerExpired
    | RecordChecked
    | CheckFailed
    | Withdrawn
)


# -------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Request to put the partition at the end of the queue of its state. -> TurnCame."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Request to read the record, and to take the partition over unless it is WAITING then.

    -> RecordRead, then Opened, Failed or WentOffline.
    """


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Request for a timer. -> TimerExpired."""

    delay_ms: int
    number: int


@dataclass(frozen=True, slots=True)
class AwaitMembership:
    """Request for a timer that expires once this process is a member again. -> TimerExpired."""

    number: int


@dataclass(frozen=True, slots=True)
class AwaitOwner:
    """Request to notify the partition if this member goes. -> MemberGone."""

    owner: str


@dataclass(frozen=True, slots=True)
class ForgetOwner:
    """Request to end that."""

    owner: str


@dataclass(frozen=True, slots=True)
class PrecreateSegment:
    """Request to create the file of the first segment of the claim with this epoch, since a request waits."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DropPrecreated:
    """Request to drop that file: this broker is not to own the partition."""


@dataclass(frozen=True, slots=True)
class CheckRecord:
    """Request to read the record of the OFFLINE partition. -> RecordChecked or CheckFailed."""


@dataclass(frozen=True, slots=True)
class WakeRequests:
    """Request to wake the requests that wait: the partition is open, or OFFLINE."""


@dataclass(frozen=True, slots=True)
class ReportServedAgain:
    """Request to report to the operator that a partition that was OFFLINE is open."""


Effect = (
    Enqueue
    | TakeOver
    | SetTimer
    | AwaitMembership
    | AwaitOwner
    | ForgetOwner
    | PrecreateSegment
    | DropPrecreated
    | CheckRecord
    | WakeRequests
    | ReportServedAgain
)

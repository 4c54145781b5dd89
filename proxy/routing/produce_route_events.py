"""The events and effects of a partition's route.  They are plain classes, since each part needs some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import NO_PRODUCER_ID, Appended
from bmq.core.wire.produce import Transaction


class RoutedBatch:
    """One batch, a part of a produce request.

    ================== ========================================================================================
    ``token``          the caller's, by which it completes the part
    ``held_until``     time on the loop's clock at which every wait for an owner ends, in each process; set when the
                       request arrives
    ``is_unsure``      the batch was sent, and it is not known whether it was accepted
    ``is_wanted``      the caller still waits for the result
    ``restarts_order`` all parts sent before it have their results.  A broker that has refused a part goes on
                       refusing its producer's later ones, which may have been under way already, until it gets a
                       part with this mark.
    ``transaction``    of a transactional batch, else None
    ================== ========================================================================================
    """

    __slots__ = (
        "acks_all",
        "connection",
        "held_until",
        "is_unsure",
        "is_wanted",
        "number",
        "producer_id",
        "records",
        "restarts_order",
        "size",
        "token",
        "transaction",
    )

    def __init__(
        self,
        records: memoryview,
        producer_id: int,
        *,
        acks_all: bool,
        token: object = None,
        held_until: float = math.inf,
        transaction: Transaction | None = None,
    ) -> None:
        self.records = records
        self.size = len(records)
        self.producer_id = producer_id
        self.acks_all = acks_all
        self.token = token
        self.transaction = transaction
        self.number = -1
        self.connection = -1
        self.held_until = held_until
        self.restarts_order = False
        self.is_unsure = False
        self.is_wanted = True

    def __repr__(self) -> str:
        unsure = " unsure" if self.is_unsure else ""
        return f"<RoutedBatch {self.number} of {self.producer_id}, {self.size} bytes{unsure}>"

    @property
    def is_idempotent(self) -> bool:
        """True if the batch carries a producer id, so that it may be sent again."""
        return self.producer_id > NO_PRODUCER_ID


# --------------------------------------------------------------------------------------------------------------- events


class Assigned:
    """The assignment of the partition to process ``incarnation``, or to none that can be sent to ("").

    ``is_up``: the connection to it is up.
    """

    __slots__ = ("incarnation", "is_up")

    def __init__(self, incarnation: str, *, is_up: bool) -> None:
        self.incarnation = incarnation
        self.is_up = is_up


class ConnectionUp:
    """The connection to ``incarnation`` is up."""

    __slots__ = ("incarnation",)

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation


class ConnectionLost:
    """The connection to ``incarnation`` is lost.  A ``Lost`` follows for each part that was under way over it."""

    __slots__ = ("incarnation",)

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation


class Submitted:
    """A part to be sent behind all others."""

    __slots__ = ("part",)

    def __init__(self, part: RoutedBatch) -> None:
        self.part = part


class Answered:
    """The owner's response to a part; ``appended`` is its result if ``code`` is NONE.

    ``record_errors`` are those of ``core.errors.RequestError``.
    """

    __slots__ = ("appended", "code", "message", "part", "record_errors")

    def __init__(
        self,
        part: RoutedBatch,
        code: ErrorCode = ErrorCode.NONE,
        message: str = "",
        appended: Appended | None = None,
        record_errors: Sequence[tuple[int, str | None]] = (),
    ) -> None:
        self.part = part
        self.code = code
        self.message = message
        self.appended = appended
        self.record_errors = record_errors


class Lost:
    """The loss of a part: the connection ended before its response came.

    ``was_sent`` False: the owner certainly did not get it.
    """

    __slots__ = ("part", "was_sent")

    def __init__(self, part: RoutedBatch, *, was_sent: bool) -> None:
        self.part = part
        self.was_sent = was_sent


class Expired:
    """The caller no longer waits for the part: its request's time is up, or its client has gone."""

    __slots__ = ("part",)

    def __init__(self, part: RoutedBatch) -> None:
        self.part = part


class Tick:
    """The time ``ProduceRoute.wake_at`` has come."""

    __slots__ = ()


Event = Assigned | ConnectionUp | ConnectionLost | Submitted | Answered | Lost | Expired | Tick


# -------------------------------------------------------------------------------------------------------------- effects


class Send:
    """Parts to be sent to ``incarnation``, in this order."""

    __slots__ = ("incarnation", "parts")

    def __init__(self, incarnation: str, parts: Sequence[RoutedBatch]) -> None:
        self.incarnation = incarnation
        self.parts = parts


class Fail:
    """A part's result: an error."""

    __slots__ = ("code", "message", "part", "record_errors")

    def __init__(
        self, part: RoutedBatch, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str | None]] = ()
    ) -> None:
        self.part = part
        self.code = code
        self.message = message
        self.record_errors = record_errors


class Done:
    """A part's result: it was accepted."""

    __slots__ = ("appended", "part")

    def __init__(self, part: RoutedBatch, appended: Appended) -> None:
        self.part = part
        self.appended = appended


class GiveBack:
    """Parts that must be submitted again, in this order and before any newer one, once the route is open.

    They are not the route's any more.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[RoutedBatch]) -> None:
        self.parts = parts


Effect = Send | Fail | Done | GiveBack

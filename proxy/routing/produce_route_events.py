"""What a partition's route hears and has done: events in, effects out.  Plain classes: there are some for each part."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import NO_PRODUCER_ID, Appended


class RoutedBatch:
    """One batch.  ``token`` is whatever its sender needs to answer it.  ``held_until`` is set once, when its request
    arrives: every wait for an owner, here and there, ends then.

    ``is_unsure``: it was sent, and whether it was accepted is not known.  ``is_wanted``: somebody waits for its answer.
    ``is_anew``: all answers to what was sent before it are in.  A broker that has refused a part goes on refusing that
    producer's later ones, which may have been on their way already, until one comes that is.
    """

    __slots__ = (
        "acks_all",
        "connection",
        "held_until",
        "is_anew",
        "is_unsure",
        "is_wanted",
        "number",
        "producer_id",
        "records",
        "size",
        "token",
    )

    def __init__(
        self,
        records: memoryview,
        producer_id: int,
        *,
        acks_all: bool,
        token: object = None,
        held_until: float = math.inf,
    ) -> None:
        self.records = records
        self.size = len(records)
        self.producer_id = producer_id
        self.acks_all = acks_all
        self.token = token
        self.number = -1
        self.connection = -1
        self.held_until = held_until
        self.is_anew = False
        self.is_unsure = False
        self.is_wanted = True

    def __repr__(self) -> str:
        return f"<Part {self.number} of {self.producer_id}, {self.size} bytes{' unsure' if self.is_unsure else ''}>"

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID


# ----------------------------------------------------------------------------------------------------------- events


class Assigned:
    """``incarnation`` is to own the partition, "" nobody; ``is_up``: it can be sent to now.

    ``is_ours``: this process is to own it, and nothing goes this way any more.
    """

    __slots__ = ("incarnation", "is_ours", "is_up")

    def __init__(self, incarnation: str, *, is_up: bool, is_ours: bool = False) -> None:
        self.incarnation = incarnation
        self.is_up = is_up
        self.is_ours = is_ours


class ConnectionUp:
    """``incarnation`` can be sent to."""

    __slots__ = ("incarnation",)

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation


class ConnectionLost:
    """``incarnation`` cannot be sent to any more.  ``Lost`` tells of each part that was under way there."""

    __slots__ = ("incarnation",)

    def __init__(self, incarnation: str) -> None:
        self.incarnation = incarnation


class NoBrokerLeft:
    """Nobody is left who could own the partition, and we do not wait for somebody to come: we are leaving."""

    __slots__ = ()


class Submitted:
    """A new part, behind all others."""

    __slots__ = ("part",)

    def __init__(self, part: RoutedBatch) -> None:
        self.part = part


class Answered:
    """The owner's answer; ``appended`` when ``code`` is NONE."""

    __slots__ = ("appended", "code", "message", "part")

    def __init__(
        self, part: RoutedBatch, code: ErrorCode = ErrorCode.NONE, message: str = "", appended: Appended | None = None
    ) -> None:
        self.part = part
        self.code = code
        self.message = message
        self.appended = appended


class Lost:
    """The connection has gone before the answer came.  ``was_sent`` False: certainly nothing of it arrived."""

    __slots__ = ("part", "was_sent")

    def __init__(self, part: RoutedBatch, *, was_sent: bool) -> None:
        self.part = part
        self.was_sent = was_sent


class Expired:
    """Nobody waits for the part any more: its request's time is up, or its client has gone."""

    __slots__ = ("part",)

    def __init__(self, part: RoutedBatch) -> None:
        self.part = part


class Tick:
    """``ProduceRoute.wake_at`` has come."""

    __slots__ = ()


Event = Assigned | ConnectionUp | ConnectionLost | NoBrokerLeft | Submitted | Answered | Lost | Expired | Tick


# ---------------------------------------------------------------------------------------------------------- effects


class Send:
    """Have these parts sent, in this order."""

    __slots__ = ("incarnation", "parts")

    def __init__(self, incarnation: str, parts: Sequence[RoutedBatch]) -> None:
        self.incarnation = incarnation
        self.parts = parts


class Fail:
    """Answer the part with an error."""

    __slots__ = ("code", "message", "part")

    def __init__(self, part: RoutedBatch, code: ErrorCode, message: str) -> None:
        self.part = part
        self.code = code
        self.message = message


class Done:
    """Answer the part."""

    __slots__ = ("appended", "part")

    def __init__(self, part: RoutedBatch, appended: Appended) -> None:
        self.part = part
        self.appended = appended


Effect = Send | Fail | Done

"""Markers on their way in joined requests: calls with a marker, their places, and the code of each place."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import Generic, NamedTuple, TypeVar

from bmq.core.errors import ErrorCode, FormatError
from bmq.core.records.control import TransactionMarker
from bmq.core.rpc.messages.markers import code_of

K = TypeVar("K", bound=Hashable)
_GONE = frozenset({ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class MarkerCall(Generic[K]):
    """One call: a marker for a number of places, and the codes so far.  ``lost``: the code of a broken connection."""

    __slots__ = ("codes", "is_done", "left", "lost", "marker")

    def __init__(self, marker: TransactionMarker, places: int, lost: ErrorCode) -> None:
        self.marker = marker
        self.left = places
        self.lost = lost
        self.codes: dict[K, ErrorCode] = {}
        self.is_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self, place: K, code: ErrorCode) -> None:
        """Set the code of a place, unless it has one."""
        if place in self.codes:
            return
        self.codes[place] = code
        self.left -= 1
        if not self.left and not self.is_done.done():
            self.is_done.set_result(None)


class MarkerAt(NamedTuple, Generic[K]):
    """A call's marker for one place: the ``Question`` of ``coordinator.joined_requests``."""

    call: MarkerCall[K]
    place: K

    @property
    def is_over(self) -> bool:
        return self.call.is_done.done()

    def refuse(self, code: ErrorCode) -> None:
        self.respond(code)

    def respond(self, code: ErrorCode) -> None:
        """Set the place's code, by the other process.

        The response that a topic does not exist is not believed: it would count as the end of the transaction there,
        and the other process's catalog may be behind.
        """
        self.call.set(self.place, self.call.lost if code in _GONE else code)


def set_codes(taken: Sequence[MarkerAt[K]], numbers: Sequence[int]) -> None:
    """Set the codes of a response, in the order of the request.  Raises FormatError if their number differs."""
    if len(numbers) != len(taken):
        raise FormatError(f"{len(numbers)} codes for {len(taken)} markers")
    for one, number in zip(taken, numbers, strict=True):
        one.respond(code_of(number))

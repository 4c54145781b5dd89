"""The route of one partition's batches to its owner: the batches under way, returned, and free to be sent. Pure.

Events go into ``ProduceRoute.handle``, effects come out; time is an argument.  Batches are also called parts: of their
requests.  A part waits for an owner in the partition's ``endpoint.produce.queue``, not here: a route is open when it is
submitted.  A part that comes back, refused or lost, is given back to the front of the queue.  The following holds,
whatever the order of events:

* Parts are sent in the order of their numbers, those of a part that is submitted again being new.
* While parts are under way to a former owner, or over a former connection, or after a refusal, nothing is sent.  First
  all of them must have their responses, or be lost.  Then all that came back is given back at once, in order.
* A part is given back only if it was certainly not accepted, or if it carries a producer id, by which its owner
  recognises a repetition (rule 9).
* A refused part is not given back if a newer part was accepted: in the log it would come after the parts behind it.
* If an idempotent producer's batch is given up, so are its later batches when they come back.  An owner without a state
  of the producer would take the first of them for the producer's first batch.

``under_way`` has the parts that were sent and have no response yet; ``returned`` has the parts that came back
meanwhile. ``RouteState`` describes the states; ``TABLE`` has a function for each (state, event) pair
(``core.transitions``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from bmq.core.aio.backoff import Backoff
from bmq.core.errors import ErrorCode
from bmq.core.transitions import Cell
from bmq.proxy.routing.produce_route_events import (
    Answered,
    Assigned,
    ConnectionLost,
    ConnectionUp,
    Done,
    Effect,
    Event,
    Expired,
    Fail,
    GiveBack,
    Lost,
    RoutedBatch,
    Send,
    Submitted,
    Tick,
)

RETRY_S = Backoff(0.02, 0.5)
"""Pause after a refusal until the same owner is tried again: a partition that moves takes tens of milliseconds to open.
"""
REFUSALS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Errors of a broker that certainly did not accept the part.  A broker may see a new topic later than this process."""
UNDECIDED = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})
"""Errors of a broker that has accepted the part, and lost the partition before it was flushed."""


class RouteState(Enum):
    """The state of a route."""

    UNASSIGNED = "no owner is assigned; nothing is under way"
    UNREACHED = "the connection to the owner is down; nothing is under way"
    REFUSED = "the owner has refused a part, and is tried again after a pause; nothing is under way"
    SETTLING = "parts are under way whose responses or losses must come before any other part is sent"
    OPEN = "parts are sent as they come"


class ProduceRoute:
    """One partition's route.  There is room until ``credit_bytes`` are under way, those that came back counted."""

    __slots__ = (
        "_accepted",
        "_broken",
        "_connection",
        "_next",
        "_refusals",
        "_restarts_order",
        "_retry_at",
        "bytes",
        "credit_bytes",
        "is_up",
        "owner",
        "returned",
        "state",
        "under_way",
    )  # fmt: skip

    def __init__(self, credit_bytes: int) -> None:
        self.credit_bytes = credit_bytes
        self.state = RouteState.UNASSIGNED
        self.owner = ""
        self.is_up = False
        self.under_way: dict[RoutedBatch, None] = {}  # in the order of sending
        self.returned: list[RoutedBatch] = []  # empty while nothing is under way
        self.bytes = 0
        self._restarts_order = True
        self._next = 0
        self._accepted = -1  # the largest number of an accepted part
        self._connection = 0  # number of the present connection: a late loss may be of an earlier one
        self._refusals = 0
        self._retry_at = 0.0
        self._broken: dict[int, tuple[int, int]] = {}  # by producer: first part given up, last number at that time

    def __repr__(self) -> str:
        return (
            f"<ProduceRoute to {self.owner or 'no owner'} {self.state.name} under way={len(self.under_way)}"
            f" returned={len(self.returned)} {self.bytes}/{self.credit_bytes}>"
        )

    @property
    def has_room(self) -> bool:
        """True while less than ``credit_bytes`` are under way."""
        return self.bytes < self.credit_bytes

    @property
    def is_open(self) -> bool:
        """True if a part that is submitted now is sent at once."""
        return self.state is RouteState.OPEN

    @property
    def is_idle(self) -> bool:
        """True if no part is under way."""
        return not self.under_way

    @property
    def wake_at(self) -> float | None:
        """Time at which ``Tick`` is due, unless another event comes first; None if it is not."""
        if self.state is RouteState.REFUSED:
            return self._retry_at
        return min((part.held_until for part in self.returned), default=None)

    def handle(self, event: Event, now: float) -> Sequence[Effect]:
        """Return the effects of an event.  ``now`` is in seconds, and never goes back."""
        cell = TABLE[self.state, type(event)]
        assert not isinstance(cell, Cell), f"{event} in {self.state.name}"
        return cell(self, event, now)

    # ------------------------------------------------------------------------------------------------------- assignment

    def _on_assigned(self, event: Assigned, now: float) -> Sequence[Effect]:
        if event.incarnation == self.owner:
            return ()
        self.owner, self.is_up = event.incarnation, event.is_up
        self._connection += 1
        self._refusals, self._retry_at = 0, now
        return self._settle(now)

    def _on_up(self, event: ConnectionUp, now: float) -> Sequence[Effect]:
        if event.incarnation != self.owner or self.is_up:
            return ()
        self.is_up = True
        self._connection += 1
        return self._settle(now)

    def _on_down(self, event: ConnectionLost, now: float) -> Sequence[Effect]:
        if event.incarnation != self.owner or not self.is_up:
            return ()
        self.is_up = False
        return self._settle(now)

    # ------------------------------------------------------------------------------------------------------------ parts

    def _on_handed_open(self, event: Submitted, now: float) -> Sequence[Effect]:
        self._enter(event.part)
        return (self._send((event.part,)),)

    def _on_handed(self, event: Submitted, now: float) -> Sequence[Effect]:
        """Let a part that comes while the route is not open come back."""
        if not self.under_way:
            return (GiveBack((event.part,)),)
        self._enter(event.part)
        self.returned.append(event.part)
        return ()

    def _enter(self, part: RoutedBatch) -> None:
        part.number = self._next
        self._next += 1
        self.bytes += part.size

    def _send(self, parts: Sequence[RoutedBatch]) -> Send:
        for part in parts:
            self.under_way[part] = None
            part.connection = self._connection
            part.restarts_order = self._restarts_order
            self._restarts_order = False
        return Send(self.owner, parts)

    # ---------------------------------------------------------------------------------------------------------- results

    def _on_answered(self, event: Answered, now: float) -> Sequence[Effect]:
        part, code = event.part, event.code
        del self.under_way[part]
        if code is ErrorCode.NONE:
            assert event.appended is not None
            self.bytes -= part.size
            self._accepted = max(self._accepted, part.number)
            self._refusals = 0
            done = (Done(part, event.appended),) if part.is_wanted else ()
            return done if self.state is RouteState.OPEN else (*done, *self._settle(now))
        if code in REFUSALS or (code in UNDECIDED and part.is_idempotent):
            part.is_unsure |= code in UNDECIDED
            if part.connection == self._connection and self._retry_at <= now:  # once for all parts under way
                self._refusals += 1
                self._retry_at = now + RETRY_S.pause(self._refusals)
            self.returned.append(part)
            return self._settle(now)
        failed = self._give_up(part, code, event.message, event.record_errors)
        return failed if self.state is RouteState.OPEN else (*failed, *self._settle(now))

    def _on_lost(self, event: Lost, now: float) -> Sequence[Effect]:
        part = event.part
        del self.under_way[part]
        if part.connection == self._connection:
            self.is_up = False
        failed: Sequence[Effect] = ()
        if not event.was_sent or part.is_idempotent:
            part.is_unsure |= event.was_sent
            self.returned.append(part)
        else:
            message = "the connection to the broker broke: it may be in the log"
            failed = self._give_up(part, ErrorCode.REQUEST_TIMED_OUT, message)
        return (*failed, *self._settle(now))

    def _on_expired(self, event: Expired, now: float) -> Sequence[Effect]:
        part = event.part
        part.is_wanted = False
        if part in self.returned:
            self.returned.remove(part)
            self._give_up(part, ErrorCode.NONE, "")
            return self._sift(now)
        return ()  # under way: its response or loss comes later

    def _on_tick(self, event: Tick, now: float) -> Sequence[Effect]:
        if self.state is RouteState.REFUSED:
            return self._settle(now)
        return self._sift(now)

    # -------------------------------------------------------------------------------------------------------- decisions

    def _settle(self, now: float) -> Sequence[Effect]:
        """Find the state; once nothing is under way, give back what came back."""
        if self.under_way:
            self.state = RouteState.SETTLING
            return ()
        effects = self._give_back(now)
        self._broken.clear()
        if not self.owner:
            self.state = RouteState.UNASSIGNED
        elif not self.is_up:
            self.state = RouteState.UNREACHED
        elif now < self._retry_at:
            self.state = RouteState.REFUSED
        else:
            self.state = RouteState.OPEN
            self._restarts_order = True
        return effects

    def _give_back(self, now: float) -> Sequence[Effect]:
        failed = self._sift(now)
        parts, self.returned = self.returned, []
        if not parts:
            return failed
        self.bytes = 0
        return (*failed, GiveBack(parts))

    def _sift(self, now: float) -> Sequence[Effect]:
        """Put the returned parts in order, and give up the parts that must not be sent any more."""
        if not self.returned:
            return ()
        self.returned.sort(key=lambda part: part.number)
        returned, self.returned = self.returned, []
        failed: list[Effect] = []
        for part in returned:  # in order: if one is given up, so are its producer's parts behind it
            reason = self._reason_against(part, now)
            if reason is None:
                self.returned.append(part)
            else:
                code = ErrorCode.REQUEST_TIMED_OUT if part.is_unsure else ErrorCode.NOT_LEADER_OR_FOLLOWER
                failed += self._give_up(part, code, reason)
        return failed

    def _reason_against(self, part: RoutedBatch, now: float) -> str | None:
        if not part.is_wanted:
            return "its client has gone, or its time is up"
        if part.held_until <= now:
            return "its time is up, and parts that were sent with it have no result yet"
        if part.number < self._accepted and not part.is_unsure:
            return "refused, while a later batch was accepted"
        first, last = self._broken.get(part.producer_id, (0, -1))
        if first < part.number <= last:
            return "an earlier batch of this producer was refused"
        return None

    def _give_up(
        self, part: RoutedBatch, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str | None]] = ()
    ) -> Sequence[Effect]:
        self.bytes -= part.size
        if part.is_idempotent:
            first, last = self._broken.get(part.producer_id, (part.number, -1))
            if last < 0 and len(self._broken) >= _BROKEN_MAX:
                self._prune_broken()
            self._broken[part.producer_id] = (min(first, part.number), self._next - 1)
        return (Fail(part, code, message, record_errors),) if part.is_wanted else ()

    def _prune_broken(self) -> None:
        """Forget the producers whose parts up to their last loss all have their results."""
        oldest = min((part.number for part in self.under_way), default=self._next)
        self._broken = {producer: span for producer, span in self._broken.items() if span[1] >= oldest}


_BROKEN_MAX = 64
"""Number of producers in ``_broken`` from which on producers without parts under way are removed: they no longer
matter. """


E = TypeVar("E", bound=Event)
Handler = Callable[[ProduceRoute, E, float], Sequence[Effect]]
_Row = tuple[type[Any], tuple[Handler[Any] | Cell, ...]]


def _on(
    event: type[E],
    unassigned: Handler[E] | Cell,
    unreached: Handler[E] | Cell,
    refused: Handler[E] | Cell,
    settling: Handler[E] | Cell,
    is_open: Handler[E] | Cell,
) -> _Row:
    """Return an event's row: a cell for each state."""
    return event, (unassigned, unreached, refused, settling, is_open)


_R, NEVER = ProduceRoute, Cell.NEVER  # responses and losses come only in states with parts under way
# fmt: off
_ROWS = (
    # event             UNASSIGNED       UNREACHED        REFUSED          SETTLING         OPEN
    _on(Assigned,       _R._on_assigned, _R._on_assigned, _R._on_assigned, _R._on_assigned, _R._on_assigned),
    _on(ConnectionUp,   _R._on_up,       _R._on_up,       _R._on_up,       _R._on_up,       _R._on_up),
    _on(ConnectionLost, _R._on_down,     _R._on_down,     _R._on_down,     _R._on_down,     _R._on_down),
    _on(Submitted,      _R._on_handed,   _R._on_handed,   _R._on_handed,   _R._on_handed,   _R._on_handed_open),
    _on(Answered,       NEVER,           NEVER,           NEVER,           _R._on_answered, _R._on_answered),
    _on(Lost,           NEVER,           NEVER,           NEVER,           _R._on_lost,     _R._on_lost),
    _on(Expired,        _R._on_expired,  _R._on_expired,  _R._on_expired,  _R._on_expired,  _R._on_expired),
    _on(Tick,           _R._on_tick,     _R._on_tick,     _R._on_tick,     _R._on_tick,     _R._on_tick),
)
# fmt: on
TABLE: Mapping[tuple[RouteState, type[Event]], Handler[Any] | Cell] = {
    (state, event): cell for event, cells in _ROWS for state, cell in zip(RouteState, cells, strict=True)
}
"""The function, or NEVER, of each (state, event type)."""

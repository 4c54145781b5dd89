"""One assigned partition on its way to being open: pure.

Events in, effects out. ``broker.assignment.assigned_partitions`` reads, opens and waits, and reports; the decisions are
here. ``TABLE`` has a function for each (state, event) pair (``core.transitions``).

Timers are numbered: one that was set in an earlier state, or earlier in the same state, is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bmq.broker.assignment import events as ev
from bmq.broker.assignment.events import Effect, Event
from bmq.broker.assignment.open_state import OpenState
from bmq.broker.config import BrokerConfig
from bmq.broker.partition.release import ReleaseNote
from bmq.core.transitions import Cell

OFFLINE_LOOK_MS = 10_000
"""Time between two reads of the record of a partition that is OFFLINE: a repair releases it.  After 1, 2, 4, ... 64
reads, and then every 64, it is taken over again in any case: storage may return by now what it could not before."""
OFFLINE_LOOKS_MAX = 64
REPAIR_OWNER = "repair-"
"""Prefix of the owner's name in a record while ``bmq segment repair`` is at work."""


class AssignedPartition:
    """A partition that this broker is to own, whether it is open or not."""

    __slots__ = (
        "_config",
        "_failures",
        "_next_epoch",
        "_note",
        "_offline_epoch",
        "_offline_looks",
        "_present_owner",
        "_timer_number",
        "_waits_for_nobody",
        "reason",
        "state",
        "waiters",
        "was_open",
    )

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.state = OpenState.QUEUED
        self.waiters: list[Any] = []
        """The requests that wait for the partition; the shell's, opaque here."""
        self.reason = ""
        """The reason why it is not open, as far as it is known; "" if it only takes time."""
        self.was_open = False
        """True if its record may name this broker as the owner."""
        self._timer_number = 0  # of the timer set last
        self._failures = 0
        self._waits_for_nobody = False  # the next takeover waits for no other owner
        self._note: ReleaseNote | None = None
        self._next_epoch = 0  # while WAITING: that of this broker's claim
        self._present_owner = ""  # while WAITING
        self._offline_epoch = 0  # while OFFLINE: that of the ownership that ended so
        self._offline_looks = 0

    def __repr__(self) -> str:
        return f"<{self.state.name} failures={self._failures} waiters={len(self.waiters)} {self.reason}>"

    @property
    def needs_record(self) -> bool:
        """True unless it is known that no other owner need be waited for."""
        return not self._waits_for_nobody

    def take_note(self) -> ReleaseNote | None:
        """Return the release note for the takeover that begins now; None if there is none. It is used once."""
        note, self._note = self._note, None
        return note

    def handle(self, event: Event) -> list[Effect]:
        """Handle an event as the table says for the present state; return the effects to perform, in order."""
        cell = TABLE[self.state, type(event)]
        if isinstance(cell, Cell):
            assert cell is Cell.LATE, f"{event} in {self.state.name}"
            return []
        return cell(self, event)

    # ----------------------------------------------------------------------------------------------------- queues

    def _on_asked(self, event: ev.Asked) -> list[Effect]:
        """Open it ahead of the background queue: a client has looked it up."""
        self.state = OpenState.ASKED
        return [ev.Enqueue()]

    def _on_awaited(self, event: ev.Awaited) -> list[Effect]:
        """Open it before all that no request waits for."""
        self.state = OpenState.AWAITED
        return [ev.Enqueue()]

    def _on_turn(self, event: ev.TurnCame) -> list[Effect]:
        """Begin the takeover; if this process is not a member, wait until it is."""
        if event.queue is not self.state:
            return []  # it was moved to another queue
        if event.is_lost:
            self.state = OpenState.DELAYED
            self.reason = "this process is not a member of the cluster now"
            return [ev.AwaitMembership(self._next_timer())]
        self.state = OpenState.OPENING
        return [ev.TakeOver()]

    # --------------------------------------------------------------------------------------------------- hand-over

    def _on_record_read(self, event: ev.RecordRead) -> list[Effect]:
        """Wait for the owner if another live member is, unless it has released the partition meanwhile.

        Else the first file is created ahead, while the predecessor's are fenced, if a batch waits or will come soon.
        """
        if not event.live_owner or self._waits_for_nobody:
            self._waits_for_nobody = False
            is_wanted = event.is_written or (self.waiters and event.epoch)
            return [ev.PrecreateSegment(event.epoch + 1)] if is_wanted else []
        self.state = OpenState.WAITING
        self._present_owner, self._next_epoch = event.live_owner, event.epoch + 1
        effects: list[Effect] = [ev.AwaitOwner(event.live_owner), self._set_timer(self._config.handover_wait_ms)]
        return [*effects, ev.PrecreateSegment(self._next_epoch)] if self.waiters else effects

    def _on_awaited_in_hand_over(self, event: ev.Awaited) -> list[Effect]:
        """Create the first file ahead, for the request."""
        return [ev.PrecreateSegment(self._next_epoch)]

    def _on_handed_over(self, event: ev.HandedOver) -> list[Effect]:
        """Open it ahead of the background queue, by the release note."""
        self._note = event.note
        return self._enqueue_ahead()

    def _on_handed_over_early(self, event: ev.HandedOver) -> list[Effect]:
        """Go on with the takeover: the record may have been read before it was released."""
        self._note, self._waits_for_nobody = event.note, True
        return []

    def _on_note(self, event: ev.HandedOver) -> list[Effect]:
        """Keep the release note for the next takeover."""
        self._note = event.note
        return []

    def _on_owner_gone(self, event: ev.MemberGone) -> list[Effect]:
        """Open it ahead of the background queue, by fencing: its owner releases nothing any more."""
        return self._enqueue_ahead()

    def _on_waited(self, event: ev.TimerExpired) -> list[Effect]:
        """Open it ahead of the background queue, by fencing: its owner has not released it in time."""
        return self._enqueue_ahead() if event.number == self._timer_number else []

    def _enqueue_ahead(self) -> list[Effect]:
        """Open it ahead of the background queue; its takeover waits for no other owner."""
        effects: list[Effect] = [ev.ForgetOwner(self._present_owner)] if self.state is OpenState.WAITING else []
        self._waits_for_nobody = True
        if self.waiters:
            self.state = OpenState.AWAITED
        else:
            self.state = OpenState.ASKED
        return [*effects, ev.Enqueue()]

    # -------------------------------------------------------------------------------------------------- being open

    def _on_opened(self, event: ev.Opened) -> list[Effect]:
        """Serve the requests that wait."""
        self.state = OpenState.OPEN
        self.reason, self.was_open = "", True
        self._note, self._waits_for_nobody = None, False  # those that came too late: they say nothing of a later owner
        was_offline = self._offline_looks > 0
        self._failures = self._offline_looks = 0
        return [ev.WakeRequests(), ev.ReportServedAgain()] if was_offline else [ev.WakeRequests()]

    def _on_failed(self, event: ev.Failed) -> list[Effect]:
        """Try again, ever more slowly and without end."""
        self.state = OpenState.DELAYED
        self.reason = event.reason
        self._failures += 1
        return [self._set_timer(self._config.retry_ms.pause(self._failures))]

    def _on_retry(self, event: ev.TimerExpired) -> list[Effect]:
        """Open it again, in its turn."""
        if event.number != self._timer_number:
            return []
        if self.waiters:
            self.state = OpenState.AWAITED
        else:
            self.state = OpenState.QUEUED
        return [ev.Enqueue()]

    # ----------------------------------------------------------------------------------------------------- OFFLINE

    def _on_offline(self, event: ev.WentOffline) -> list[Effect]:
        """Refuse the requests that wait; look from time to time whether an operator has repaired it."""
        self.state = OpenState.OFFLINE
        self.reason = f"partition is offline: {event.reason}"
        self._offline_epoch = event.epoch
        return [ev.WakeRequests(), self._set_timer(OFFLINE_LOOK_MS)]

    def _on_look(self, event: ev.TimerExpired) -> list[Effect]:
        """Read its record."""
        if event.number != self._timer_number:
            return []
        self._offline_looks += 1
        return [ev.CheckRecord()]

    def _on_record_checked(self, event: ev.RecordChecked) -> list[Effect]:
        """Take it over again if it was released since, or in any case now and then, unless a repair is under way."""
        looks, record = self._offline_looks, event.record
        is_due = looks % OFFLINE_LOOKS_MAX == 0 or looks & (looks - 1) == 0
        if record is not None:  # if it cannot be decoded, the takeover reports that
            is_due = is_due and not record.owner.startswith(REPAIR_OWNER)
            is_due = is_due or (record.epoch > self._offline_epoch and not record.owner)
        if not is_due:
            return [self._set_timer(OFFLINE_LOOK_MS)]
        self.state = OpenState.QUEUED
        return [ev.Enqueue()]

    def _on_check_failed(self, event: ev.CheckFailed) -> list[Effect]:
        """Look again later."""
        return [self._set_timer(OFFLINE_LOOK_MS)]

    # ----------------------------------------------------------------------------------------------------- the end

    def _on_withdrawn(self, event: ev.Withdrawn) -> list[Effect]:
        """Forget it; every later event is late."""
        self.state = OpenState.WITHDRAWN
        return []

    def _on_withdrawn_in_takeover(self, event: ev.Withdrawn) -> list[Effect]:
        """Forget it, and the file that was created ahead."""
        self.state = OpenState.WITHDRAWN
        return [ev.DropPrecreated()]

    def _on_withdrawn_in_hand_over(self, event: ev.Withdrawn) -> list[Effect]:
        """Forget it, its owner and the file that was created ahead."""
        self.state = OpenState.WITHDRAWN
        return [ev.ForgetOwner(self._present_owner), ev.DropPrecreated()]

    def _set_timer(self, delay_ms: int) -> ev.SetTimer:
        return ev.SetTimer(delay_ms, self._next_timer())

    def _next_timer(self) -> int:
        self._timer_number += 1
        return self._timer_number


E = TypeVar("E", bound=Event)
Handler = Callable[[AssignedPartition, E], list[Effect]]
_Row = dict[tuple[OpenState, type[Any]], Handler[Any] | Cell]


def _on(event: type[E], functions: Mapping[OpenState, Handler[E]], *, otherwise: Cell) -> _Row:
    """Return an event's row: ``otherwise`` is the cell of each living state that ``functions`` does not name."""
    row: _Row = {(state, event): functions.get(state, otherwise) for state in OpenState}
    return row | {(OpenState.WITHDRAWN, event): Cell.LATE}


_S, _P = OpenState, AssignedPartition
_LIVING = [state for state in OpenState if state is not OpenState.WITHDRAWN]
TABLE: Mapping[tuple[OpenState, type[Any]], Handler[Any] | Cell] = {
    **_on(ev.Asked, {_S.QUEUED: _P._on_asked}, otherwise=Cell.LATE),
    **_on(
        ev.Awaited,
        {_S.QUEUED: _P._on_awaited, _S.ASKED: _P._on_awaited, _S.WAITING: _P._on_awaited_in_hand_over},
        otherwise=Cell.LATE,
    ),
    **_on(ev.TurnCame, {_S.QUEUED: _P._on_turn, _S.ASKED: _P._on_turn, _S.AWAITED: _P._on_turn}, otherwise=Cell.LATE),
    **_on(ev.RecordRead, {_S.OPENING: _P._on_record_read}, otherwise=Cell.NEVER),
    **_on(ev.Opened, {_S.OPENING: _P._on_opened}, otherwise=Cell.NEVER),
    **_on(ev.Failed, {_S.OPENING: _P._on_failed, _S.OPEN: _P._on_failed}, otherwise=Cell.LATE),
    **_on(ev.WentOffline, {_S.OPENING: _P._on_offline, _S.OPEN: _P._on_offline}, otherwise=Cell.LATE),
    **_on(
        ev.HandedOver,
        {
            _S.QUEUED: _P._on_handed_over,
            _S.ASKED: _P._on_handed_over,
            _S.AWAITED: _P._on_handed_over,
            _S.WAITING: _P._on_handed_over,
            _S.OPENING: _P._on_handed_over_early,
            _S.DELAYED: _P._on_handed_over,
            _S.OFFLINE: _P._on_note,
        },
        otherwise=Cell.LATE,
    ),
    **_on(ev.MemberGone, {_S.WAITING: _P._on_owner_gone}, otherwise=Cell.NEVER),
    **_on(
        ev.TimerExpired,
        {_S.WAITING: _P._on_waited, _S.DELAYED: _P._on_retry, _S.OFFLINE: _P._on_look},
        otherwise=Cell.LATE,
    ),
    **_on(ev.RecordChecked, {_S.OFFLINE: _P._on_record_checked}, otherwise=Cell.NEVER),
    **_on(ev.CheckFailed, {_S.OFFLINE: _P._on_check_failed}, otherwise=Cell.NEVER),
    **_on(
        ev.Withdrawn,
        {
            **dict.fromkeys(_LIVING, _P._on_withdrawn),
            _S.WAITING: _P._on_withdrawn_in_hand_over,
            _S.OPENING: _P._on_withdrawn_in_takeover,
        },
        otherwise=Cell.LATE,
    ),
}
"""The function, or the reason for none, of each (state, event type)."""
EVENTS: tuple[type[Event], ...] = tuple(dict.fromkeys(event for _, event in TABLE))
"""Every event type, in the table's order."""

"""Markers of a shard's transactions: sent until no partition lacks its marker.

A call sends a transaction's marker to a slice of the partitions without it.  The slices of a large transaction are
sent at once, as far as the process has room (``call_room``).  Failed partitions are tried again for ever, after growing
pauses.  A transaction takes no room from others during its pause, nor while a silent broker makes it late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.transaction.records import StoredTransaction
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.call_room import LATE_MAX, PATIENCE_S
from bmq.coordinator.transaction_shard.parts import TransactionParts
from bmq.core.aio.steps import Steps, batched, finish_steps, run_in_steps
from bmq.core.aio.tasks import gathered
from bmq.core.aio.turns import ELEMENTS_A_TURN, Turns, room_in_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.core.records.control import Marker, TransactionMarker

_log = logging.getLogger(__name__)

SENDING_MAX = 100
"""Transactions of one shard at once; further transactions wait.  Late transactions do not count."""
PARTITIONS_A_CALL = 1_000
SHOWN_MAX = 10
"""Partitions that a log line names."""
REASONS_MAX = 1_000
"""Partitions of a transaction whose own reason is kept."""
REASON_CHARACTERS = 200
LATE_S = 30.0
"""A transaction whose markers are missing for longer is named in a log line."""
_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_FENCED = frozenset({ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_MEANINGS = {
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "the partition has a marker of a later coordinator",
    ErrorCode.INVALID_PRODUCER_EPOCH: "the partition has a later epoch of the producer",
    ErrorCode.REQUEST_TIMED_OUT: "not confirmed in time, the partition may have the marker",
}


@dataclass(slots=True, eq=False)
class Ending:
    """A transaction whose markers are on their way.

    ``missing``: the partitions without a marker, each with its topic's name; ``is_complete`` once it has all of them.
    ``error``: why the last call failed.  ``refusal``: why a partition has refused the marker for good, at the last try
    with such a refusal.  ``reasons``: why each partition lacks its marker, of ``REASONS_MAX`` of them.
    """

    transactional_id: str
    marker: TransactionMarker
    missing: dict[PartitionKey, str]
    began_s: float
    failures: int = 0
    error: str = ""
    refusal: str = ""
    is_complete: bool = False
    is_reported: bool = False
    is_refused: bool = False
    has_bug: bool = False
    is_late: bool = False
    timer: asyncio.TimerHandle | None = field(default=None, repr=False)
    reasons: dict[PartitionKey, str] = field(default_factory=dict, repr=False)

    def reason(self, key: PartitionKey | None) -> str:
        """Return why a partition lacks its marker after a failed try; "" if none has failed.

        For a partition whose reason is not kept, it is the last reason of any.  ``key``: None if it is not known.
        """
        if key is None or not self.is_complete:
            return self.error
        own = self.reasons.get(key, "")
        return own or (self.error if len(self.reasons) >= REASONS_MAX and key in self.missing else "")

    def fail(self, reason: str) -> str:
        """Set the reason why the last call failed, cut; return it."""
        self.error = reason[:REASON_CHARACTERS]
        return self.error

    def failed(self, key: PartitionKey, reason: str) -> None:
        """Keep the reason of a failed try, as far as there is room."""
        if key in self.reasons or len(self.reasons) < REASONS_MAX:
            self.reasons[key] = reason

    def taken(self, key: PartitionKey) -> None:
        """Note that a partition has its marker, or needs none."""
        del self.missing[key]
        self.reasons.pop(key, None)


class MarkerSender:
    """Sender of a shard under a single ownership.

    ``done`` is called with the id of a transaction once no partition lacks a marker, never from within ``begin``.
    ``confirm`` returns if this process is still the shard's owner; else it raises RequestError.
    """

    def __init__(
        self,
        context: ShardContext,
        parts: TransactionParts,
        *,
        done: Callable[[str], None],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._parts = parts
        self._done = done
        self._confirm = confirm
        self._endings: dict[str, Ending] = {}
        self._queue: deque[Ending] = deque()
        self._sending = 0  # transactions that are not late
        self._late = 0
        self._is_closed = False

    @property
    def endings(self) -> Mapping[str, Ending]:
        """The transactions whose markers are on their way, by transactional id."""
        return self._endings

    def begin(self, transactional_id: str, value: StoredTransaction) -> None:
        """Send the markers of a value in Prepare, which must be durable."""
        assert value.state.is_prepare, value
        assert transactional_id not in self._endings, f"{transactional_id} is ending already"
        if self._is_closed:
            return
        is_commit = value.state is TransactionState.PREPARE_COMMIT
        marker = TransactionMarker(
            value.producer_id,
            value.epoch,
            self._context.ownership,
            Marker.COMMIT if is_commit else Marker.ABORT,
            value.client_version,
        )
        ending = self._endings[transactional_id] = Ending(transactional_id, marker, {}, self._context.clock.monotonic())
        if sum(1 + len(each.partitions) for each in value.partitions) > ELEMENTS_A_TURN:
            self._context.spawn(run_in_steps(self._find_in_steps(ending, value)))
        else:
            finish_steps(self._find_in_steps(ending, value))

    def _find_in_steps(self, ending: Ending, value: StoredTransaction) -> Steps[None]:
        """Fill ``ending.missing``, and enqueue it; a transaction may have 100,000 partitions."""
        turns, unresolved = Turns(), []
        for topic, topic_id, partitions in value.partitions:
            if topic_id is None:
                unresolved.append((topic, partitions))
                continue
            for some in batched(partitions, ELEMENTS_A_TURN):
                if turns.is_over(1 + len(some)):
                    yield
                ending.missing.update((PartitionKey(topic_id, each), topic) for each in some)
        if unresolved:
            self._context.spawn(self._resolve(ending, unresolved))
        else:
            self._enqueue(ending)

    def close(self) -> None:
        """Send nothing more.  Calls under way may still have an effect."""
        self._is_closed = True
        self._queue.clear()
        for ending in self._endings.values():
            if ending.timer is not None:
                ending.timer.cancel()

    async def _resolve(self, ending: Ending, topics: Sequence[tuple[str, tuple[int, ...]]]) -> None:
        """Find the topics of a record without topic ids: Kafka has written it."""
        while not self._is_closed:
            try:
                for name, partitions in topics:
                    topic = await self._context.catalog.refresh(name)
                    if topic is not None:
                        ending.missing.update((PartitionKey(topic.topic_id, each), name) for each in partitions)
            except Exception as error:  # noqa: BLE001  # the store does not answer, or has what cannot be read
                ending.fail(f"cannot look up its topics: {error}")
                ending.failures += 1
                await asyncio.sleep(self._context.settings.marker_retry_s.pause(ending.failures))
            else:
                self._enqueue(ending)
                return

    def _enqueue(self, ending: Ending) -> None:
        ending.timer = None
        ending.is_complete = True
        if not self._is_closed:
            self._queue.append(ending)
            self._next()

    def _next(self) -> None:
        while self._queue and self._sending < SENDING_MAX:
            self._sending += 1
            self._context.spawn(self._send(self._queue.popleft()))

    def _be_late(self, ending: Ending) -> None:
        """Let another transaction be sent: a process that gets this one's markers may be silent."""
        if self._late < LATE_MAX and not self._is_closed:
            ending.is_late = True
            self._late += 1
            self._sending -= 1
            self._next()

    async def _send(self, ending: Ending) -> None:
        ending.is_late = False
        timer = asyncio.get_running_loop().call_later(PATIENCE_S, self._be_late, ending)
        try:
            is_fenced = await self._send_all(ending)
        finally:
            timer.cancel()
            if ending.is_late:
                self._late -= 1
            else:
                self._sending -= 1
        if self._is_closed:
            return
        if not ending.missing:
            del self._endings[ending.transactional_id]
            self._done(ending.transactional_id)
        else:
            if is_fenced:
                await self._look_fenced(ending)
            pause = self._pause(ending)
            if not self._is_closed:
                delay_s = self._context.settings.marker_retry_s.most if is_fenced else pause
                ending.timer = asyncio.get_running_loop().call_later(delay_s, self._enqueue, ending)
        if not self._is_closed:
            self._next()

    def _report_bug(self, ending: Ending) -> None:
        """Log the exception that is handled now, once a transaction: the next tries may fail alike."""
        if ending.has_bug:
            return
        ending.has_bug = True
        _log.exception(
            "an unexpected error while a transaction's markers were sent, they are sent again",
            extra=fields(topic=self._context.id.kind.topic, shard=self._context.id.number, key=ending.transactional_id),
        )

    async def _send_all(self, ending: Ending) -> bool:
        """Send to each partition without a marker.  Return whether one is fenced."""
        return any(await gathered([self._send_slice(ending, keys) for keys in _slices(list(ending.missing))]))

    async def _send_slice(self, ending: Ending, keys: Sequence[PartitionKey]) -> bool:
        """Send to the partitions of one call.  Return whether one is fenced."""
        try:
            results = await self._parts.room.run(lambda: self._call(ending.marker, keys))
        except TimeoutError:
            _all_failed(ending, keys, f"no response in {self._context.settings.marker_timeout_s} s")
            return False
        except RequestError as error:
            _all_failed(ending, keys, str(error))
            return False
        except Exception as error:  # noqa: BLE001  # a bug must not keep the transaction in Prepare until a failover
            _all_failed(ending, keys, f"{type(error).__name__}: {error}")
            self._report_bug(ending)
            return False
        await room_in_turn(len(keys))  # the responses to many slices may come together
        is_fenced, failed = False, ErrorCode.NONE
        for key in keys:
            code = results.get(key, ErrorCode.REQUEST_TIMED_OUT)
            if code in _DONE:
                ending.taken(key)
                continue
            ending.failed(key, _reason(code))
            if code in _FENCED:
                is_fenced, failed = True, code
            elif failed not in _FENCED:
                failed = code
        if failed is not ErrorCode.NONE:
            reason = ending.fail(_reason(failed))
            if is_fenced:
                ending.refusal = reason  # calls of other partitions may fail after this one, otherwise
        return is_fenced

    async def _call(self, marker: TransactionMarker, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, ErrorCode]:
        await room_in_turn(len(keys))
        async with asyncio.timeout(self._context.settings.marker_timeout_s):
            return await self._parts.write_markers(marker, keys)

    async def _look_fenced(self, ending: Ending) -> None:
        """Ask the log for the owner, since a partition has said that another coordinator has decided.

        A shard that is lost is closed by its log.  If it is not lost, the partition must be wrong.
        """
        try:
            await self._confirm()
        except RequestError as error:
            ending.fail(str(error))
            return
        except Exception:  # noqa: BLE001  # as in _send_slice
            self._report_bug(ending)
            return
        if ending.is_refused or self._is_closed:
            return
        ending.is_refused = True
        _log.error(
            "a partition refuses a transaction's markers, though this process is the shard's coordinator: its"
            " transaction stays open until it takes them",
            extra=fields(
                topic=self._context.id.kind.topic,
                shard=self._context.id.number,
                key=ending.transactional_id,
                error=_shown(ending, ending.refusal),
            ),
        )

    def _pause(self, ending: Ending) -> float:
        ending.failures += 1
        if not ending.is_reported and self._context.clock.monotonic() - ending.began_s >= LATE_S:
            ending.is_reported = True
            _log.warning(
                "a transaction's markers are missing for %.0f s, its readers wait",
                LATE_S,
                extra=fields(
                    topic=self._context.id.kind.topic,
                    shard=self._context.id.number,
                    key=ending.transactional_id,
                    error=_shown(ending, ending.error),
                ),
            )
        return self._context.settings.marker_retry_s.pause(ending.failures)


def _all_failed(ending: Ending, keys: Sequence[PartitionKey], reason: str) -> None:
    """Keep the reason of a call without a result for any of its partitions."""
    reason = ending.fail(reason)
    for key in keys:
        ending.failed(key, reason)


@cache
def _reason(code: ErrorCode) -> str:
    """Return the reason of a code: the same text for all partitions."""
    return f"{code.name}: {_MEANINGS[code]}" if code in _MEANINGS else code.name


def _shown(ending: Ending, why: str) -> str:
    """Return a line's reason, the producer, and the first of the partitions without a marker.

    A partition is ``name-number``, with its own reason if it differs from ``why``.
    """
    producer = f"producer id {ending.marker.producer_id}, epoch {ending.marker.producer_epoch}"
    waiting = islice(ending.missing.items(), SHOWN_MAX)
    names = [f"{topic}-{key.partition}{_own_reason(ending, key, why)}" for key, topic in waiting]
    more = len(ending.missing) - len(names)
    return f"{why}; {producer}; missing: {', '.join(names)}" + (f" and {more} more" if more else "")


def _own_reason(ending: Ending, key: PartitionKey, why: str) -> str:
    reason = ending.reason(key) or "not sent yet"
    return "" if reason == why else f" ({reason})"


def _slices(keys: Sequence[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    """Split ``keys`` by calls; a transaction without partitions needs none."""
    return (keys[at : at + PARTITIONS_A_CALL] for at in range(0, len(keys), PARTITIONS_A_CALL))

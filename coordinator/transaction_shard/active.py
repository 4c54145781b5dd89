"""Loaded shard of transactions: decides by the pure machine, writes, responds once durable, and ends transactions.

State changes when a record is handed to the writer (``coordinator.shard.active``).  Markers of a transaction are sent
once its Prepare is durable (rule 11).  If the log fails, all requests that wait get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from dataclasses import replace

from bmq.coordinator.shard.active import ActiveShard, Loaded
from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.key_bounds import PastBound
from bmq.coordinator.transaction import events as ev
from bmq.coordinator.transaction.machine import Transaction
from bmq.coordinator.transaction.partitions import Partitions, work_of
from bmq.coordinator.transaction.records import StoredTransaction, TransactionRecord, encode
from bmq.coordinator.transaction_shard.markers import Ending, MarkerSender
from bmq.coordinator.transaction_shard.parts import TransactionParts
from bmq.coordinator.transaction_shard.state import TransactionsState
from bmq.core.aio.turns import Turns, next_turn, room_in_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey

ADD_WAIT_S = 0.1
"""An add waits this long for the end of the transaction before (Kafka: add.partitions.to.txn.retry.backoff.max.ms)."""
TIMEOUT_LOOK_S = 10.0
"""Most time between two looks at open transactions, as Kafka's: the wall clock may jump."""
TIMEOUT_LOOK_MIN_S = 0.5
"""Least time between two looks: each passes all open transactions of the shard."""
_LATER_BYTES = 64
"""Bytes by which a later record of the same transaction may be larger: Prepare has further tagged fields."""


class ActiveTransactions(ActiveShard[TransactionsState]):
    """The transactions of a shard, under a single ownership of its log."""

    def __init__(self, context: ShardContext, loaded: Loaded[TransactionsState], parts: TransactionParts) -> None:
        super().__init__(context, loaded)
        self.coordinator_epoch = context.ownership
        """The shard's ownership number, which markers and confirmations carry."""
        self._parts = parts
        self._markers = MarkerSender(context, parts, done=self._markers_written, confirm=self._confirm)
        self._waiting_for_end: dict[str, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0  # when it expires, monotonic
        self._is_looking = False

    def begin(self) -> None:
        """Begin to send the markers of transactions in Prepare, and set the timer of open transactions."""
        prepared = [each for each, value in self.state.values.items() if value.state.is_prepare]
        if prepared:
            self._context.spawn(self._begin_markers(prepared))
        if self.state.open_ids:
            self._arm(TIMEOUT_LOOK_MIN_S)

    def close(self, error: ErrorCode) -> None:
        if self._is_closed:
            return
        super().close(error)
        self._markers.close()
        if self._timer is not None:
            self._timer.cancel()
        for transactional_id in list(self._waiting_for_end):
            self._ended(transactional_id)

    async def _begin_markers(self, prepared: Iterable[str]) -> None:
        """Send the markers of replayed transactions, in turns of the event loop.

        Only their markers take them out of Prepare, so each of them is still in it when its turn comes.
        """
        turns = Turns()
        for transactional_id in prepared:
            value = self.state.values[transactional_id]
            if turns.is_over(work_of(value.partitions)):
                await next_turn()
            if self.is_closed:
                return
            self._markers.begin(transactional_id, value)

    @property
    def endings(self) -> Iterable[Ending]:
        """The transactions whose markers are on their way."""
        return self._markers.endings.values()

    def missing(self, transactional_id: str) -> Container[PartitionKey] | None:
        """Return the partitions without a marker, of a transaction that is ending; None if that is not known.

        The container follows the markers that are written.
        """
        ending = self._markers.endings.get(transactional_id)
        if (
            ending is None
            or not ending.is_complete
            or any(each.topic_id is None for each in self.state.values[transactional_id].partitions)
        ):
            return None
        return ending.missing

    def marker_error(self, transactional_id: str, key: PartitionKey | None) -> str:
        """Return why the last try wrote no marker to a partition of an ending transaction; "" before a failed try.

        ``key``: None for a topic without an id.
        """
        ending = self._markers.endings.get(transactional_id)
        return "" if ending is None else ending.reason(key)

    # ----------------------------------------------------------------------------------------------------- requests

    async def handle(self, transactional_id: str, event: ev.Event) -> ev.Respond:
        """Handle a request; return the response once its content is durable and the ownership proven.

        Raises RequestError:

        | code | reason |
        |---|---|
        | NOT_COORDINATOR | the log has failed, or has another owner |
        | COORDINATOR_NOT_AVAILABLE | the write takes too long, or there is no producer id now |
        | INVALID_REQUEST | the id is too long for a record |
        | COORDINATOR_LOAD_IN_PROGRESS | the id is new, and its user has a bound and ids in shards that load |
        | POLICY_VIOLATION | the id is new, and its user may own no further one |
        | UNKNOWN_SERVER_ERROR | the transaction is too large for a record, as in Kafka |
        """
        if isinstance(event, ev.InitProducerId) and self.state.get(transactional_id) is None:
            await self._parts.bounds.wait_known(event.principal)
        deadline = self._deadline()
        try:
            return await self._handle(transactional_id, event, deadline)
        except PastBound as past:
            await self._refuse(past, transactional_id, deadline)
            raise

    async def _handle(self, transactional_id: str, event: ev.Event, deadline: float) -> ev.Respond:
        await self.room(deadline)
        effects = self._decide(transactional_id, event)
        if ev.NeedProducerId() in effects:
            event = replace(event, fresh_id=await self._in_time(self._parts.producer_ids(), deadline))
            await self.room(deadline)
            effects = self._decide(transactional_id, event)
        response = next(effect for effect in effects if isinstance(effect, ev.Respond))
        durable = self._perform(transactional_id, effects)
        if durable is not None:
            await self._in_time(durable, deadline)
        else:
            await self.settled(transactional_id, deadline)
            if _needs_proof(event, response):
                await self.prove_again(deadline)
        return response

    async def _refuse(self, past: PastBound, transactional_id: str, deadline: float) -> None:
        """Prove that the id is new and its user's bound reached, and log it.

        A former coordinator would take its successor's id for a new id, and end its producer for good.  Raises
        RequestError as ``settled``, ``prove_again`` and ``OwnedKeys.prove``.
        """
        await self.settled(transactional_id, deadline)
        await self.prove_again(deadline)
        await self._in_time(self._parts.bounds.refuse(past, transactional_id), deadline)

    async def add(self, transactional_id: str, event: ev.AddPartitions) -> ev.Respond:
        """Handle an add as ``handle`` does; wait ``ADD_WAIT_S`` for the end of the transaction before.

        An add merges and encodes the whole transaction, so simultaneous adds take turns.
        """
        until = asyncio.get_running_loop().time() + ADD_WAIT_S
        while self._is_ending(transactional_id):
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting_for_end.setdefault(transactional_id, [])
            waiting.append(ended)
            try:
                async with asyncio.timeout_at(until):
                    await ended
            except TimeoutError:
                break
            finally:
                if ended in waiting:
                    waiting.remove(ended)
                if not waiting and self._waiting_for_end.get(transactional_id) is waiting:
                    del self._waiting_for_end[transactional_id]
        await room_in_turn(self._work_of(transactional_id, event.partitions))
        return await self.handle(transactional_id, event)

    def _work_of(self, transactional_id: str, partitions: Partitions) -> int:
        value = self.state.get(transactional_id)
        return work_of(partitions) + work_of(() if value is None else value.partitions)

    async def settled(self, transactional_id: str, deadline: float | None = None) -> None:
        """Wait until the id's value is durable, and the ownership of this process proven.

        Raises RequestError as ``durable`` and ``Freshness.renew`` do.
        """
        if self.writer.has_open_writes(transactional_id):
            await self.durable(deadline)
            return
        await self.freshness.renew()
        self._check_open()

    async def prove_again(self, deadline: float | None = None) -> None:
        """Return once the log has confirmed the ownership by a question of after this call.

        Raises RequestError as ``settled`` does.
        """
        await self._in_time(self.freshness.prove_again(), deadline)
        self._check_open()

    def _check_open(self) -> None:
        if self.is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the shard was lost during the request")

    def _is_ending(self, transactional_id: str) -> bool:
        value = self.state.get(transactional_id)
        return not self.is_closed and value is not None and value.state.is_prepare

    def _decide(self, transactional_id: str, event: ev.Event) -> list[ev.Effect]:
        """Return the effects of an event.  Raises as ``KeyBounds.check`` for a new id.

        The caller performs them in the same turn, so no other id is created in between.
        """
        value = self.state.get(transactional_id)
        if value is None and isinstance(event, ev.InitProducerId):
            self._parts.bounds.check(event.principal)
        return Transaction(value).handle(event, self._context.clock.now_ms())

    def _perform(self, transactional_id: str, effects: list[ev.Effect]) -> asyncio.Future[None] | None:
        """Write the value of a ``Store``; return the future of its durability, None without a ``Store``.

        Raises RequestError, and changes nothing, if the record cannot be written.
        """
        stored = next((effect for effect in effects if isinstance(effect, ev.Store)), None)
        if stored is None:
            return None
        record = TransactionRecord(transactional_id, stored.value)
        try:
            key, value = encode(record)
        except FormatError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if not self.writer.fits((key, (value or b"") + bytes(_LATER_BYTES))) and self._may_refuse(stored.value):
            message = f"the transaction's record has {len(value or b'')} bytes, more than its topic takes"
            raise RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, message)
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        durable.add_done_callback(_retrieve)
        is_end = ev.SendMarkers() in effects

        def done(error: RequestError | None) -> None:
            if is_end and error is None and stored.value is not None:
                self._markers.begin(transactional_id, stored.value)
            if durable.done():
                return  # the request was cancelled; the record is written all the same
            if error is None:
                durable.set_result(None)
            else:
                durable.set_exception(error)

        self.state.apply(record)
        self.writer.write([(key, value)], transactional_id, done)
        if stored.value is not None and not stored.value.state.is_prepare:
            self._ended(transactional_id)
        if transactional_id in self.state.open_ids and stored.value is not None:
            overdue_ms = stored.value.started_ms + stored.value.timeout_ms - self._context.clock.now_ms()
            self._arm(overdue_ms / 1000)
        return durable

    def _may_refuse(self, value: StoredTransaction | None) -> bool:
        """Return True for a record that may be refused: an end must not be."""
        return value is not None and not value.state.is_prepare and value.partitions != ()

    def _ended(self, transactional_id: str) -> None:
        for future in self._waiting_for_end.pop(transactional_id, ()):
            if not future.done():
                future.set_result(None)

    # ------------------------------------------------------------------------------------------------------ markers

    def _markers_written(self, transactional_id: str) -> None:
        if self.is_closed:
            return
        value = self.state.get(transactional_id)
        assert value is not None, transactional_id
        assert value.state.is_prepare, value
        self._perform(transactional_id, self._decide(transactional_id, ev.MarkersWritten()))

    async def _confirm(self) -> None:
        self.freshness.doubt()
        await self.freshness.renew()

    # --------------------------------------------------------------------------------------------------------- time

    def _arm(self, delay_s: float) -> None:
        """Set the shard's one timer, unless it expires before; none is set while no transaction is open."""
        delay_s = min(max(delay_s, TIMEOUT_LOOK_MIN_S), TIMEOUT_LOOK_S)
        at = self._context.clock.monotonic() + delay_s
        if self._is_closed or self._is_looking or (self._timer is not None and self._timer_s <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._is_looking = True
        self._context.spawn(self._abort_overdue())

    async def _abort_overdue(self) -> None:
        """Abort the open transactions whose time-out is over, in turns of the event loop; set the timer again."""
        turns, next_ms = Turns(), None
        try:
            for transactional_id in list(self.state.open_ids):
                await self._breathe(turns, 1)
                value = self.state.get(transactional_id)
                if self.is_closed:
                    return
                if value is None or transactional_id not in self.state.open_ids:
                    continue
                if not await self._abort_if_overdue(transactional_id):
                    deadline_ms = value.started_ms + value.timeout_ms
                    next_ms = deadline_ms if next_ms is None else min(next_ms, deadline_ms)
        except RequestError:
            return  # the log has failed: the shard is loaded again, and looks then
        finally:
            self._is_looking = False
        if self.state.open_ids:
            now_ms = self._context.clock.now_ms()
            self._arm(TIMEOUT_LOOK_S if next_ms is None else (next_ms + 1 - now_ms) / 1000)

    async def _abort_if_overdue(self, transactional_id: str) -> bool:
        """Decide to abort the transaction if it is overdue.  Return False if it is not, or there is no producer id."""
        event: ev.Event = ev.Overdue()
        effects = self._decide(transactional_id, event)
        if ev.NeedProducerId() in effects:
            try:
                event = replace(event, fresh_id=await self._in_time(self._parts.producer_ids()))
            except RequestError:
                return False  # the next look tries again
            effects = self._decide(transactional_id, event)
        return self._perform(transactional_id, effects) is not None

    async def expire(self) -> int:
        """Forget unused transactional ids; return how many.  Raises RequestError if the log fails."""
        count, turns = 0, Turns()
        event = ev.Unused(retention_ms=self._context.settings.transactional_id_retention_ms)
        last: asyncio.Future[None] | None = None
        for transactional_id in list(self.state.values):
            await self._breathe(turns, 1)
            effects = self._decide(transactional_id, event)
            if effects:
                last = self._perform(transactional_id, effects)
                count += 1
        if last is not None:
            await last
        await next_turn()
        return count


def _needs_proof(event: ev.Event, response: ev.Respond) -> bool:
    """Return whether a response without a record needs a proof of the ownership from after the request.

    A former coordinator knows the id's last transaction of its own time only.  It would count the commit of a later
    transaction as a repetition of the last commit, and the later transaction would be aborted by its time-out.  It
    would refuse a later producer for good.

    | response | a proof of the last ``FRESH_S`` |
    |---|---|
    | NONE to ``Verify`` | is enough: the asking side compares the coordinator's epoch (rule 12) |
    | CONCURRENT_TRANSACTIONS | is enough: the client asks again |
    | any other | is too old |
    """
    is_confirmed = isinstance(event, ev.Verify) and response.error is ErrorCode.NONE
    return not is_confirmed and response.error is not ErrorCode.CONCURRENT_TRANSACTIONS


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved: nobody may wait for the record."""
    if not future.cancelled():
        future.exception()

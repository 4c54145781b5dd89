"""The steps of transactions in a simulated cluster: each is a point before it and a point after it.

``watched(world)`` puts the points around the product's own calls while a history runs.  The fault of a history befalls
the process that reaches the chosen point.  A ``Decisions`` notes on the way which decisions are durable, and compares
each marker that arrives with them (rule 11).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.partition.verified_appends import VerifiedAppends
from bmq.coordinator.group_shard.active import ActiveGroups
from bmq.coordinator.group_shard.transactions import OffsetTransactions
from bmq.coordinator.partition_verifier import PartitionVerifier
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard import shard as shard_module
from bmq.coordinator.shard.snapshot import take_snapshot
from bmq.coordinator.shard.writer import Writer
from bmq.coordinator.transaction import events as ev
from bmq.coordinator.transaction.machine import PRODUCER_EPOCH_MAX, TABLE, Transaction
from bmq.coordinator.transaction.records import NO_PRODUCER_ID, StoredTransaction
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.markers import MarkerSender
from bmq.coordinator.transaction_shard.transactions import TransactionApis
from bmq.core.errors import RequestError
from bmq.core.records.control import Marker, TransactionMarker
from tests.harness.loop import PROCESS

if TYPE_CHECKING:
    from tests.simulation.cluster_world import ClusterWorld, Process

SNAPSHOT_BYTES = 3_000
"""Bytes appended to a shard's log between two snapshots: some ten transactions."""
SOON = 0.5
"""Share of the histories in which producers begin shortly before their last epoch."""
REQUESTS = {
    "init_producer_id": "InitProducerId",
    "add_partitions": "AddPartitionsToTxn",
    "add_offsets": "AddOffsetsToTxn",
    "end_txn": "EndTxn",
}
STORED = (
    TransactionState.EMPTY,
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
STEPS = (
    *REQUESTS.values(),
    *(state.kafka_name for state in STORED),
    "Verify",
    "Append",
    "TxnOffsetCommit",
    "SendMarkers",
    "PartitionMarker",
    "GroupMarker",
    "Overdue",
    "Snapshot",
)
POINTS = tuple(f"{side} {step}" for step in STEPS for side in ("before", "after"))


def step_of(point: str) -> str:
    """Return the step of a point."""
    return point.partition(" ")[2]


class Decisions:
    """The decisions that are durable, and what contradicts them."""

    def __init__(self, note_error: Callable[[str], None]) -> None:
        self._durable: dict[tuple[int, int], set[Marker]] = defaultdict(set)
        self._note_error = note_error
        self.arrived = 0

    def note(self, value: StoredTransaction) -> None:
        """Note a value that is durable."""
        if value.state.is_prepare:
            is_commit = value.state is TransactionState.PREPARE_COMMIT
            self._durable[value.producer_id, value.epoch].add(Marker.COMMIT if is_commit else Marker.ABORT)

    def check(self, marker: TransactionMarker, place: str) -> None:
        """Compare a marker that has arrived at a partition with the decisions."""
        self.arrived += 1
        if marker.marker not in self._durable[marker.producer_id, marker.producer_epoch]:
            self._note_error(f"{place} gets {marker}, whose Prepare was never durable (rule 11)")


class Points:
    """The points of one history; ``befall`` is the fault at the chosen point, at its ``count``th time."""

    def __init__(self, world: ClusterWorld) -> None:
        self.passed: Counter[str] = Counter()
        self.decisions = Decisions(world.observed.errors.append)
        self.chosen, self.count = "", 1
        self.befall: Callable[[Process], None] | None = None
        self.is_over = False
        self.has_befallen = False
        """The fault of the history was at its point."""
        self.ran_out = 0
        """Decisions after which a producer goes on under another id, since its epochs have run out."""
        self.ended_without_store = 0
        """Durable decisions while the metadata store was away."""
        self.writing: StoredTransaction | None = None
        """The value of the record that is being handed to a writer."""
        self._world = world

    @property
    def is_store_away(self) -> bool:
        return self._world.store.down

    def choose(self, point: str, count: int, befall: Callable[[Process], None]) -> None:
        assert point in POINTS, point
        self.chosen, self.count, self.befall = point, count, befall

    def reach(self, point: str) -> bool:
        """Note that this process is at a point; return whether the fault befell it there."""
        here = PROCESS.get()
        process = next((each.process for each in self._world.places if each.is_at(here)), None)
        if process is None:
            return False
        self.passed[point] += 1
        if self.is_over or self.befall is None or point != self.chosen or self.passed[point] != self.count:
            return False
        self.has_befallen = True
        self._world.network.context.copy().run(self.befall, process)  # outside of the process
        return True

    async def take(self, point: str) -> None:
        """Be at a point; a process that died there goes no further, a stopped one when it goes on."""
        if self.reach(point):
            await asyncio.sleep(0)


def _around(points: Points, step: str, call: Any, is_step: Callable[..., bool] = lambda *_, **__: True) -> Any:
    """Return the coroutine function ``call`` with points before and after it."""

    @wraps(call)
    async def around(*arguments: Any, **named: Any) -> Any:
        if not is_step(*arguments, **named):
            return await call(*arguments, **named)
        await points.take(f"before {step}")
        result = await call(*arguments, **named)
        await points.take(f"after {step}")
        return result

    return around


def _perform(points: Points, call: Any) -> Any:
    """Return ``ActiveTransactions._perform`` with a point before each write."""

    @wraps(call)
    def perform(active: ActiveTransactions, transactional_id: str, effects: list[ev.Effect]) -> Any:
        points.writing = next((each.value for each in effects if isinstance(each, ev.Store)), None)
        if points.writing is not None:
            points.reach(f"before {points.writing.state.kafka_name}")
        try:
            return call(active, transactional_id, effects)
        finally:
            points.writing = None

    return perform


def _write(points: Points, call: Any) -> Any:
    """Return ``Writer.write`` with a point where a transaction's record is durable, before anybody hears of it.

    The request may have been given up by then: its decision counts all the same.
    """

    @wraps(call)
    def write(writer: Writer, records: Any, subject: str, done: Any, producer: Any = None) -> Any:
        value = points.writing
        if value is None:
            return call(writer, records, subject, done, producer)

        def durable(error: RequestError | None) -> None:
            if error is None:
                points.decisions.note(value)
                points.ended_without_store += value.state.is_prepare and points.is_store_away
                points.ran_out += value.next_id != NO_PRODUCER_ID
                points.reach(f"after {value.state.kafka_name}")
            done(error)

        return call(writer, records, subject, durable, producer)

    return write


def _begin(points: Points, call: Any) -> Any:
    """Return ``ActiveTransactions.begin``, which serves what was replayed: all of it is durable."""

    @wraps(call)
    def begin(active: ActiveTransactions) -> None:
        for value in active.state.values.values():
            points.decisions.note(value)
        call(active)

    return begin


class _Appending:
    """The caller of an append, with a point after the append is flushed."""

    def __init__(self, points: Points, callback: Any) -> None:
        self._points = points
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._callback, name)

    def on_appended(self, appended: Any) -> None:
        self._points.reach("after Append")
        self._callback.on_appended(appended)


def _put(points: Points, call: Any) -> Any:
    @wraps(call)
    def put(appends: VerifiedAppends, batch: Any, callback: Any, *, acks_all: bool) -> None:
        points.reach("before Append")
        call(appends, batch, _Appending(points, callback), acks_all=acks_all)

    return put


def _marked(points: Points, step: str, call: Any) -> Any:
    """Return a call that takes a marker, which is compared with the decisions."""
    taken = _around(points, step, call)

    @wraps(call)
    async def marked(place: Any, marker: TransactionMarker) -> Any:
        points.decisions.check(marker, f"{step} in {PROCESS.get()}")
        return await taken(place, marker)

    return marked


def _with_few_epochs(rng: Random) -> Any:
    """Return ``Transaction._on_new`` with a first epoch that leaves a few ends until epochs run out."""

    def on_new(transaction: Transaction, event: ev.InitProducerId, now_ms: int) -> list[ev.Effect]:
        effects = Transaction._on_new(transaction, event, now_ms)
        if len(effects) == 1:
            return effects
        epoch = PRODUCER_EPOCH_MAX - rng.randrange(6)
        transaction.value = transaction.value._replace(epoch=epoch)
        stored, response = effects
        assert isinstance(stored, ev.Store)
        assert stored.value is not None
        assert isinstance(response, ev.Respond)
        return [ev.Store(stored.value._replace(epoch=epoch)), response._replace(epoch=epoch)]

    return on_new


@contextmanager
def watched(world: ClusterWorld, rng: Random) -> Iterator[Points]:
    """Serve transactions in all processes of a world, with its points, while a history runs.

    In a share of the histories, ``SOON``, epochs run out soon.
    """
    points = Points(world)
    of = CoordinatorSettings.of.__func__  # type: ignore[attr-defined]
    settings = classmethod(lambda cls, config: replace(of(cls, config), snapshot_bytes=SNAPSHOT_BYTES))

    def has_transaction(*_: Any, transaction: Any = None, **__: Any) -> bool:
        return transaction is not None

    def has_open(serving: Any, *_: Any) -> bool:
        if isinstance(serving, ActiveTransactions):
            return bool(serving.state.open_ids)
        return any(True for _ in serving.open_transactions())

    changes: list[tuple[Any, str, Any]] = [
        (CoordinatorSettings, "of", settings),
        (ActiveTransactions, "_perform", _perform(points, ActiveTransactions._perform)),
        (ActiveTransactions, "begin", _begin(points, ActiveTransactions.begin)),
        (Writer, "write", _write(points, Writer.write)),
        (VerifiedAppends, "put", _put(points, VerifiedAppends.put)),
        (PartitionOwner, "end_transaction", _marked(points, "PartitionMarker", PartitionOwner.end_transaction)),
        (OffsetTransactions, "end_transaction", _marked(points, "GroupMarker", OffsetTransactions.end_transaction)),
        (ActiveGroups, "commit", _around(points, "TxnOffsetCommit", ActiveGroups.commit, has_transaction)),
        (PartitionVerifier, "__call__", _around(points, "Verify", PartitionVerifier.__call__)),
        (MarkerSender, "_send_all", _around(points, "SendMarkers", MarkerSender._send_all)),
        (
            ActiveTransactions,
            "_abort_if_overdue",
            _around(points, "Overdue", ActiveTransactions._abort_if_overdue, _is_overdue),
        ),
        (shard_module, "take_snapshot", _around(points, "Snapshot", take_snapshot, has_open)),
    ]
    for method, step in REQUESTS.items():
        changes.append((TransactionApis, method, _around(points, step, getattr(TransactionApis, method))))
    patches: list[Any] = [mock.patch.object(*change) for change in changes]
    if rng.random() < SOON:
        first = (TransactionState.DEAD, ev.InitProducerId)
        patches.append(mock.patch.dict(TABLE, {first: _with_few_epochs(Random(rng.random()))}))
    for patch in patches:
        patch.start()
    try:
        yield points
    finally:
        for patch in reversed(patches):
            patch.stop()


def _is_overdue(active: ActiveTransactions, transactional_id: str) -> bool:
    value = active.state.get(transactional_id)
    return value is not None and value.started_ms + value.timeout_ms < active._context.clock.now_ms()

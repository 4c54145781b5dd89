"""The transaction coordinator, as handlers see it: one method an API, Kafka's request in, Kafka's response out.

InitProducerId 0-5, AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4, EndTxn 0-5, DescribeTransactions 0, ListTransactions
0-2.  A request is checked in Kafka's order (``KafkaApis``, ``TransactionCoordinator``): the transactional id, then the
other fields, then the shard, then the transaction.  Versions without PRODUCER_FENCED get INVALID_PRODUCER_EPOCH.

Clients try again after the errors in ``coordinator.coordinator``, and after CONCURRENT_TRANSACTIONS: the transaction
before is still ending.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple
from uuid import UUID

from bmq.coordinator.api import ClientInfo
from bmq.coordinator.shard.context import CoordinatorContext
from bmq.coordinator.shard.kind_coordinator import KindCoordinator
from bmq.coordinator.transaction import events as ev
from bmq.coordinator.transaction.id_pattern import pattern_of
from bmq.coordinator.transaction.partitions import has, numbers_of, ordered
from bmq.coordinator.transaction.records import NO_EPOCH, NO_PRODUCER_ID, StoredTransaction, TopicPartitions
from bmq.coordinator.transaction.results import partition_errors
from bmq.coordinator.transaction.states import KAFKA_NAMES
from bmq.coordinator.transaction_shard.active import ActiveTransactions
from bmq.coordinator.transaction_shard.manager import TransactionShards
from bmq.core.aio.steps import batched
from bmq.core.aio.tasks import gathered
from bmq.core.aio.turns import ELEMENTS_A_TURN, Turns, next_turn, room_in_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.wire import messages as m
from bmq.core.wire.describe_transactions_message import NO_ERROR
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.meta.group_placement import shard_of
from bmq.meta.kv import KvError
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId, may_be_in_transactions

FENCED_SINCE = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
"""First version of each API with PRODUCER_FENCED."""
BATCHED_SINCE = 4
"""First version of AddPartitionsToTxn with several transactions, and with questions (``verify_only``).

A partition that a broker adds with it is of a transaction of version 2, as in Kafka.
"""
BUMPING_SINCE = 5
"""First version of EndTxn with a new epoch at every end (KIP-890)."""
AT_ONCE_MAX = 100
"""Transactions of an AddPartitionsToTxn under way at the same time."""

_CodeOf = Callable[[str, int], ErrorCode]
"""The result of each partition, by its topic's name and its number."""
_TransactionResult = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult
_Described = m.DescribeTransactionsResponse.TransactionState
_Listed = m.ListTransactionsResponse.TransactionState


class _Addition(NamedTuple):
    """One transaction of an AddPartitionsToTxn."""

    transactional_id: str
    producer_id: int
    epoch: int
    topics: Sequence[Any]
    is_question: bool = False


class TransactionApis(KindCoordinator[TransactionShards]):
    """The ``TransactionCoordinator`` of this process, for the shards that it owns."""

    kind = TRANSACTIONS

    def __init__(
        self,
        context: CoordinatorContext,
        shards: TransactionShards,
        offsets_topic: Callable[[], Awaitable[Topic]],
        close_parts: Callable[[], Awaitable[None]],
    ) -> None:
        """``offsets_topic`` returns ``__consumer_offsets`` and creates it if it is missing; it raises RequestError.

        ``close_parts``: as in ``KindCoordinator``.
        """
        super().__init__(shards, close_parts)
        self._context = context
        self._offsets_topic = offsets_topic

    def shard_of(self, transactional_id: str) -> ShardId:
        """Return the shard of a transactional id: the partition of ``__transaction_state`` that Kafka chooses."""
        return self.shards.shard_of(transactional_id)

    async def ready(self, transactional_id: str) -> None:
        """Wait until the shard of the transactional id is served; create the topic if it is missing.

        Raises RequestError: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR.
        """
        serving = await self.shards.serving(transactional_id)
        await serving.freshness.renew()
        if self.shards.is_draining:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the process is shutting down")

    # ---------------------------------------------------------------------------------------------- InitProducerId

    async def init_producer_id(self, request: m.InitProducerIdRequest, client: ClientInfo) -> m.InitProducerIdResponse:
        """Serve an InitProducerId with a transactional id; INVALID_REQUEST for one without.

        An id that the request creates counts for the client's principal: past its bound, POLICY_VIOLATION.
        """
        version = request.API_VERSION
        resumed = (request.producer_id, request.producer_epoch) if version >= 3 else (NO_PRODUCER_ID, NO_EPOCH)
        try:
            if not request.transactional_id or (resumed[0] < 0) != (resumed[1] < 0):
                raise RequestError(ErrorCode.INVALID_REQUEST, "no transactional id, or a producer id without epoch")
            if not 0 < request.transaction_timeout_ms <= self._context.settings.transaction_timeout_max_ms:
                raise RequestError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, "past transaction.max.timeout.ms, or below 1")
            event = ev.InitProducerId(
                timeout_ms=request.transaction_timeout_ms,
                producer_id=max(resumed[0], NO_PRODUCER_ID),
                epoch=max(resumed[1], NO_EPOCH),
                principal=client.principal,
            )
            serving = await self.shards.serving(request.transactional_id)
            found = await serving.handle(request.transactional_id, event)
        except RequestError as error:
            found = ev.Respond(error.code)
        return m.InitProducerIdResponse(
            throttle_time_ms=0,
            error_code=_for_client("InitProducerId", version, found.error),
            producer_id=found.producer_id,
            producer_epoch=found.epoch,
        )

    # --------------------------------------------------------------------------------------------------- partitions

    async def add_partitions(
        self, request: m.AddPartitionsToTxnRequest, client: ClientInfo
    ) -> m.AddPartitionsToTxnResponse:
        """Add partitions to transactions, or verify that they are added.

        All partitions of a transaction are added, or none.  If one is unknown (UNKNOWN_TOPIC_OR_PARTITION), the others
        get OPERATION_NOT_ATTEMPTED.  From version 4 on each transaction has a result, in the request's order.
        """
        version = request.API_VERSION
        if version < BATCHED_SINCE:
            addition = _Addition(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                request.v3_and_below_topics,
            )
            results = await self._add_to_one(addition, version, client.topic_ids)
            return m.AddPartitionsToTxnResponse(throttle_time_ms=0, results_by_topic_v3_and_below=results)
        additions = [
            _Addition(each.transactional_id, each.producer_id, each.producer_epoch, each.topics, each.verify_only)
            for each in request.transactions
        ]
        results = []
        for at in range(0, len(additions), AT_ONCE_MAX):
            some = additions[at : at + AT_ONCE_MAX]
            found = await gathered([self._add_to_one(each, version, client.topic_ids) for each in some])
            results += [
                _TransactionResult(transactional_id=each.transactional_id, topic_results=topics)
                for each, topics in zip(some, found, strict=True)
            ]
        return m.AddPartitionsToTxnResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, results_by_transaction=results
        )

    async def _add_to_one(self, addition: _Addition, version: int, ids: Mapping[str, UUID]) -> list[Any]:
        counts: dict[str, int] = {}
        found: list[TopicPartitions] = []
        is_known = True
        for topic in addition.topics:
            await room_in_turn(1)
            known, numbers = await self._topic(topic.name, ids.get(topic.name)), set[int]()
            count = counts[topic.name] = 0 if known is None else known.partitions
            for some in batched(topic.partitions, ELEMENTS_A_TURN):
                await room_in_turn(len(some))
                is_known = is_known and min(some) >= 0 and max(some) < count
                if is_known:
                    numbers.update(some)
            if known is not None and is_known:
                found.append(TopicPartitions(topic.name, known.topic_id, tuple(sorted(numbers))))
        if not is_known:
            code_of = _refused_for(counts)
        else:
            code_of = await self._add_known(addition, ordered(found), version)
        return await partition_errors(addition.topics, code_of)

    async def _topic(self, name: str, topic_id: UUID | None) -> Topic | None:
        """Return the topic of a name, None without one; with an id, only the topic that has it.

        Return None, too, for a topic that no transaction may have.

        The catalog here may be behind.  A marker for an earlier topic of the name would not reach the log that the
        question is about, and the transaction would stay open there.
        """
        if not may_be_in_transactions(name):
            return None
        known = self._context.catalog.topics.get(name)
        if topic_id is None or (known is not None and known.topic_id == topic_id):
            return known
        try:
            known = await self._context.catalog.refresh(name)
        except (KvError, FormatError):
            return None
        return known if known is not None and known.topic_id == topic_id else None

    async def _add_known(self, addition: _Addition, topics: tuple[TopicPartitions, ...], version: int) -> _CodeOf:
        """Add partitions, or verify them; return the function of a topic's name and a number to the result."""
        try:
            if not addition.transactional_id:
                raise RequestError(ErrorCode.INVALID_REQUEST, "no transactional id")
            serving = await self.shards.serving(addition.transactional_id)
            if addition.is_question:
                return await _verify(serving, addition, topics)
            client_version = 2 if version >= BATCHED_SINCE else 0
            code = await _add(serving, addition, topics, client_version)
        except RequestError as error:
            code = error.code
        code = _for_client("AddPartitionsToTxn", version, code)
        return lambda topic, number: code

    async def add_offsets(self, request: m.AddOffsetsToTxnRequest, client: ClientInfo) -> m.AddOffsetsToTxnResponse:
        """Add the group's partition of ``__consumer_offsets`` to the transaction.

        The request is of clients before version 2, whose TxnOffsetCommit adds the partition.  As in Kafka it is served
        at every level, and an open transaction of version 2 remains one.
        """
        try:
            if not request.transactional_id or not request.group_id:
                raise RequestError(ErrorCode.INVALID_REQUEST, "no transactional id or no group id")
            serving = await self.shards.serving(request.transactional_id)
            topic = self._context.catalog.topics.get(OFFSETS_TOPIC) or await self._offsets_topic()
            number = shard_of(request.group_id, topic.partitions)
            addition = _Addition(request.transactional_id, request.producer_id, request.producer_epoch, ())
            code = await _add(serving, addition, (TopicPartitions(topic.name, topic.topic_id, (number,)),), 0)
        except RequestError as error:
            code = error.code
        return m.AddOffsetsToTxnResponse(
            throttle_time_ms=0, error_code=_for_client("AddOffsetsToTxn", request.API_VERSION, code)
        )

    # ---------------------------------------------------------------------------------------------------------- end

    async def end_txn(self, request: m.EndTxnRequest, client: ClientInfo) -> m.EndTxnResponse:
        """Decide how the transaction ends; respond once the decision is durable.  Markers follow."""
        version = request.API_VERSION
        kind: type[ev.OfProducer]
        if version >= BUMPING_SINCE:
            kind = ev.CommitV2 if request.committed else ev.AbortV2
        else:
            kind = ev.Commit if request.committed else ev.Abort
        try:
            if not request.transactional_id:
                raise RequestError(ErrorCode.INVALID_REQUEST, "no transactional id")
            serving = await self.shards.serving(request.transactional_id)
            event = kind(producer_id=request.producer_id, epoch=request.producer_epoch)
            found = await serving.handle(request.transactional_id, event)
        except RequestError as error:
            found = ev.Respond(error.code)
        return m.EndTxnResponse(
            throttle_time_ms=0,
            error_code=_for_client("EndTxn", version, found.error),
            producer_id=found.producer_id,
            producer_epoch=found.epoch,
        )

    # -------------------------------------------------------------------------------------------------------- reads

    async def describe_transactions(
        self, request: m.DescribeTransactionsRequest, client: ClientInfo
    ) -> m.DescribeTransactionsResponse:
        """Describe transactions.  The response has a state for each id of the request, in the request's order."""
        ids = list(request.transactional_ids)
        found = await self.shards.serving_each(ids)
        turns, states = Turns(), []
        for transactional_id, serving in zip(ids, found, strict=True):
            if turns.is_over():
                await next_turn()
            try:
                states.append(await _describe(transactional_id, serving, turns))
            except RequestError as error:
                states.append(_described(transactional_id, error.code))
        return m.DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=states)

    async def list_transactions(
        self, request: m.ListTransactionsRequest, client: ClientInfo
    ) -> m.ListTransactionsResponse:
        """List the transactional ids of this process's shards."""
        return await self._list(request, None)

    async def list_transactions_of(
        self, request: m.ListTransactionsRequest, client: ClientInfo, shards: Set[int]
    ) -> m.ListTransactionsResponse:
        """List the transactional ids of ``shards`` only.

        The error is NOT_COORDINATOR if another process has a shard of them, COORDINATOR_LOAD_IN_PROGRESS while a shard
        of them is loading.
        """
        return await self._list(request, shards)

    async def _list(self, request: m.ListTransactionsRequest, only: Set[int] | None) -> m.ListTransactionsResponse:
        states = set(request.state_filters)
        unknown = sorted(states - KAFKA_NAMES)
        producers = set(request.producer_id_filters)
        longer_ms = request.duration_filter if request.API_VERSION >= 1 else -1
        try:
            pattern = pattern_of(request)
        except FormatError:
            return _listing(ErrorCode.INVALID_REGULAR_EXPRESSION, unknown)
        now_ms = self._context.clock.now_ms()

        def is_wanted(transactional_id: str, value: StoredTransaction) -> bool:
            if (producers and value.producer_id not in producers) or (states and value.state.kafka_name not in states):
                return False
            if longer_ms >= 0 and now_ms - value.started_ms <= longer_ms:
                return False
            return pattern is None or pattern.matches(transactional_id)

        listed, turns = [], Turns()
        for serving in (await self.shards.all_serving(only)).values():
            if isinstance(serving, RequestError):
                return _listing(serving.code, unknown)
            if serving is None:
                continue
            for transactional_id, value in list(serving.state.values.items()):
                if turns.is_over(1 if pattern is None else pattern.elements_of(transactional_id)):
                    await next_turn()
                if is_wanted(transactional_id, value):
                    listed.append(
                        _Listed(
                            transactional_id=transactional_id,
                            producer_id=value.producer_id,
                            transaction_state=value.state.kafka_name,
                        )
                    )
            if serving.is_closed:
                return _listing(ErrorCode.NOT_COORDINATOR, unknown)
        return _listing(ErrorCode.NONE, unknown, listed)


async def _add(
    serving: ActiveTransactions, addition: _Addition, topics: tuple[TopicPartitions, ...], client_version: int
) -> ErrorCode:
    event = ev.AddPartitions(
        producer_id=addition.producer_id, epoch=addition.epoch, partitions=topics, client_version=client_version
    )
    return (await serving.add(addition.transactional_id, event)).error


async def _verify(serving: ActiveTransactions, addition: _Addition, topics: tuple[TopicPartitions, ...]) -> _CodeOf:
    event = ev.Verify(producer_id=addition.producer_id, epoch=addition.epoch)
    code = (await serving.handle(addition.transactional_id, event)).error
    value = serving.state.get(addition.transactional_id)
    present = () if value is None else value.partitions
    added = {topic: numbers_of(present, topic, topic_id) for topic, topic_id, _ in topics}
    if not code and not all(has(added[topic], each) for topic, _, numbers in topics for each in numbers):
        await serving.prove_again()  # a former coordinator does not know the transaction that has them

    def code_of(topic: str, number: int) -> ErrorCode:
        return code or (ErrorCode.NONE if has(added[topic], number) else ErrorCode.TRANSACTION_ABORTABLE)

    return code_of


def _refused_for(counts: Mapping[str, int]) -> _CodeOf:
    """Return the results of a transaction to which nothing is added, since partitions do not exist.

    ``counts``: the number of partitions by topic, 0 of an unknown topic.
    """

    def code_of(topic: str, number: int) -> ErrorCode:
        is_there = 0 <= number < counts[topic]
        return ErrorCode.OPERATION_NOT_ATTEMPTED if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return code_of


async def _describe(transactional_id: str, serving: ActiveTransactions | RequestError, turns: Turns) -> Any:
    if not transactional_id:
        return _described(transactional_id, ErrorCode.INVALID_REQUEST)
    if isinstance(serving, RequestError):
        raise serving
    value = serving.state.get(transactional_id)
    await serving.settled(transactional_id)
    if value is None:
        return _described(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    missing = serving.missing(transactional_id) if value.state.is_prepare else None
    partitions: dict[str, list[int]] = {}
    reasons: dict[str, int] = {}  # the place of each: very many partitions may share one
    errors: dict[str, list[int]] = {}
    for topic, topic_id, numbers in value.partitions:
        kept = partitions.get(topic, [])
        for some in batched(numbers, ELEMENTS_A_TURN):
            if turns.is_over(1 + len(some)):
                await next_turn()
            if missing is not None and topic_id is not None:
                some = [each for each in some if PartitionKey(topic_id, each) in missing]
            kept += some
            if value.state.is_prepare:
                keys = (None if topic_id is None else PartitionKey(topic_id, each) for each in some)
                found = (serving.marker_error(transactional_id, key) for key in keys)
                places = (reasons.setdefault(each, len(reasons)) if each else NO_ERROR for each in found)
                errors.setdefault(topic, []).extend(places)
        if kept:
            partitions[topic] = kept
    return _described(
        transactional_id,
        ErrorCode.NONE,
        transaction_state=value.state.kafka_name,
        transaction_timeout_ms=value.timeout_ms,
        transaction_start_time_ms=value.started_ms,
        producer_id=value.producer_id,
        producer_epoch=value.epoch,
        topics=[
            _Described.TopicData(topic=topic, partitions=numbers, marker_error_of=_if_any(errors.get(topic, [])))
            for topic, numbers in partitions.items()
        ],
        marker_errors=list(reasons),
    )


def _if_any(places: list[int]) -> list[int]:
    """Return the places of reasons, nothing if there is no reason."""
    return places if any(each != NO_ERROR for each in places) else []


def _described(transactional_id: str, error: ErrorCode, **more: Any) -> Any:
    empty: dict[str, Any] = {
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }
    return _Described(transactional_id=transactional_id, error_code=error, **{**empty, **more})


def _listing(error: ErrorCode, unknown: list[str], listed: Sequence[Any] = ()) -> m.ListTransactionsResponse:
    return m.ListTransactionsResponse(
        throttle_time_ms=0, error_code=error, unknown_state_filters=unknown, transaction_states=list(listed)
    )


def _for_client(api: str, version: int, code: ErrorCode) -> ErrorCode:
    """Return the code as the client's version knows it."""
    if code is ErrorCode.PRODUCER_FENCED and version < FENCED_SINCE[api]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code

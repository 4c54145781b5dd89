"""APIs of transactions as lists of entries: a request is split by transactional id, and sent to their shards.  Pure.

==========================  =====================================================================================
API                         its entries
==========================  =====================================================================================
InitProducerId              the request, which has a transactional id
AddPartitionsToTxn 0 to 3   the request
AddPartitionsToTxn 4, 5     the transactions of the request, in its order; an id may be there twice
AddOffsetsToTxn, EndTxn     the request
DescribeTransactions        the transactional ids
ListTransactions            none: it is about shards (``LIST``)
==========================  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from bmq.coordinator.api import ClientInfo, TransactionCoordinator
from bmq.coordinator.routed_api import KindApis, OneKey, RoutedApi, SeveralKeys, ShardListing, ready_api
from bmq.coordinator.transaction.id_pattern import pattern_of
from bmq.coordinator.transaction.results import partition_errors as partition_errors
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey

KEY_TYPE = 1
"""Kafka's type of transactional ids in FindCoordinator."""
SEVERAL_SINCE = 4
"""First version of AddPartitionsToTxn with several transactions: between Kafka's brokers (KIP-890)."""
STATE_BYTES = 60
"""About the bytes of a transaction in DescribeTransactions without its ids and topics."""
TOPIC_BYTES = 20
"""About the bytes of a topic in DescribeTransactions without its name and partitions."""

Call = Callable[[TransactionCoordinator, Any, ClientInfo], Any | Awaitable[Any]]

_State = m.DescribeTransactionsResponse.TransactionState
_Result = m.AddPartitionsToTxnResponse.AddPartitionsToTxnResult


class _OneId(OneKey):
    """An API about one transactional id."""

    def __init__(
        self, key: ApiKey, call: Call, refusal: Callable[[Any, ErrorCode], Any], *, is_repeatable: bool = True
    ) -> None:
        super().__init__(key, call, refusal, lambda request: request.transactional_id, is_repeatable=is_repeatable)


class _AddPartitions(OneKey):
    """AddPartitionsToTxn up to version 3: the response has an error a partition."""

    def is_elsewhere(self, result: Any) -> bool:
        return _has_moved(result.results_by_topic_v3_and_below)


class _AddPartitionsToSeveral(SeveralKeys):
    """AddPartitionsToTxn from version 4 on."""

    key = ApiKey.ADD_PARTITIONS_TO_TXN

    def call(self, coordinator: TransactionCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.add_partitions(request, client)

    async def distinct(self, request: Any) -> Any:
        return request

    def coordinator_keys(self, request: Any) -> Sequence[str]:
        return [each.transactional_id for each in request.transactions]

    def size(self, result: Any) -> int:
        return 0

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return m.AddPartitionsToTxnRequest(
            version=request.API_VERSION, transactions=[request.transactions[each] for each in entries]
        )

    def answers(self, response: Any) -> list[Any]:
        return list(response.results_by_transaction)

    def is_elsewhere(self, result: Any) -> bool:
        return _has_moved(result.topic_results)

    async def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        transaction = request.transactions[entry]
        return _Result(
            transactional_id=transaction.transactional_id,
            topic_results=await partition_errors(transaction.topics, lambda topic, partition: code),
        )

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return m.AddPartitionsToTxnResponse(error_code=ErrorCode.NONE, results_by_transaction=list(answers))


class _Describe(SeveralKeys):
    key = ApiKey.DESCRIBE_TRANSACTIONS

    def call(self, coordinator: TransactionCoordinator, request: Any, client: ClientInfo) -> Any:
        return coordinator.describe_transactions(request, client)

    async def distinct(self, request: Any) -> Any:
        ids = list(dict.fromkeys(request.transactional_ids))
        return request if len(ids) == len(request.transactional_ids) else self._of(request, ids)

    def coordinator_keys(self, request: Any) -> Sequence[str]:
        return request.transactional_ids  # type: ignore[no-any-return]

    def size(self, result: Any) -> int:
        topics = sum(TOPIC_BYTES + len(each.topic) + 4 * len(each.partitions) for each in result.topics)
        errors = sum(map(len, result.marker_errors)) + 2 * sum(len(each.marker_error_of) for each in result.topics)
        return STATE_BYTES + len(result.transactional_id) + topics + errors

    def part(self, request: Any, entries: Sequence[int]) -> Any:
        return self._of(request, [request.transactional_ids[each] for each in entries])

    def _of(self, request: Any, ids: list[str]) -> Any:
        return m.DescribeTransactionsRequest(version=request.API_VERSION, transactional_ids=ids)

    def answers(self, response: Any) -> list[Any]:
        return list(response.transaction_states)

    def refusal(self, request: Any, entry: int, code: ErrorCode) -> Any:
        return _State(
            error_code=code,
            transactional_id=request.transactional_ids[entry],
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )

    def join(self, request: Any, answers: Sequence[Any]) -> Any:
        return m.DescribeTransactionsResponse(transaction_states=list(answers))


def _has_moved(topics: Sequence[Any]) -> bool:
    """Return whether a transaction's shard is not served there: then all partitions have this error."""
    first = next((topic.results_by_partition[0] for topic in topics if topic.results_by_partition), None)
    return first is not None and bool(first.partition_error_code == ErrorCode.NOT_COORDINATOR)


async def _refused_partitions(request: Any, code: ErrorCode) -> Any:
    results = await partition_errors(request.v3_and_below_topics, lambda topic, partition: code)
    return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


READY = ready_api("no process serves the transactional id now")
INIT = _OneId(
    ApiKey.INIT_PRODUCER_ID,
    lambda coordinator, request, client: coordinator.init_producer_id(request, client),
    lambda request, code: m.InitProducerIdResponse(
        throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1
    ),
    is_repeatable=False,  # the first try may have raised the epoch: a second one would fence the producer of the first
)
ADD_PARTITIONS = _AddPartitions(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    lambda coordinator, request, client: coordinator.add_partitions(request, client),
    _refused_partitions,
    lambda request: request.v3_and_below_transactional_id,
)
ADD_PARTITIONS_TO_SEVERAL = _AddPartitionsToSeveral()
ADD_OFFSETS = _OneId(
    ApiKey.ADD_OFFSETS_TO_TXN,
    lambda coordinator, request, client: coordinator.add_offsets(request, client),
    lambda request, code: m.AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=code),
)
END = _OneId(
    ApiKey.END_TXN,
    lambda coordinator, request, client: coordinator.end_txn(request, client),
    lambda request, code: m.EndTxnResponse(throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1),
)
DESCRIBE = _Describe()

ROUTED: Mapping[int, RoutedApi] = {
    int(api.key): api for api in (READY, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, DESCRIBE)
}
"""The APIs of forwarded requests, by API key.  The receiver uses ``call`` alone, which is the same in all versions."""
LIST = ShardListing(
    ApiKey.LIST_TRANSACTIONS,
    lambda coordinator, request, client, shards: coordinator.list_transactions_of(request, client, shards),
    of_request=frozenset({ErrorCode.INVALID_REGULAR_EXPRESSION}),
)
TRANSACTION_APIS = KindApis(ROUTED, LIST)


def pattern_error(request: m.ListTransactionsRequest) -> ErrorCode:
    """Return INVALID_REGULAR_EXPRESSION if the request's pattern cannot be read, else NONE."""
    try:
        pattern_of(request)
    except FormatError:
        return ErrorCode.INVALID_REGULAR_EXPRESSION
    return ErrorCode.NONE


def add_partitions_api(request: m.AddPartitionsToTxnRequest) -> RoutedApi:
    """Return the API of an AddPartitionsToTxn: from version 4 on the request has several transactions."""
    return ADD_PARTITIONS_TO_SEVERAL if request.API_VERSION >= SEVERAL_SINCE else ADD_PARTITIONS

"""DescribeProducers, version 0 (KIP-664): the producers in a partition's state.

Behaviour: the owner responds (rule 2), from flushed batches.  Ids below 0 are those of coordinators, and are left out.

Version notes: there is one version.

``current_txn_start_offset`` is -1 without an open transaction, ``coordinator_epoch`` -1 before the first marker.
``last_timestamp`` is the largest timestamp of the last batch, for ``kafka-transactions.sh find-hanging``. Without a
kept batch (behind a marker of a higher epoch) it is the time of the last receipt.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.records.batch import increment_sequence
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeProducersResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.proxy.partition_queries import ask_all, owner_of
from bmq.proxy.scopes import ProxyScopes
from bmq.storage.checkpoint import ProducerState

Topic = DescribeProducersResponse.TopicResponse
Partition = Topic.PartitionResponse
Producer = Partition.ProducerState
PRODUCERS_MAX = 250_000
"""Producers in one response, unless its first partition alone has more: some 10 MB."""
FAST_ELEMENTS = 50
"""Partition numbers that ``dict.fromkeys`` handles in the time of an element of ``Turns``."""
RESPONSE_BYTES = 1 << 20
"""Estimate of a response's bytes, before its producers are known."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    wanted: dict[str, dict[int, None]] = {}
    turns = Turns()
    for topic in message.topics:
        if turns.is_over(1 + len(topic.partition_indexes) // FAST_ELEMENTS):
            await next_turn()
        wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    told, rights = 0, scopes.caller.rights(request)

    async def ask(one: tuple[str, int]) -> Any:
        nonlocal told
        name, index = one
        try:
            if not rights.allow_on_topic(AclOperation.READ, name):
                raise not_authorized(ResourceType.TOPIC)
            states = await (await owner_of(scopes, name, index)).producers()
            if told and states and told + len(states) > PRODUCERS_MAX:
                raise RequestError(
                    ErrorCode.INVALID_REQUEST, "too many producers for one response: ask for fewer partitions"
                )
            told += len(states)
        except RequestError as error:
            return Partition(
                partition_index=index, error_code=error.code, error_message=error.message, active_producers=[]
            )
        producers = await turns.map(_producer, (state for state in states if state.producer_id >= 0))
        return Partition(
            partition_index=index, error_code=ErrorCode.NONE, error_message=None, active_producers=producers
        )

    pairs = [(name, index) for name, indexes in wanted.items() for index in indexes]
    answers = iter(await ask_all(pairs, ask))

    def described(name: str) -> Any:
        return Topic(name=name, partitions=list(islice(answers, len(wanted[name]))))

    return DescribeProducersResponse(throttle_time_ms=0, topics=await map_in_turns(described, wanted))


def _producer(state: ProducerState) -> Any:
    last = state.batches[-1] if state.batches else None
    return Producer(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=-1 if last is None else increment_sequence(last.base_sequence, last.last_delta),
        last_timestamp=state.last_timestamp if last is None else last.timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.txn_start,
    )


def _response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return RESPONSE_BYTES if message.topics else 0


NEEDS = (Need(AclOperation.READ, ResourceType.TOPIC, "each"),)
APIS = (Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle, response_bytes=_response_bytes, needs=NEEDS),)

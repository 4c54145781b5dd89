"""DescribeProducers, version 0 (KIP-664): the producers that a partition remembers.

Behaviour: the owner answers (rule 2), from flushed batches.  Ids below 0 are the coordinators' own and not shown.

Version notes: there is one version.

Not implemented: transactions: ``current_txn_start_offset`` is always -1.
"""

from __future__ import annotations

from typing import Any

from bmq.core.call import Request
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records import increment_sequence
from bmq.core.wire.api import ApiKey
from bmq.core.wire.messages import DescribeProducersResponse
from bmq.proxy.asking import ask_all, owner_of
from bmq.proxy.services import Api, Services
from bmq.storage.checkpoint import ProducerState

Topic = DescribeProducersResponse.TopicResponse
Partition = Topic.PartitionResponse
Producer = Partition.ProducerState


async def handle(services: Services, request: Request, message: Any) -> Any:
    wanted = [(topic.name, index) for topic in message.topics for index in topic.partition_indexes]

    async def ask(one: tuple[str, int]) -> Any:
        name, index = one
        try:
            states = await (await owner_of(services, name, index)).producers()
        except RequestError as error:
            return Partition(
                partition_index=index, error_code=error.code, error_message=error.message, active_producers=[]
            )
        producers = [_producer(state) for state in states if state.producer_id >= 0]
        return Partition(
            partition_index=index, error_code=ErrorCode.NONE, error_message=None, active_producers=producers
        )

    answers = iter(await ask_all(wanted, ask))
    return DescribeProducersResponse(
        throttle_time_ms=0,
        topics=[
            Topic(name=topic.name, partitions=[next(answers) for _ in topic.partition_indexes])
            for topic in message.topics
        ],
    )


def _producer(state: ProducerState) -> Any:
    last = state.batches[-1] if state.batches else None
    return Producer(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=-1 if last is None else increment_sequence(last.base_sequence, last.last_delta),
        last_timestamp=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.txn_start,
    )


APIS = (Api(ApiKey.DESCRIBE_PRODUCERS, 0, 0, handle),)

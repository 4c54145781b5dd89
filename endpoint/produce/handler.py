"""Produce, versions 3 to 13 (Kafka 4.x), listed from 0 (KAFKA-18659).

Behaviour: each partition's records go to its owner synchronously, before the handler's first await, so that they keep
the order of the requests.  If the partition is moving, full, or has a queue already, they go into its queue
(``endpoint.produce.queue``).

==== =============================================================================================================
acks response
==== =============================================================================================================
-1   when all of the request is flushed
1    when all of the request is buffered
0    none; if the produce fails, its connection is closed, as in Kafka, so that the client looks up the leader again
==== =============================================================================================================

``timeout_ms`` bounds the wait, not the append: what was accepted goes on, and the response to a repeated idempotent
batch has its first offset (rule 9).  A partition with an error has offset -1.  A loss of storage or ownership is always
a retriable error.

Version notes: 3 record batches of magic 2 only, transactional ids; 5 log start; 7 the first to allow zstd; 8 error
messages, and the records that a batch is refused for (KIP-467; ``core.records.check``); 9 flexible; 10 the new leader
of a partition that has moved from this process (KIP-951); 13 topic ids for names (KIP-516).

A batch without a producer id gets no new leader: the client's next batches may be under way here already, and would
pass the refused batch.

Transactions (KIP-98, KIP-890): ``endpoint.produce.transactional`` says which requests may carry transactional batches.
The owner takes the first batch of a transaction once the transaction's coordinator knows of the partition
(``broker.partition.verification``).  So each part carries the transactional id and the client's version.  Version 11
is the first with TRANSACTION_ABORTABLE, and version 12 adds its partitions to the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import ClassVar
from uuid import NAMESPACE_OID, UUID, uuid5

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.timers import LONGEST_S
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import NO_RESPONSE, CloseConnection, Outcome, PendingResponse, Request, Response
from bmq.core.records.batch import ATTRIBUTES_LOW, CODEC_MASK, CODECS, header_fault
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.primitives import NodeEndpoint
from bmq.core.wire.produce import (
    ACKS_ALL,
    ACKS_BUFFERED,
    ACKS_NONE,
    TOPIC_IDS_SINCE,
    ProduceRequest,
    ProduceTopic,
    TopicAnswer,
    Transaction,
    encode_produce,
    parse_produce,
)
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, not_authorized
from bmq.endpoint.produce.partition_produce import PartitionProduce
from bmq.endpoint.produce.transactional import Producers, transactional_producers
from bmq.endpoint.produce.transactional import refusal as refusal_of_transaction
from bmq.endpoint.request_plan import PlanRule
from bmq.endpoint.scopes import AnyScopes
from bmq.meta.catalog import Topic

ZSTD_SINCE = 7
_ZSTD = CODECS.index("zstd")
PARTITIONS_AT_ONCE = 200
"""Partitions up to which a request is handed out in a turn of the loop: at up to 100 us each, 20 ms."""
HANDED_OUT_A_TURN = 100
"""Partitions of a larger request that are handed out in one turn; the owners' work, in the next, takes as long
again."""


def handle(scopes: AnyScopes, request: Request, asked: ProduceRequest) -> Response | Awaitable[Response]:
    return Produce(scopes, request, asked).start(asked)


async def begin_large(
    scopes: AnyScopes, request: Request, until_answered: AsyncExitStack, kind: type[LargeProduce] | None = None
) -> Awaitable[Response]:
    """Hand out a request with more than PARTITIONS_AT_ONCE partitions, in turns of the loop.

    ``kind`` is the class of the produce; None: ``LargeProduce``.  Returns an awaitable of its response.  Raises
    CloseConnection if the request is malformed.
    """
    large, body, version = scopes.process.large, request.body, request.api_version
    try:
        async with large.admitted(len(body)):
            count = await large.run(_count, body, version)
        await until_answered.enter_async_context(large.produced(count))
        async with large.admitted(len(body)):
            box = [await large.run(parse_produce, body, version)]
            produce = (kind or LargeProduce)(scopes, request, box[0])
            await produce.hand_out_in_turns(box[0])
            await large.free(box)
            return produce.answered()
    except FormatError as error:
        raise CloseConnection(str(error)) from None


def _count(body: memoryview, version: int) -> int:
    return sum(len(topic.partitions) for topic in parse_produce(body, version).topics)


class Produce:
    """A request: its parts (a part per partition), and the number ``left`` of the parts without a result.

    Parts refer to it, and it refers to them until all have a result.  After that it holds neither them nor the request,
    so that the request's bytes are freed at once and do not wait for the cyclic garbage collector.
    """

    __slots__ = ("_bucket", "_client", "_correlation_id", "_failure", "_forget", "_hints", "_response", "_rights",
                 "_timeout_ms", "_topics", "_transaction", "_version", "acks", "held_until", "left",
                 "scopes")  # fmt: skip
    part_kind: ClassVar[type[PartitionProduce]] = PartitionProduce
    """The class of the parts."""

    def __init__(self, scopes: AnyScopes, request: Request, asked: ProduceRequest) -> None:
        self.scopes = scopes
        self.acks = asked.acks
        held_ms = scopes.view.config.held_produce_ms
        if asked.held_ms >= 0:  # the proxy that sent it has held it already
            held_ms = min(held_ms, asked.held_ms)
        self.held_until = asyncio.get_running_loop().time() + held_ms / 1000
        self.left = 0
        self._timeout_ms = asked.timeout_ms
        self._client = request.client
        self._rights = scopes.caller.rights(request) if scopes.caller.authorizer.is_on else None
        self._hints = scopes.view.leader_hints(scopes.process, request) if asked.acks != ACKS_NONE else None
        self._version = request.api_version
        self._transaction: Transaction | None = None
        if asked.transactional_id is not None:
            self._transaction = Transaction(asked.transactional_id, request.api_version)
        self._correlation_id = request.correlation_id
        self._topics: list[TopicAnswer] = []
        self._failure = ""  # the first one; its text only: an exception refers to the frames that it passed
        self._response: PendingResponse | None = None
        self._bucket = -1
        self._forget: Callable[[], None] = no_op

    def start(self, asked: ProduceRequest) -> Response | Awaitable[Response]:
        """Hand every part of ``asked`` to its owner or queue.  Return the response, pending if parts are."""
        refusal = self._refusal(transactional_producers(asked))
        for topic in asked.topics:
            parts: list[PartitionProduce] = []
            count = len(topic.partitions)
            self.left += count
            self._hand_out_some(topic, refusal, parts, count)
            self._topics.append(TopicAnswer(topic.name, topic.topic_id, parts))
        if not self.left:
            return self._encode_response()
        self._response = PendingResponse()
        self._bucket = self.scopes.process.produce_queue.deadlines.add(self, self._timeout_ms / 1000)
        if self.acks != ACKS_NONE:  # a produce without a response outlives its connection
            self._forget = self._client.on_close(self._drop)
        self._response.on_over(self._over)
        return self._response

    def _refusal(self, producers: Producers) -> RequestError | None:
        """Return the error of the request as a whole; None if its parts may be accepted.

        ``producers`` are those of its transactional batches.
        """
        if self.acks not in (ACKS_ALL, ACKS_BUFFERED, ACKS_NONE):
            return RequestError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self.acks} is not one of -1, 0, 1")
        if self._transaction is not None:
            levels = self.scopes.process.levels()
            return refusal_of_transaction(self._transaction.transactional_id, producers, levels, self._rights)
        return None

    def _hand_out_some(
        self, asked: ProduceTopic, refusal: RequestError | None, parts: list[PartitionProduce], stop: int
    ) -> None:
        """Hand out the partitions of ``asked`` up to ``stop`` that are not in ``parts`` yet, and put them there."""
        topic, refusal = self._find(asked.name, asked.topic_id, refusal)
        counters = self.scopes.caller.metrics.topic(topic.name) if topic is not None else None
        sent = asked.transactions if self.scopes.caller.is_process else None
        for position, (index, records) in enumerate(asked.partitions[len(parts) : stop], len(parts)):
            transaction = self._transaction if sent is None else sent.get(position)
            part = self.part_kind(self, index, records, counters, transaction)
            parts.append(part)
            if refusal is not None:
                part.key = _refused_key(asked, index)
                part.fail(refusal)
            else:
                assert topic is not None
                part.key, part.topic = PartitionKey(topic.topic_id, index), topic.name
                if asked.restarts and position in asked.restarts:
                    self.scopes.process.produce_queue.retry_order.restart(self._client, part.key)
                self._place(topic, part)

    def _find(
        self, name: str | None, topic_id: UUID | None, refusal: RequestError | None
    ) -> tuple[Topic | None, RequestError | None]:
        """Return the topic (None if unknown), and the error of all its parts (None if they may be accepted)."""
        catalog = self.scopes.process.catalog
        if self._version >= TOPIC_IDS_SINCE:
            topic = catalog.by_id(topic_id) if topic_id is not None else None
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            topic = catalog.topics.get(name or "")
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if refusal is not None:
            return topic, refusal
        if self._rights is not None:
            known = name if topic is None else topic.name  # without a name there is nothing that could be allowed
            if known is not None and not self._rights.allow_on_topic(AclOperation.WRITE, known):
                return topic, not_authorized(ResourceType.TOPIC)
        if topic is None:
            return None, RequestError(unknown, "this server does not host this topic")
        if topic.is_internal:
            return topic, RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is internal")
        return topic, None

    def _place(self, topic: Topic, part: PartitionProduce) -> None:
        """Hand a part to its owner, or to the partition's queue."""
        if not 0 <= part.partition < topic.partitions:
            part.fail(RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no such partition"))
            return
        fault = _fault(part.records, self._version)
        if fault is not None:
            part.fail(fault)
            return
        key, process = part.key, self.scopes.process
        if not process.produce_queue.is_held(key):
            if self._hints is not None and part.is_idempotent and (hint := self._hints.find(key)) is not None:
                self._hints.sent(key, hint)
                part.redirect(hint)
                return
            owner = process.owners.get(key)
            if owner is not None and owner.has_room:
                part.append(owner)
                return
        process.produce_queue.hold(key, part.as_waiting(), process.owners, self.scopes.view.config)

    def stumbled(self, part: PartitionProduce, producer_id: int, sequence: int) -> None:
        """Note that an idempotent producer's batch got a retriable error.  See ``endpoint.produce.retry_order``.

        ``sequence`` is the batch's base sequence.
        """
        self.scopes.process.produce_queue.retry_order.note(self._client, part.key, producer_id, sequence)

    def may_append(self, part: PartitionProduce, producer_id: int, sequence: int, *, is_again: bool) -> bool:
        """Return whether an idempotent batch may go to its owner: no earlier one is still to be sent again.

        In versions without topic ids, an earlier one may also have been refused while this process did not know the
        topic.  ``is_again``: it was given back by an owner.
        """
        retry_order, client = self.scopes.process.produce_queue.retry_order, self._client
        may_pass = retry_order.may_pass(client, part.key, producer_id, sequence, is_again=is_again)
        if len(retry_order) and self._version < TOPIC_IDS_SINCE:
            unknown = _unknown_key(part.topic, part.partition)
            may_pass = retry_order.may_pass(client, unknown, producer_id, sequence, is_again=is_again) and may_pass
        return may_pass

    def hold_first(self, part: PartitionProduce) -> None:
        """Put a part that its owner has given back before all others that wait for the partition."""
        self.scopes.process.produce_queue.hold_first(part.key, part.as_waiting(), self.scopes.process.owners)

    # ---------------------------------------------------------------------------------------------------------- results

    def part_over(self, error: RequestError | None) -> None:
        """Count a part that has its result: ``error``, or None if it was accepted or dropped."""
        if error is not None and not self._failure:
            self._failure = str(error)
        self.left -= 1
        if not self.left and self._response is not None:
            self._finish(self._response)

    def expire(self) -> None:
        """Fail all open parts with REQUEST_TIMED_OUT: ``timeout_ms`` has passed."""
        late = RequestError(ErrorCode.REQUEST_TIMED_OUT, f"not flushed within {self._timeout_ms} ms")
        for part in self._open_parts():
            part.fail(late)

    def _over(self, outcome: Outcome) -> None:
        """Drop all open parts if nobody waits for the response any more: the connection may stay for other requests."""
        if isinstance(outcome, asyncio.CancelledError):
            self._drop()

    def _drop(self) -> None:
        """Drop all open parts, as the client has gone: what waits is dropped, what was accepted goes on (rule 9)."""
        for part in self._open_parts():
            part.drop()

    def _open_parts(self) -> Iterator[PartitionProduce]:
        """Yield the parts without a result, each looked at when it is due: the end of one may have ended another."""
        for topic in self._topics:
            for part in topic.partitions:
                if isinstance(part, PartitionProduce) and not part.is_over:
                    yield part

    def _finish(self, response: PendingResponse) -> None:
        self._response = None
        self.scopes.process.produce_queue.deadlines.remove(self, self._bucket)
        self._forget()
        if response.is_over:  # cancelled: the connection is closed
            self._topics = []
            return
        outcome: Outcome
        try:
            outcome = self._encode_response()
        except Exception as error:  # noqa: BLE001  # a bug in a response ends its connection, not the owner's event
            outcome = error
        response.resolve(outcome)

    def _encode_response(self) -> Response:
        topics, self._topics = self._topics, []
        if self.acks == ACKS_NONE:
            return self._no_response()
        return encode_produce(self._version, self._correlation_id, topics, endpoints=self._endpoints)

    @property
    def _endpoints(self) -> Sequence[NodeEndpoint]:
        return self._hints.endpoints if self._hints is not None else ()

    def _no_response(self) -> Response:
        """Return NO_RESPONSE, for acks=0.  Raises CloseConnection if a part failed."""
        if self._failure:
            raise CloseConnection(f"a produce with acks=0 failed: {self._failure}")
        return NO_RESPONSE


class LargeProduce(Produce):
    """A request with so many partitions that each pass over them is made in turns of the loop.

    Its coroutine, not a callback, handles its time-out and the end of its connection, as these are passes, too.
    """

    __slots__ = ("_all_over", "_large", "_until")

    def __init__(self, scopes: AnyScopes, request: Request, asked: ProduceRequest) -> None:
        super().__init__(scopes, request, asked)
        self._large = scopes.process.large
        loop = asyncio.get_running_loop()
        self._until = loop.time() + min(max(asked.timeout_ms / 1000, 0.0), LONGEST_S)
        self._all_over: asyncio.Future[None] = loop.create_future()

    async def hand_out_in_turns(self, asked: ProduceRequest) -> None:
        """Hand every part of ``asked`` to its owner or queue.  If cancelled, drop those that were handed out."""
        refusal = self._refusal(await self._large.run(transactional_producers, asked))
        turns = Turns(HANDED_OUT_A_TURN)
        self.left = 1  # for this method, until all are handed out
        try:
            for topic in asked.topics:
                if turns.is_over():  # a topic without partitions costs time, too
                    await next_turn()
                parts: list[PartitionProduce] = []
                self._topics.append(TopicAnswer(topic.name, topic.topic_id, parts))
                while len(parts) < len(topic.partitions):
                    count = min(HANDED_OUT_A_TURN, len(topic.partitions) - len(parts))
                    if turns.is_over(count):
                        await next_turn()
                    self.left += count
                    self._hand_out_some(topic, refusal, parts, len(parts) + count)
        except asyncio.CancelledError:
            await self._drop_all()
            raise
        self.part_over(None)

    async def answered(self) -> Response:
        """Return the response, once all parts have a result or the time is up.

        To be cancelled when the client has gone.  Raises CloseConnection if a part of a produce with acks=0 failed.
        """
        try:
            async with asyncio.timeout_at(self._until):
                await self._all_over
        except TimeoutError:
            late = RequestError(ErrorCode.REQUEST_TIMED_OUT, f"not flushed within {self._timeout_ms} ms")
            await self._for_open_parts(lambda part: part.fail(late))
        except asyncio.CancelledError:
            await self._drop_all()
            raise
        topics, self._topics = self._topics, []
        if self.acks == ACKS_NONE:
            await self._large.free([topics])
            return self._no_response()
        box = [topics]
        del topics
        return await self._large.run(_encode_and_free, self._version, self._correlation_id, box, self._endpoints)

    async def _drop_all(self) -> None:
        """Drop the parts that are not accepted yet, and free all parts, which refer to this object."""
        await self._for_open_parts(PartitionProduce.drop)
        box, self._topics = [self._topics], []
        await self._large.free(box)

    async def _for_open_parts(self, end: Callable[[PartitionProduce], None]) -> None:
        turns = Turns(HANDED_OUT_A_TURN)
        for topic in self._topics:
            for part in topic.partitions:
                if turns.is_over():
                    await next_turn()
                if isinstance(part, PartitionProduce) and not part.is_over:
                    end(part)

    def part_over(self, error: RequestError | None) -> None:
        if error is not None and not self._failure:
            self._failure = str(error)
        self.left -= 1
        if not self.left and not self._all_over.done():
            self._all_over.set_result(None)


def _encode_and_free(
    version: int, correlation_id: int, box: list[list[TopicAnswer]], endpoints: Sequence[NodeEndpoint]
) -> Response:
    return encode_produce(version, correlation_id, box.pop(), endpoints=endpoints)


def _unknown_key(name: str, partition: int) -> PartitionKey:
    """Return the key of a topic's partition for as long as this process does not know the topic's id."""
    return PartitionKey(uuid5(NAMESPACE_OID, name), partition)


def _refused_key(asked: ProduceTopic, partition: int) -> PartitionKey:
    """Return the key under which ``RetryOrder`` remembers the batches for a topic that is refused as a whole.

    Another proxy may already have the topic in its Metadata, and send clients here.  If this process refused a batch
    because it did not know the topic, the batches behind it must not pass once the topic is known.
    """
    if asked.topic_id is not None:
        return PartitionKey(asked.topic_id, partition)
    return _unknown_key(asked.name or "", partition)


def _fault(records: memoryview | None, version: int) -> RequestError | None:
    """Return the error of records without a batch's header, or of Kafka's ``ProduceRequest.validateRecords``, if any.

    The owner checks the rest.
    """
    if not records:
        return RequestError(ErrorCode.INVALID_RECORD, "a partition without a record batch")
    fault = header_fault(records)
    if fault is not None:
        return fault
    if version < ZSTD_SINCE and records[ATTRIBUTES_LOW] & CODEC_MASK == _ZSTD:
        return RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd is allowed from version {ZSTD_SINCE} on")
    return None


NEEDS = (
    Need(AclOperation.WRITE, ResourceType.TOPIC, "each"),
    Need(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "if a batch is transactional"),
)
RULE = PlanRule(partitions=PARTITIONS_AT_ONCE, keeps_order=True)
APIS = (
    Api(
        ApiKey.PRODUCE, 3, 13, handle, RULE, parse_produce, begin_large,
        is_pipelined=True, needs=NEEDS, advertised_min=0,
    ),
)  # fmt: skip

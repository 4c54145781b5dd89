"""Partition owners' questions to the coordinators of transactions (KIP-890): a broker's side.

::

    verify = PartitionVerifier(view, catalog, peers)
    found = await verify(transactional_id, producer_id, producer_epoch, keys, add=False)
    code, ownership = found[key]

Each process gets the questions of a turn of the loop in a single request, a forwarded AddPartitionsToTxn
(``coordinator.server``). A coordinator in this process is called without the network (``Peers.ask``). Nothing is asked
twice here. A coordinator serves only while its ownership number is at least the number in the request, so the
request's number bounds the answer's from below.

| code | the partition |
|---|---|
| NONE | is in the producer's transaction; with ``add`` it was added if necessary |
| COORDINATOR_NOT_AVAILABLE | the shard has no coordinator, or too many questions wait for its process |
| NOT_COORDINATOR | the view is behind, or the connection broke |
| REQUEST_TIMED_OUT | no response came in time |
| UNKNOWN_TOPIC_OR_PARTITION | the catalog here has no topic of its id |
| any other | as the coordinator says |
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from bmq.coordinator.joined_requests import Asker, JoinBounds, JoinedRequests
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer
from bmq.core.rpc.message_fields import Unencoded
from bmq.core.rpc.messages.coordinator import ForwardRequest, ForwardResponse
from bmq.core.rpc.messages.markers import code_of
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.messages import AddPartitionsToTxnRequest
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId, present_shards

VERSION = 5
"""Version of AddPartitionsToTxn: with TRANSACTION_ABORTABLE."""
TIMEOUT_S = 5.0
"""Seconds until a request without a response is given up."""
REQUESTS_MAX = 4
"""Requests under way to one process. A slow shard delays only the questions in its request."""
QUESTIONS_MAX = 500
"""Questions in one request."""
WAITING_MAX = 10_000
"""Most waiting questions to one process."""

_LOST = ErrorCode.NOT_COORDINATOR

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = _Transaction.AddPartitionsToTxnTopic
Found = Mapping[PartitionKey, tuple[ErrorCode, int]]


class _Question:
    """One question: a producer's transaction, its partitions by topic name, and the future of its answer."""

    __slots__ = ("future", "is_add", "keys", "names", "ownership", "producer", "shard", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        keys: Sequence[PartitionKey],
        names: Mapping[PartitionKey, str],
        shard: ShardId,
        *,
        is_add: bool,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.keys = keys
        self.names = names
        self.shard = shard
        self.is_add = is_add
        self.ownership = 0  # the number of the shard's ownership in the request
        self.future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

    def respond(self, codes: Mapping[tuple[str, int], ErrorCode]) -> None:
        """Set the answer; a partition without a code was not answered."""
        if self.future.done():
            return
        found = {}
        for key in self.keys:
            name = self.names.get(key)
            if name is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                code = codes.get((name, key.partition), ErrorCode.UNKNOWN_SERVER_ERROR)
            found[key] = code, self.ownership
        self.future.set_result(found)

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def refuse(self, code: ErrorCode) -> None:
        """Set the same error for all partitions."""
        if not self.future.done():
            self.future.set_result(dict.fromkeys(self.keys, (code, 0)))


class PartitionVerifier:
    """The way of questions from a broker to coordinators; see the module's docstring."""

    def __init__(self, view: ClusterView, catalog: Catalog, asker: Asker) -> None:
        self._view = view
        self._catalog = catalog
        self._requests = JoinedRequests(
            asker, self._request, _read, JoinBounds(REQUESTS_MAX, QUESTIONS_MAX, WAITING_MAX, TIMEOUT_S), lost=_LOST,
            full=ErrorCode.COORDINATOR_NOT_AVAILABLE, terms=_terms,
        )  # fmt: skip

    def __repr__(self) -> str:
        found = self._requests
        return f"<PartitionVerifier processes={found.processes} waiting={found.waiting} requests={found.under_way}>"

    async def __call__(
        self, transactional_id: str, producer_id: int, producer_epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> Found:
        """Ask whether the partitions are in the producer's transaction; ``add``: add them.

        Returns for each its code, and a lower bound of the number of the coordinator's ownership of its shard.
        """
        names = {key: topic.name for key in keys if (topic := self._catalog.by_id(key.topic_id)) is not None}
        count = present_shards(TRANSACTIONS, self._catalog)
        shard = ShardId(TRANSACTIONS, shard_of(transactional_id, count)) if count else ShardId(TRANSACTIONS, 0)
        question = _Question(transactional_id, (producer_id, producer_epoch), keys, names, shard, is_add=add)
        if count and names:
            self._put(question)
        elif count:
            question.respond({})
        else:
            question.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await question.future

    async def close(self) -> None:
        """Cancel the requests under way.  Now and later, questions get NOT_COORDINATOR."""
        await self._requests.close()

    def _put(self, question: _Question) -> None:
        owner = self._view.shard(question.shard)
        member = self._view.members.get(owner.incarnation) if owner is not None else None
        if member is None:
            question.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._requests.put(member, question)

    def _request(self, member: Member, taken: Sequence[_Question]) -> ForwardRequest:
        """Return the request of the questions.  Raises RequestError NOT_COORDINATOR if a shard has moved since."""
        numbers: dict[ShardId, int] = {}
        for question in taken:
            owner = self._view.shard(question.shard)
            if owner is None or owner.incarnation != member.incarnation:
                raise RequestError(_LOST, f"{question.shard} has moved")
            numbers[question.shard] = question.ownership = owner.number
        message = _body(taken)
        body = Unencoded(message, partial(encode_request, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, message))
        ownerships = tuple((shard.code, number) for shard, number in numbers.items())
        ids = {name: key.topic_id for question in taken for key, name in question.names.items()}
        return ForwardRequest(
            "", "", ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, ownerships, body, topic_ids=tuple(ids.items())
        )


def _read(taken: Sequence[_Question], response: ForwardResponse) -> None:
    """Answer the questions.  Raises FormatError."""
    found = _message(response.body)
    code = code_of(found.error_code)
    results = {each.transactional_id: _codes(each) for each in found.results_by_transaction}
    for question in taken:
        codes = results.get(question.transactional_id)
        if code is not ErrorCode.NONE or codes is None:
            question.refuse(code or ErrorCode.UNKNOWN_SERVER_ERROR)
        else:
            question.respond(codes)


def _message(body: Buffer | Unencoded) -> Any:
    if isinstance(body, Unencoded):
        return body.message
    return decode_response(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, memoryview(body))


def _terms(question: _Question) -> tuple[str, tuple[tuple[int, int], bool]]:
    """Return the transactional id, and what a request says once about it: the producer, and whether to add."""
    return question.transactional_id, (question.producer, question.is_add)


def _body(taken: Sequence[_Question]) -> AddPartitionsToTxnRequest:
    """Return the request of the questions. Questions about the same transactional id become one transaction."""
    topics: dict[str, dict[str, set[int]]] = {}
    of_id: dict[str, _Question] = {}
    for question in taken:
        of_id[question.transactional_id] = question
        partitions = topics.setdefault(question.transactional_id, {})
        for key, name in question.names.items():
            partitions.setdefault(name, set()).add(key.partition)
    transactions = [
        _Transaction(
            transactional_id=transactional_id,
            producer_id=question.producer[0],
            producer_epoch=question.producer[1],
            verify_only=not question.is_add,
            topics=[_Topic(name=name, partitions=sorted(each)) for name, each in topics[transactional_id].items()],
        )
        for transactional_id, question in of_id.items()
    ]
    return AddPartitionsToTxnRequest(version=VERSION, transactions=transactions)


def _codes(result: Any) -> dict[tuple[str, int], ErrorCode]:
    return {
        (topic.name, each.partition_index): code_of(each.partition_error_code)
        for topic in result.topic_results
        for each in topic.results_by_partition
    }

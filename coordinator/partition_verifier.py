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
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.coordinator import ForwardRequest
from bmq.core.rpc.messages.markers import code_of
from bmq.core.rpc.peers import PeerLost
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.messages import AddPartitionsToTxnRequest
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ClusterView
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId, shard_count

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

_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = _Transaction.AddPartitionsToTxnTopic
Found = Mapping[PartitionKey, tuple[ErrorCode, int]]


class Asker(Protocol):
    """The part of ``core.rpc.peers.Peers`` that questions need."""

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Return the response.  Raises RequestError with the member's error, PeerLost or TimeoutError."""
        ...


class _Question:
    """One question: a producer's transaction, its partitions by topic name, and the future of its answer."""

    __slots__ = ("future", "is_add", "keys", "names", "producer", "shard", "transactional_id")

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
        self.future: asyncio.Future[Found] = asyncio.get_running_loop().create_future()

    def respond(self, codes: Mapping[tuple[str, int], ErrorCode], ownership: int) -> None:
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
            found[key] = code, ownership
        self.future.set_result(found)

    def fail(self, code: ErrorCode) -> None:
        """Set the same error for all partitions."""
        if not self.future.done():
            self.future.set_result(dict.fromkeys(self.keys, (code, 0)))


class _Process:
    """The questions to one process."""

    __slots__ = ("is_due", "member", "under_way", "waiting")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.waiting: deque[_Question] = deque()
        self.under_way = 0
        self.is_due = False


class PartitionVerifier:
    """The way of questions from a broker to coordinators; see the module's docstring."""

    def __init__(self, view: ClusterView, catalog: Catalog, asker: Asker) -> None:
        self._view = view
        self._catalog = catalog
        self._asker = asker
        self._processes: dict[str, _Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        waiting = sum(len(process.waiting) for process in self._processes.values())
        return f"<PartitionVerifier processes={len(self._processes)} waiting={waiting} requests={len(self._tasks)}>"

    async def __call__(
        self, transactional_id: str, producer_id: int, producer_epoch: int, keys: Sequence[PartitionKey], add: bool
    ) -> Found:
        """Ask whether the partitions are in the producer's transaction; ``add``: add them.

        Returns for each its code, and a lower bound of the number of the coordinator's ownership of its shard.
        """
        names = {key: topic.name for key in keys if (topic := self._catalog.by_id(key.topic_id)) is not None}
        count = shard_count(TRANSACTIONS, self._catalog, 0)
        shard = ShardId(TRANSACTIONS, shard_of(transactional_id, count)) if count else ShardId(TRANSACTIONS, 0)
        question = _Question(transactional_id, (producer_id, producer_epoch), keys, names, shard, is_add=add)
        if count and names:
            self._put(question)
        elif count:
            question.respond({}, 0)
        else:
            question.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return await question.future

    async def close(self) -> None:
        """Cancel the requests under way; what waits has NOT_COORDINATOR."""
        for process in self._processes.values():
            while process.waiting:
                process.waiting.popleft().fail(ErrorCode.NOT_COORDINATOR)
        await cancel_and_wait(*self._tasks)

    def _put(self, question: _Question) -> None:
        owner = self._view.shard(question.shard)
        member = self._view.members.get(owner.incarnation) if owner is not None else None
        if member is None:
            question.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        process = self._processes.get(member.incarnation)
        if process is None:
            process = self._processes[member.incarnation] = _Process(member)
        if len(process.waiting) >= WAITING_MAX:
            question.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        process.waiting.append(question)
        if not process.is_due and process.under_way < REQUESTS_MAX:
            process.is_due = True
            asyncio.get_running_loop().call_soon(self._send, process)

    def _send(self, process: _Process) -> None:
        """Send what waits, in as many requests as may be under way."""
        process.is_due = False
        while process.waiting and process.under_way < REQUESTS_MAX:
            taken = _take(process.waiting)
            if taken:
                process.under_way += 1
                task = asyncio.get_running_loop().create_task(self._ask(process, taken))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if not process.waiting and not process.under_way:
            self._processes.pop(process.member.incarnation, None)

    async def _ask(self, process: _Process, taken: Sequence[_Question]) -> None:
        code = ErrorCode.NOT_COORDINATOR  # also if the task is cancelled
        try:
            code = await self._send_one(process.member, taken)
        finally:
            process.under_way -= 1
            for question in taken:
                question.fail(code)
            self._send(process)

    async def _send_one(self, member: Member, taken: Sequence[_Question]) -> ErrorCode:
        """Send one request and answer the questions; return the error of all questions without an answer."""
        owners = {question.shard: self._view.shard(question.shard) for question in taken}
        numbers = {
            shard: owner.number
            for shard, owner in owners.items()
            if owner is not None and owner.incarnation == member.incarnation
        }
        if len(numbers) != len(owners):
            return ErrorCode.NOT_COORDINATOR  # a shard has moved in this turn
        body = encode_request(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, _request(taken))
        ownerships = tuple((shard.code, number) for shard, number in numbers.items())
        forward = ForwardRequest("", "", ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, ownerships, body)
        try:
            response = await self._asker.ask(member, forward, TIMEOUT_S)
            found = decode_response(ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, memoryview(response.body))
        except RequestError as error:
            return error.code
        except PeerLost:
            return ErrorCode.NOT_COORDINATOR
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except FormatError:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if found.error_code != ErrorCode.NONE:
            return code_of(found.error_code)
        codes = {each.transactional_id: _codes(each) for each in found.results_by_transaction}
        for question in taken:
            if question.transactional_id in codes:
                question.respond(codes[question.transactional_id], numbers[question.shard])
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _take(waiting: deque[_Question]) -> list[_Question]:
    """Take off the questions of one request, up to a second producer or kind of question for a transactional id."""
    asked: dict[str, tuple[tuple[int, int], bool]] = {}
    taken: list[_Question] = []
    while waiting and len(taken) < QUESTIONS_MAX:
        question = waiting[0]
        if not question.future.done():  # else its caller has gone
            terms = question.producer, question.is_add
            if asked.setdefault(question.transactional_id, terms) != terms:
                break
            taken.append(question)
        waiting.popleft()
    return taken


def _request(taken: Sequence[_Question]) -> AddPartitionsToTxnRequest:
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

"""Queries to brokers about their partitions: a turn's queries to the same broker go out as a single request.

A client's request about 100,000 partitions then becomes a hundred requests to their brokers.  The broker may not be
able to respond at once for a partition: it is being opened, its search reads storage, its flush hangs.  Then it marks
the query as not answered, and the other queries do not wait for it.  The query goes out again as a request of its own,
and waits as long as the broker does.  If ``SINGLES_MAX`` such requests are under way, it goes out together with
others again.

::

    ask ──▶ queue ──┬─ two or more ─▶ AskPartitions ──┬─ answered ─────▶ the caller
              ▲     └─ one ─────────▶ Ask ────────────┤
              │                        ▲              └─ not answered ─┐
              └── after PAUSE_S, if no single is free ─┴────────────────┘

A broker of an earlier version does not serve AskPartitions: each query to it is a request of its own.  A relay of an
earlier version does not pass AskPartitions on, and closes the connection: so for a while after a request was lost,
queries go out one by one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from bmq.core.aio.steps import batched
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.turns import next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.broker import (
    ASKED_TOGETHER,
    QUESTIONS_MAX,
    AskPartitionsRequest,
    AskRequest,
    AskResponse,
    OwnerAnswer,
    PartitionQuestion,
)
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member

WAIT_S = 0.1
"""Time that a broker may take for a request about many partitions, before it marks the rest as not answered."""
TOGETHER_MAX = 2
"""Requests about many partitions under way to one broker: it works on one while the next is on its way."""
SINGLES_MAX = 64
"""Requests about one partition under way to one broker: some of them wait there for seconds."""
PAUSE_S = 0.1
"""Time before a query that was not answered goes out again together with others."""
LOST_S = 5.0
"""Time for which queries go out singly after a request about many partitions was lost."""
RESUMED_A_TURN = 200
"""Callers that get their results in a turn of the loop: a caller may work for up to 50 us."""


class Asker(Protocol):
    """Sender of requests: ``core.rpc.peers.Peers``, or ``proxy.relay.pool.RelayPool`` over them."""

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Return the response.  Raises RequestError with the member's error, PeerLost or TimeoutError."""
        ...


class BatchedQueries:
    """The queries of one process to all brokers, over its control connections to them."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._brokers: dict[str, _Broker] = {}

    def __repr__(self) -> str:
        return f"<BatchedQueries {list(self._brokers.values())}>"

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Return the response of ``member``; a query of ``ASKED_TOGETHER`` may go out with others.

        Raises RequestError with the member's error, or a retriable one if there is no response within ``timeout_s``.
        """
        if not isinstance(request, AskRequest) or request.question not in ASKED_TOGETHER:
            return await ask_member(self._asker, member, request, timeout_s)
        broker = self._brokers.get(member.incarnation)
        if broker is None:
            broker = self._brokers[member.incarnation] = _Broker(self._asker, member)
        broker.member = member
        asked = _Asked(request, asyncio.get_running_loop().time() + timeout_s)
        broker.put(asked)
        try:
            async with asyncio.timeout(timeout_s):
                return await asked.response  # type: ignore[return-value]
        except TimeoutError as error:
            raise _no_response(member) from error

    def forget(self, incarnation: str) -> None:
        """Drop a broker that is not a member any more.  Requests under way to it end with its connection."""
        self._brokers.pop(incarnation, None)

    async def close(self) -> None:
        """Cancel the requests under way.  Idempotent."""
        brokers, self._brokers = self._brokers, {}
        for broker in brokers.values():
            await broker.close()


class _Asked:
    """One query, and the future of its result, for which the caller waits until ``deadline`` on the loop's clock."""

    __slots__ = ("deadline", "message", "response")

    def __init__(self, message: AskRequest, deadline: float) -> None:
        self.message = message
        self.deadline = deadline
        self.response: asyncio.Future[AskResponse] = asyncio.get_running_loop().create_future()

    def succeed(self, response: AskResponse) -> None:
        if not self.response.done():  # else the caller has given up
            self.response.set_result(response)

    def fail(self, code: ErrorCode, message: str) -> None:
        if not self.response.done():
            self.response.set_exception(RequestError(code, message))


class _Broker:
    """The queries to one broker: in the queue, or under way."""

    def __init__(self, asker: Asker, member: Member) -> None:
        self.member = member
        self._asker = asker
        self._queue: deque[_Asked] = deque()
        self._is_due = False
        self._together = 0
        self._singles = 0
        self._is_earlier = False  # it serves one question a request
        self._one_by_one_until = 0.0
        self._tasks = OwnedTasks()

    def __repr__(self) -> str:
        under_way = f"{self._together} requests and {self._singles} single ones under way"
        return f"<{self.member.incarnation}: {len(self._queue)} in the queue, {under_way}>"

    def put(self, asked: _Asked) -> None:
        """Put a query into the queue, to be sent at the end of this turn of the loop."""
        self._queue.append(asked)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send)

    async def close(self) -> None:
        await self._tasks.close()

    def _send(self) -> None:
        """Send the queries in the queue, as far as the bounds allow."""
        self._is_due = False
        while self._queue:
            is_together = not self._is_earlier and self._loop_time() >= self._one_by_one_until
            if self._singles < SINGLES_MAX and (len(self._queue) == 1 or not is_together):
                self._begin_single(self._queue.popleft())
            elif is_together and self._together < TOGETHER_MAX:
                size = min(len(self._queue), QUESTIONS_MAX)
                taken = [self._queue.popleft() for _ in range(size)]
                asked = [each for each in taken if not each.response.done()]
                if asked:
                    self._together += 1
                    self._spawn(self._ask_together(asked))
            else:
                return

    def _begin_single(self, asked: _Asked) -> None:
        if not asked.response.done():
            self._singles += 1
            self._spawn(self._ask_single(asked))

    async def _ask_single(self, asked: _Asked) -> None:
        left_s = asked.deadline - self._loop_time()
        try:
            asked.succeed(await ask_member(self._asker, self.member, asked.message, left_s))
        except RequestError as error:
            asked.fail(error.code, error.message)
        finally:
            self._singles -= 1
        self._send()

    async def _ask_together(self, asked: Sequence[_Asked]) -> None:
        try:
            answers = await self._answers(asked)
        finally:
            self._together -= 1
        later = await self._give(asked, answers) if answers else []
        while later and self._singles < SINGLES_MAX:
            self._begin_single(later.pop())
        self._send()
        if later:
            await asyncio.sleep(PAUSE_S)
            for each in later:
                self.put(each)

    async def _answers(self, asked: Sequence[_Asked]) -> Sequence[OwnerAnswer]:
        """Send these queries as one request, and return the broker's answers, in their order.

        Returns nothing if the request failed: then ``asked`` have failed, or are in the queue again.
        """
        request = AskPartitionsRequest(int(WAIT_S * 1000), [_row(each.message) for each in asked])
        left_s = max(each.deadline for each in asked) - self._loop_time()
        try:
            found = await self._asker.ask(self.member, request, left_s)
            if len(found.answers) == len(asked):
                return found.answers
            text = f"{self.member.incarnation} returned {len(found.answers)} answers to {len(asked)} queries"
            error = RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        except PeerLost as lost:
            self._one_by_one_until = self._loop_time() + LOST_S
            error = _connection_lost(self.member, lost)
        except TimeoutError:
            error = _no_response(self.member)
        except RequestError as refused:
            if refused.code is ErrorCode.UNSUPPORTED_VERSION:
                self._is_earlier = True
                self._queue.extendleft(reversed(asked))
                return ()
            error = refused
        for part in batched(asked, RESUMED_A_TURN):
            for each in part:
                each.fail(error.code, error.message)
            await next_turn()
        return ()

    async def _give(self, asked: Sequence[_Asked], answers: Sequence[OwnerAnswer]) -> list[_Asked]:
        """Give the callers their results.  Returns the queries that the broker has not answered."""
        later: list[_Asked] = []
        for part in batched(zip(asked, answers, strict=True), RESUMED_A_TURN):
            for each, response in part:
                if not response.is_answered:
                    later.append(each)
                elif response.error:
                    code = _code_of(response.error)
                    each.fail(code, f"{self.member.incarnation} returned {code.name}")
                else:
                    each.succeed(AskResponse(ErrorCode.NONE, "", response.values))
            await next_turn()
        return later

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, f"query to {self.member.incarnation}")

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


async def ask_member(asker: Asker, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
    """Send one query over the control connection, and return its response.

    Raises RequestError with the member's error, or a retriable one if the connection is lost or there is no response
    within ``timeout_s``.
    """
    try:
        return await asker.ask(member, request, timeout_s)
    except PeerLost as error:
        raise _connection_lost(member, error) from error
    except TimeoutError as error:
        raise _no_response(member) from error


def _row(message: AskRequest) -> PartitionQuestion:
    return PartitionQuestion(message.topic_id, message.partition, message.question, message.argument)


def _code_of(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _connection_lost(member: Member, error: PeerLost) -> RequestError:
    return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the connection to {member.incarnation} was lost: {error}")


def _no_response(member: Member) -> RequestError:
    return RequestError(ErrorCode.REQUEST_TIMED_OUT, f"{member.incarnation} does not respond")

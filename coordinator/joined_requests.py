"""Joined requests to other processes: the questions of one turn of the loop to one process share a request.

::

    requests = JoinedRequests(peers, build, read, bounds, lost=NOT_COORDINATOR, full=REQUEST_TIMED_OUT)
    requests.put(member, question)

``build`` makes one request of some questions, ``read`` answers the questions from the response.  The number of requests
under way to one process is bounded.  Further questions wait, in bounded number, and share the next request.  The own
process is called without the network (``Peers.ask``).  No question is asked twice: its caller asks again.

| event                                         | answer of the questions |
|-----------------------------------------------|-------------------------|
| the process responds                          | by ``read``             |
| the process responds with an error            | this error              |
| the connection breaks                         | ``lost``                |
| no response comes in time                     | REQUEST_TIMED_OUT       |
| the response cannot be read                   | UNKNOWN_SERVER_ERROR    |
| too many questions wait already               | ``full``                |
| ``close``, during the question or before it   | ``lost``                |
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from bmq.core.aio.tasks import OwnedTasks
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.member import Member


class Asker(Protocol):
    """The part of ``core.rpc.peers.Peers`` that joined requests need."""

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        """Return the response.  Raises RequestError with the member's error, PeerLost or TimeoutError."""
        ...


class Question(Protocol):
    """A part of a request, with a caller that waits for the answer."""

    @property
    def is_over(self) -> bool:
        """True if the question has its answer, or its caller waits no longer."""
        ...

    def refuse(self, code: ErrorCode) -> None:
        """Answer with an error, unless the question has its answer."""
        ...


class JoinBounds(NamedTuple):
    """Bounds for each process, and ``timeout_s``: seconds until a request without a response is given up."""

    requests: int
    questions: int
    """Questions in one request."""
    waiting: int
    timeout_s: float


Q = TypeVar("Q", bound=Question)


class _Process(Generic[Q]):
    """The questions to one process."""

    __slots__ = ("is_due", "member", "under_way", "waiting")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.waiting: deque[Q] = deque()
        self.under_way = 0
        self.is_due = False


class JoinedRequests(Generic[Q, R]):
    """Requests of one kind to all processes; see the module's docstring."""

    def __init__(
        self,
        asker: Asker,
        build: Callable[[Member, Sequence[Q]], InternalRequest[R]],
        read: Callable[[Sequence[Q], R], None],
        bounds: JoinBounds,
        *,
        lost: ErrorCode,
        full: ErrorCode,
        terms: Callable[[Q], tuple[Hashable, Hashable]] | None = None,
    ) -> None:
        """``build`` may raise RequestError, which is the answer of its questions.

        ``read`` answers all its questions, or raises FormatError before the first answer.  ``terms`` returns a subject
        and its terms: a request has the same terms for all questions about a subject, and a question with other terms
        waits for the next request.
        """
        self._asker = asker
        self._build = build
        self._read = read
        self._bounds = bounds
        self._lost = lost
        self._full = full
        self._terms = terms
        self._processes: dict[str, _Process[Q]] = {}
        self._tasks = OwnedTasks()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<JoinedRequests processes={self.processes} waiting={self.waiting} requests={self.under_way}>"

    @property
    def processes(self) -> int:
        """The number of processes with questions."""
        return len(self._processes)

    @property
    def under_way(self) -> int:
        """The number of requests without a response yet."""
        return len(self._tasks)

    @property
    def waiting(self) -> int:
        """The number of questions that no request has taken yet."""
        return sum(len(process.waiting) for process in self._processes.values())

    def put(self, member: Member, question: Q) -> None:
        """Ask ``member`` in the next turn of the loop, or once fewer requests are under way to it."""
        if self._is_closed:
            question.refuse(self._lost)
            return
        process = self._processes.get(member.incarnation)
        if process is None:
            process = self._processes[member.incarnation] = _Process(member)
        if len(process.waiting) >= self._bounds.waiting:
            question.refuse(self._full)
            return
        process.waiting.append(question)
        if not process.is_due and process.under_way < self._bounds.requests:
            process.is_due = True
            asyncio.get_running_loop().call_soon(self._send, process)

    async def close(self) -> None:
        """Cancel the requests under way.  Now and later, questions get ``lost``."""
        self._is_closed = True
        for process in list(self._processes.values()):
            waiting, process.waiting = process.waiting, deque()
            for question in waiting:
                question.refuse(self._lost)
        await self._tasks.close()

    def _send(self, process: _Process[Q]) -> None:
        """Send the waiting questions, in as many requests as may be under way."""
        process.is_due = False
        while process.waiting and process.under_way < self._bounds.requests:
            taken = self._take(process.waiting)
            if taken:
                process.under_way += 1
                task = self._tasks.start(self._ask(process, taken), f"request to {process.member.incarnation}")
                # Not in the task: a cancellation before its first step runs no line of it.
                task.add_done_callback(partial(self._ended, process, taken))
        incarnation = process.member.incarnation
        if not process.waiting and not process.under_way and self._processes.get(incarnation) is process:
            del self._processes[incarnation]

    def _take(self, waiting: deque[Q]) -> list[Q]:
        """Take off the questions of one request, up to the first with other terms."""
        asked: dict[Hashable, Hashable] = {}
        taken: list[Q] = []
        while waiting and len(taken) < self._bounds.questions:
            question = waiting[0]
            if not question.is_over:
                if self._terms is not None:
                    subject, terms = self._terms(question)
                    if asked.setdefault(subject, terms) != terms:
                        break
                taken.append(question)
            waiting.popleft()
        return taken

    async def _ask(self, process: _Process[Q], taken: Sequence[Q]) -> ErrorCode:
        """Ask the questions.  Return the answer of the rest, for which the response has none."""
        try:
            taken = [question for question in taken if not question.is_over]  # a turn later: a client may have gone
            if taken:
                request = self._build(process.member, taken)
                self._read(taken, await self._asker.ask(process.member, request, self._bounds.timeout_s))
        except RequestError as error:
            return error.code
        except PeerLost:
            return self._lost
        except TimeoutError:
            return ErrorCode.REQUEST_TIMED_OUT
        except FormatError:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return self._lost

    def _ended(self, process: _Process[Q], taken: Sequence[Q], task: asyncio.Task[ErrorCode]) -> None:
        """End a request: its questions have their answers, and the next may be sent."""
        has_failed = task.cancelled() or task.exception() is not None
        process.under_way -= 1
        for question in taken:
            question.refuse(self._lost if has_failed else task.result())
        self._send(process)

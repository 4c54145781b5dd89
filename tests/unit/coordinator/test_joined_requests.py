"""Joined requests: a request a turn and process, bounds, an answer for each outcome, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.coordinator.joined_requests import JoinBounds, JoinedRequests
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.rpc.peers import PeerLost
from tests.harness.fakes import member
from tests.harness.waiting import until


class Question:
    """A question about ``subject``; ``terms`` are what a request says about it."""

    def __init__(self, subject: int, terms: str = "") -> None:
        self.subject = subject
        self.terms = terms
        self.answers: list[str] = []
        self.is_gone = False

    @property
    def is_over(self) -> bool:
        return self.is_gone or bool(self.answers)

    def refuse(self, code: ErrorCode) -> None:
        if not self.answers:
            self.answers.append(code.name)


class World:
    """Processes that answer each subject with itself, once ``may_respond``; ``asked`` has the requests."""

    def __init__(self, *, requests: int = 2, questions: int = 3, waiting: int = 4) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        self.failure: Exception | None = None
        self.build_error: Exception | None = None
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.requests: JoinedRequests[Question, Any] = JoinedRequests(
            self, self.build, self.read, JoinBounds(requests, questions, waiting, 7.0), lost=ErrorCode.NOT_COORDINATOR,
            full=ErrorCode.THROTTLING_QUOTA_EXCEEDED, terms=lambda question: (question.subject, question.terms),
        )  # fmt: skip

    def build(self, to: Any, taken: Sequence[Question]) -> Any:
        if self.build_error is not None:
            raise self.build_error
        return [question.subject for question in taken]

    async def ask(self, to: Any, request: Any, timeout_s: float) -> Any:
        assert timeout_s == 7.0
        self.asked.append((to.incarnation, request))
        await self.may_respond.wait()
        if self.failure is not None:
            raise self.failure
        return request

    def read(self, taken: Sequence[Question], response: Any) -> None:
        if response == [13]:
            raise FormatError("cannot be read")
        for question, subject in zip(taken, response, strict=True):
            question.answers.append(str(subject))

    def put(self, *subjects: int, to: str = "a", terms: str = "") -> list[Question]:
        questions = [Question(subject, terms) for subject in subjects]
        for question in questions:
            self.requests.put(member(to), question)
        return questions

    def shape(self) -> str:
        return repr(self.requests)


@asynccontextmanager
async def world(**bounds: int) -> AsyncIterator[World]:
    made = World(**bounds)
    try:
        yield made
    finally:
        await made.requests.close()


def answers(questions: Sequence[Question]) -> list[list[str]]:
    return [question.answers for question in questions]


async def answered(questions: Sequence[Question]) -> list[list[str]]:
    await until(lambda: all(question.answers for question in questions))
    return answers(questions)


async def test_the_questions_of_one_turn_share_a_request_to_their_process() -> None:
    async with world() as w:
        questions = [*w.put(1, 2), *w.put(3, to="b"), *w.put(4)]
        assert w.asked == [], "it is sent in the next turn"
        assert await answered(questions) == [["1"], ["2"], ["3"], ["4"]]
        assert w.asked == [("a", [1, 2, 4]), ("b", [3])]
        await until(lambda: w.shape() == "<JoinedRequests processes=0 waiting=0 requests=0>")


async def test_what_is_too_much_for_a_request_or_for_those_under_way_waits_and_shares_the_next() -> None:
    async with world() as w:
        w.may_respond.clear()
        first = w.put(1, 2, 3, 4)
        await until(lambda: len(w.asked) == 2)
        later = w.put(5, 6)
        await asyncio.sleep(0)
        assert (w.requests.waiting, w.requests.under_way) == (2, 2)
        w.may_respond.set()
        assert await answered([*first, *later]) == [[str(number)] for number in range(1, 7)]
        assert [found for _, found in w.asked] == [[1, 2, 3], [4], [5, 6]]


async def test_past_the_bound_of_those_that_wait_a_question_is_refused_at_once() -> None:
    async with world() as w:
        questions = [*w.put(1, 2, 3, 4, 5), *w.put(6, to="b")]
        assert answers(questions) == [[], [], [], [], ["THROTTLING_QUOTA_EXCEEDED"], []]
        assert (await answered(questions))[5] == ["6"], "the bound is each process's own"


async def test_questions_about_a_subject_in_other_terms_take_the_next_request() -> None:
    async with world(requests=1) as w:
        questions = [*w.put(1, 2), *w.put(1, terms="else"), *w.put(3)]
        assert await answered(questions) == [["1"], ["2"], ["1"], ["3"]]
        assert [found for _, found in w.asked] == [[1, 2], [1, 3]]


async def test_a_question_whose_caller_has_gone_is_not_sent() -> None:
    async with world() as w:
        gone, kept = w.put(1, 2)
        gone.is_gone = True
        assert await answered([kept]) == [["2"]]
        assert w.asked == [("a", [2])]
        (alone,) = w.put(3)
        alone.is_gone = True
        await until(lambda: w.shape() == "<JoinedRequests processes=0 waiting=0 requests=0>")
        assert w.asked == [("a", [2])]


async def test_a_question_that_is_given_up_before_its_request_begins_is_not_asked() -> None:
    """The request begins a turn after the turn that took its questions."""
    async with world() as w:
        gone, kept = w.put(1, 2)
        (alone,) = w.put(3, to="b")
        await asyncio.sleep(0)
        assert (w.requests.under_way, w.asked) == (2, [])
        gone.is_gone = alone.is_gone = True
        assert await answered([kept]) == [["2"]]
        await until(lambda: w.shape() == "<JoinedRequests processes=0 waiting=0 requests=0>")
        assert w.asked == [("a", [2])]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PeerLost("broken", was_sent=True), "NOT_COORDINATOR"),
        (TimeoutError(), "REQUEST_TIMED_OUT"),
        (RequestError(ErrorCode.UNSUPPORTED_VERSION, "old"), "UNSUPPORTED_VERSION"),
        (FormatError("no message"), "UNKNOWN_SERVER_ERROR"),
    ],
)
async def test_each_failure_answers_all_questions_of_the_request(failure: Exception, code: str) -> None:
    async with world() as w:
        w.failure = failure
        assert await answered(w.put(1, 2)) == [[code]] * 2
        w.failure = None
        assert await answered(w.put(1)) == [["1"]], "the next request is served"


async def test_a_request_that_cannot_be_made_or_read_answers_its_questions() -> None:
    async with world() as w:
        assert await answered(w.put(13)) == [["UNKNOWN_SERVER_ERROR"]]
        w.build_error = RequestError(ErrorCode.NOT_COORDINATOR, "moved")
        assert await answered(w.put(1)) == [["NOT_COORDINATOR"]]
        assert len(w.asked) == 1


async def test_a_close_ends_what_is_under_way_what_waits_and_what_comes_later() -> None:
    async with world(requests=1) as w:
        w.may_respond.clear()
        under_way = w.put(1)
        await until(lambda: bool(w.asked))
        waiting = w.put(2)
        await w.requests.close()
        later = w.put(3)
        assert answers([*under_way, *waiting, *later]) == [["NOT_COORDINATOR"]] * 3
        before = asyncio.all_tasks()
        w.put(4)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before, "a question after the end starts no task"
        assert w.shape() == "<JoinedRequests processes=0 waiting=0 requests=0>"
        assert w.asked == [("a", [1])]


async def test_a_close_in_the_turn_of_the_question_sends_nothing() -> None:
    async with world() as w:
        questions = w.put(1)
        await w.requests.close()
        assert answers(questions) == [["NOT_COORDINATOR"]]
        await asyncio.sleep(0)
        assert w.asked == []


async def test_a_close_before_the_first_step_of_a_request_refuses_its_questions() -> None:
    """Close in the turn that sends: a task that is cancelled before it begins runs no line of its own."""
    async with world() as w:
        questions = w.put(1, 2)
        await asyncio.create_task(w.requests.close())
        assert answers(questions) == [["NOT_COORDINATOR"]] * 2
        assert w.asked == []
        assert w.shape() == "<JoinedRequests processes=0 waiting=0 requests=0>"

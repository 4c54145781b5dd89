"""One shard's commits during the questions to their transactions' coordinators (``group_shard.verification``)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bmq.coordinator.group_shard.commit_verifier import CommitVerifier
from bmq.coordinator.group_shard.pending import PendingOffsets
from bmq.coordinator.group_shard.verification import (
    CommitTransaction,
    Verdict,
    error_in_commit,
    verdict_by,
)
from bmq.core.errors import ErrorCode
from bmq.core.transaction_answers import PAUSE_S


class _Question:
    """One commit's question.  It is void if a marker of the producer is written before its answer is used."""

    __slots__ = ("is_void", "timeout")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self.timeout = timeout
        self.is_void = False


class VerifiedCommits:
    """The waiting commits of one shard, by producer."""

    def __init__(self, verifier: CommitVerifier, partition: int, pending: PendingOffsets) -> None:
        self._verifier = verifier
        self._partition = partition
        self._pending = pending
        self._questions: dict[int, set[_Question]] = {}
        self._is_closed = False

    def ended(self, producer_id: int) -> None:
        """Void the producer's questions: a marker is being written."""
        for question in self._questions.get(producer_id, ()):
            question.is_void = True

    def close(self) -> None:
        """End the waits: the shard is lost.  Each commit finds out itself, when it wants to be written."""
        self._is_closed = True
        now = asyncio.get_running_loop().time()
        for questions in self._questions.values():
            for question in questions:
                if not question.timeout.expired():
                    question.timeout.reschedule(now)

    async def wait(
        self, transaction: CommitTransaction, offsets: int, ready: Callable[[], Awaitable[None]], deadline: float
    ) -> None:
        """Wait until a commit of so many offsets may be written in this turn of the event loop.

        ``ready`` returns when the producer has no marker under way, and raises RequestError if the commit is refused.
        It is the last that is awaited before the return.  ``deadline`` is of the event loop's clock.  Raises
        RequestError as ``ready``, ``CommitVerifier.waiting`` and ``error_in_commit``.
        """
        await ready()
        if self._is_open(transaction):
            return
        code = ErrorCode.REQUEST_TIMED_OUT
        with self._verifier.waiting(offsets):
            try:
                async with asyncio.timeout_at(deadline) as timeout:
                    code = await self._ask(transaction, ready, _Question(timeout))
            except TimeoutError:
                if self._is_closed:
                    await ready()
        if code is not ErrorCode.NONE:
            raise error_in_commit(code, transaction.version)

    async def _ask(
        self, transaction: CommitTransaction, ready: Callable[[], Awaitable[None]], question: _Question
    ) -> ErrorCode:
        """Ask until an answer counts; return its code."""
        producer_id = transaction.producer.producer_id
        questions = self._questions.setdefault(producer_id, set())
        questions.add(question)
        try:
            while True:
                question.is_void = False
                confirmed = await self._verifier.ask(self._partition, transaction)
                await ready()
                if self._is_open(transaction):
                    return ErrorCode.NONE
                coordinator_epoch = self._pending.coordinator_epoch(producer_id)
                verdict = verdict_by(confirmed, coordinator_epoch, is_void=question.is_void)
                if verdict is Verdict.TAKE or verdict is Verdict.REFUSE:
                    return confirmed.code
                if verdict is Verdict.ASK_LATER:
                    await asyncio.sleep(PAUSE_S)
        finally:
            questions.discard(question)
            if not questions:
                self._questions.pop(producer_id, None)

    def _is_open(self, transaction: CommitTransaction) -> bool:
        return self._pending.is_open(transaction.producer.producer_id, transaction.producer.producer_epoch)

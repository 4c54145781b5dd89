"""One partition's batches during the questions to their coordinators (``broker.partition.verification``).

A task for each producer with waiting batches asks the coordinator, and then appends the batches. Their bytes count in
the partition's buffer and in the process's budget. When the partition leaves this broker, the batches are refused. They
are certainly not in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.refusals import Refusals
from bmq.broker.partition.states import PartitionState
from bmq.broker.partition.verification import (
    WAIT_S,
    Line,
    LowestSequences,
    Question,
    Unverified,
    Verdict,
    error_in_produce,
    lowest,
    out_of_order,
    verdict_by,
    verdict_on,
)
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Batch
from bmq.core.transaction_answers import PAUSE_S, Confirmation, Verifier
from bmq.endpoint.partitions import AppendCallback

Take = Callable[[Batch, AppendCallback, bool], bool]
"""``take(batch, callback, acks_all)``: append; False if the callback gets a refusal instead. Raises RequestError."""


class VerifiedAppends:
    """The waiting batches of one partition, by producer."""

    __slots__ = ("_driver", "_lines", "_lowest", "_refusals", "_take", "_verify")

    def __init__(self, driver: PartitionDriver, verify: Verifier, take: Take, refusals: Refusals) -> None:
        self._driver = driver
        self._verify = verify
        self._take = take
        self._refusals = refusals
        self._lines: dict[int, Line] = {}
        self._lowest = LowestSequences()
        driver.on_left = self._on_left

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __repr__(self) -> str:
        return f"<VerifiedAppends producers={len(self._lines)}>"

    def put(self, batch: Batch, callback: AppendCallback, *, acks_all: bool) -> None:
        """Append the batch now, or once its coordinator has answered. Raises RequestError if it is refused at once."""
        if self._driver.machine.state is not PartitionState.WRITE:
            raise self._driver.machine.refusal()
        producer_id = batch.producer_id
        transaction = callback.transaction if batch.is_transactional else None
        line = self._lines.get(producer_id)
        if line is None:
            try:
                is_free = transaction is None or self._verdict(batch, transaction.version) is Verdict.TAKE
            except RequestError as error:
                self._refusals.prove(error.with_traceback(None), callback)
                return
            if is_free:
                self._take(batch, callback, acks_all)
                return
            line = self._lines[producer_id] = Line()
            task = self._driver.spawn(self._serve(producer_id, line))
            task.add_done_callback(partial(self._ended, producer_id, line))
        now = asyncio.get_running_loop().time()
        if transaction is not None:
            machine = self._driver.machine
            expires_s = machine.broker.producer_expiration_ms / 1000
            self._lowest.note(machine.producers, batch, now, expires_s)
        line.waiting.append(Unverified(batch, callback, transaction, acks_all=acks_all, until=now + WAIT_S))
        self._driver.machine.batches.hold(batch.size)
        self._driver.context.budget.take(batch.size)
        self._driver.context.state.unverified += 1

    def _verdict(self, batch: Batch, version: int) -> Verdict:
        state = self._driver.machine.producers.latest(batch.producer_id)
        verdict = verdict_on(state, batch, version)
        if verdict is Verdict.WAIT:
            self._lowest.check(state, batch, asyncio.get_running_loop().time())
        return verdict

    async def _serve(self, producer_id: int, line: Line) -> None:
        """Ask and hand on until no batch of the producer waits."""
        loop, producers = asyncio.get_running_loop(), self._driver.machine.producers
        while line.waiting:
            if self._pass_first(line):
                continue
            question = line.ask(producers.latest(producer_id))
            confirmed = await self._ask(question)
            verdict = verdict_by(question.state, producers.latest(producer_id), confirmed)
            if verdict is Verdict.TAKE:
                self._hand_on(line.take_off())
            elif verdict is Verdict.REFUSE or loop.time() >= question.until:
                code = confirmed.code if verdict is Verdict.REFUSE else ErrorCode.REQUEST_TIMED_OUT
                for one in line.take_off():
                    assert one.transaction is not None
                    self._fail(one, error_in_produce(code, one.transaction.version))
            elif verdict is Verdict.ASK_LATER:
                await asyncio.sleep(PAUSE_S)
            self._driver.notify()  # there may be room
        self._lines.pop(producer_id, None)  # in the same step: the next batch begins a line of its own

    def _pass_first(self, line: Line) -> bool:
        """Hand on or refuse the first batch if it needs no answer; return False if the coordinator must be asked."""
        first = line.waiting[0]
        try:
            if first.transaction and self._verdict(first.batch, first.transaction.version) is Verdict.WAIT:
                return False
        except RequestError as error:
            self._prove(line.waiting.popleft(), error)
        else:
            self._hand_on([line.waiting.popleft()])
        return True

    async def _ask(self, question: Question) -> Confirmation:
        key = self._driver.machine.key
        try:
            async with asyncio.timeout_at(question.until):
                found = await self._verify(
                    question.transactional_id, question.producer_id, question.producer_epoch, (key,), question.is_add
                )
        except TimeoutError:
            return Confirmation(ErrorCode.REQUEST_TIMED_OUT, 0)
        return Confirmation(*found.get(key, (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)))

    def _hand_on(self, batches: Sequence[Unverified]) -> None:
        """Append batches without a further question. Refuse the batches behind a refused batch, too."""
        first = lowest(batches)
        for one in batches[:first]:
            self._prove(one, out_of_order(one.batch, batches[first].batch.base_sequence))
        is_refused = False
        for one in batches[first:]:
            if is_refused:
                self._fail(one, _not_leader("an earlier batch of this producer was refused"))
                continue
            self._release(one)
            try:
                is_refused = not self._take(one.batch, one.callback, one.acks_all)
            except RequestError as error:
                is_refused = True
                one.callback.on_failed(error)

    def _on_left(self) -> None:
        """Refuse all that waits: the partition is not in WRITE any more."""
        error = self._driver.machine.refusal()
        self._lowest.clear()
        for line in self._lines.values():
            self._fail_all(line, error)

    def _ended(self, producer_id: int, line: Line, task: asyncio.Task[None]) -> None:
        """Refuse what is left if the task was cancelled with the partition."""
        if self._lines.get(producer_id) is line:
            del self._lines[producer_id]
        self._fail_all(line, _not_leader("the partition has left this broker"))

    def _fail_all(self, line: Line, error: RequestError) -> None:
        while line.waiting:
            self._fail(line.waiting.popleft(), error)

    def _fail(self, one: Unverified, error: RequestError) -> None:
        self._release(one)
        one.callback.on_failed(error)

    def _prove(self, one: Unverified, error: RequestError) -> None:
        self._release(one)
        self._refusals.prove(error.with_traceback(None), one.callback)

    def _release(self, one: Unverified) -> None:
        self._driver.machine.batches.let_go(one.batch.size)
        self._driver.context.budget.give_back(one.batch.size)
        self._driver.context.state.unverified -= 1


def _not_leader(why: str) -> RequestError:
    return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)

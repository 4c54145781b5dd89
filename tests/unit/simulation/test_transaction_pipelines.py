"""The batches of a simulated producer in flight (tests/simulation/transaction_pipelines.py): what is sent, and when."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from tests.simulation import transaction_pipelines
from tests.simulation.kafka_clients import Client, Refused
from tests.simulation.kafka_world import Observed
from tests.simulation.transaction_pipelines import Batch, Pipeline, Retry

BATCHES = 9


class Connection:
    """A connection that is never used: the log is a function."""

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        raise AssertionError(request)

    def close(self) -> None:
        """Do nothing."""


class Here:
    """A world of connections."""

    def __init__(self) -> None:
        self.rng = Random(1)
        self.observed = Observed()
        self.is_over = False

    def client(self) -> Client:
        return Connection()


class Leader:
    """A partition that takes batches by sequence, as Kafka's, and refuses the chosen sends."""

    def __init__(self, refused: set[int]) -> None:
        self.refused = refused
        """Numbers of sends that get a retriable error."""
        self.sent: list[int] = []
        self.log: list[int] = []
        self.most = self._now = 0

    async def take(self, batch: Batch, client: Client) -> int | None:
        number = len(self.sent)
        self.sent.append(batch.sequence)
        self._now += 1
        self.most = max(self.most, self._now)
        is_next = batch.sequence == len(self.log) and number not in self.refused
        if is_next:
            self.log.append(batch.sequence)
        await asyncio.sleep(0.01)
        self._now -= 1
        if is_next or batch.sequence in self.log:
            return batch.sequence
        assert not batch.is_first or number in self.refused, "the first batch is out of order"
        return None


def pipeline(send: Any, retry: Retry, window: int) -> Pipeline:
    made = Pipeline(Here(), Connection(), Random(2), [Batch(each, [b"v"], each) for each in range(BATCHES)], send)
    made.retry, made.window = retry, window
    return made


@pytest.mark.parametrize("retry", Retry)
@pytest.mark.parametrize("window", [1, 3, 5])
async def test_up_to_a_window_of_batches_is_in_flight(retry: Retry, window: int) -> None:
    leader = Leader(set())
    made = pipeline(leader.take, retry, window)
    await made.run()
    assert leader.sent == list(range(BATCHES))
    assert leader.most == window
    assert made.sequence == BATCHES


@pytest.mark.parametrize("retry", Retry)
@pytest.mark.parametrize("refused", [{0}, {2}, {1, 5}, {4, 5, 6}, {0, 1, 2, 3, 9, 10}])
@pytest.mark.parametrize("window", [1, 2, 5])
async def test_batches_are_sent_again_in_order_until_all_are_there_once(
    retry: Retry, refused: set[int], window: int
) -> None:
    leader = Leader(refused)
    made = pipeline(leader.take, retry, window)
    await made.run()
    assert leader.log == list(range(BATCHES))
    assert leader.most <= window
    assert made.repeated > 0


async def test_java_sends_a_batch_again_only_once_those_before_it_are_acknowledged() -> None:
    leader = Leader({1})
    await pipeline(leader.take, Retry.ONE_BY_ONE, 4).run()
    assert leader.sent == [0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8]
    assert [leader.sent.count(each) for each in (1, 2, 3, 4)] == [2, 2, 2, 1]


async def test_franz_go_sends_all_again_together() -> None:
    leader = Leader({1})
    made = pipeline(leader.take, Retry.TOGETHER, 4)
    await made.run()
    assert leader.sent == [0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("retry", Retry)
async def test_no_batch_passes_an_unacknowledged_one_further_than_a_log_remembers(retry: Retry) -> None:
    sent: list[int] = []

    async def lose_the_first_response(batch: Batch, client: Client) -> int | None:
        sent.append(batch.sequence)
        await asyncio.sleep(1.0 if batch.sequence == 0 else 0.01)
        return None if sent.count(0) == 1 and batch.sequence == 0 else batch.sequence

    await pipeline(lose_the_first_response, retry, 5).run()
    assert sent == [0, 1, 2, 3, 4, 0, 5, 6, 7, 8]


@pytest.mark.parametrize("retry", Retry)
async def test_a_refusal_is_raised_once_nothing_is_in_flight(retry: Retry) -> None:
    ended: list[int] = []

    async def refuse(batch: Batch, client: Client) -> int | None:
        await asyncio.sleep(0.1 * (1 + batch.sequence))
        ended.append(batch.sequence)
        if batch.sequence == 1:
            raise Refused(ErrorCode.INVALID_TXN_STATE)
        return batch.sequence

    made = pipeline(refuse, retry, 4)
    with pytest.raises(Refused):
        await made.run()
    assert ended == [0, 1, 2, 3, 4]
    assert made.sequence == 1


@pytest.mark.parametrize("retry", Retry)
async def test_batches_go_on_over_another_connection_while_others_are_in_flight(
    retry: Retry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_pipelines, "MOVES", 1.0)
    clients: list[Client] = []

    async def take(batch: Batch, client: Client) -> int | None:
        clients.append(client)
        await asyncio.sleep(0.1)
        return batch.sequence

    await pipeline(take, retry, 3).run()
    assert len(set(map(id, clients))) == BATCHES


@pytest.mark.parametrize("retry", Retry)
async def test_the_next_sequence_is_behind_all_batches_in_whatever_order_they_are_acknowledged(retry: Retry) -> None:
    async def take(batch: Batch, client: Client) -> int | None:
        await asyncio.sleep(0.1 * (BATCHES - batch.sequence))
        return batch.sequence

    made = pipeline(take, retry, BATCHES)
    await made.run()
    assert made.sequence == BATCHES


async def test_a_pipeline_that_begins_alone_sends_no_batch_until_the_first_one_is_acknowledged() -> None:
    leader = Leader({0, 1})
    batches = [Batch(each, [b"v"], each) for each in range(BATCHES)]
    made = Pipeline(Here(), Connection(), Random(2), batches, leader.take, begins_alone=True)
    made.window = 3
    await made.run()
    assert leader.sent == [0, 0, *range(BATCHES)]
    assert leader.most == 3

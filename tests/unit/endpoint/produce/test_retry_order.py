"""Nothing that follows a refused idempotent batch passes before the batch has come again."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.model import PartitionKey
from bmq.endpoint.produce.retry_order import STUMBLES_MAX, RetryOrder
from tests.harness.fakes import FakeClient

KEY, OTHER = PartitionKey(uuid.UUID(int=1), 0), PartitionKey(uuid.UUID(int=1), 1)


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


def test_later_batches_are_refused_until_the_refused_one_is_back(client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert not stumbles.may_pass(client, KEY, 7, 11)
    assert not stumbles.may_pass(client, KEY, 7, 25)
    assert stumbles.may_pass(client, KEY, 7, 10)
    assert stumbles.may_pass(client, KEY, 7, 11)


def test_an_earlier_batch_that_an_owner_gave_back_is_not_the_refused_one(client: FakeClient) -> None:
    """Let an earlier batch pass again, after an owner gave it back: its producer has sent nothing again, so the refused
    batch is still the one to wait for."""
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert stumbles.may_pass(client, KEY, 7, 9, is_again=True)
    assert not stumbles.may_pass(client, KEY, 7, 11)
    assert stumbles.may_pass(client, KEY, 7, 10)
    assert stumbles.may_pass(client, KEY, 7, 11)


def test_the_earliest_of_several_counts(client: FakeClient) -> None:
    stumbles = RetryOrder()
    for sequence in (12, 10, 14):
        stumbles.note(client, KEY, 7, sequence)
    assert not stumbles.may_pass(client, KEY, 7, 12)
    assert stumbles.may_pass(client, KEY, 7, 10)


@pytest.mark.parametrize("again", [12, 14])
def test_a_repeated_follower_shows_that_the_refused_one_was_accepted_elsewhere(again: int, client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert not stumbles.may_pass(client, KEY, 7, 12)
    assert not stumbles.may_pass(client, KEY, 7, 14)
    assert stumbles.may_pass(client, KEY, 7, again)
    assert stumbles.may_pass(client, KEY, 7, 16)


def test_a_producer_that_comes_back_further_on_is_refused_once_each_time(client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert not stumbles.may_pass(client, KEY, 7, 12)
    assert not stumbles.may_pass(client, KEY, 7, 40), "12 was accepted elsewhere, or is on its way behind 10"
    assert stumbles.may_pass(client, KEY, 7, 40)


def test_followers_before_the_refused_one_came_again_and_was_refused_anew_do_not_count(client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert not stumbles.may_pass(client, KEY, 7, 11)
    assert stumbles.may_pass(client, KEY, 7, 10)
    stumbles.note(client, KEY, 7, 10)
    assert not stumbles.may_pass(client, KEY, 7, 11), "it was sent right behind the second 10"


@pytest.mark.parametrize("sequence", [10, 3, 0])
def test_an_earlier_batch_or_a_new_beginning_passes(sequence: int, client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert stumbles.may_pass(client, KEY, 7, sequence)
    assert stumbles.may_pass(client, KEY, 7, 11)


def test_sequences_wrap(client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, (1 << 31) - 2)
    assert not stumbles.may_pass(client, KEY, 7, (1 << 31) - 1)
    assert not stumbles.may_pass(client, KEY, 7, 3)
    assert stumbles.may_pass(client, KEY, 7, (1 << 31) - 2)


def test_other_producers_and_partitions_are_not_refused(client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    assert stumbles.may_pass(client, OTHER, 7, 11)
    assert stumbles.may_pass(client, KEY, 8, 11)
    assert stumbles.may_pass(FakeClient(), KEY, 7, 11)


def test_a_closed_connections_refusals_are_forgotten(client: FakeClient) -> None:
    stumbles = RetryOrder()
    stumbles.note(client, KEY, 7, 10)
    client.close()
    assert len(stumbles) == 0
    stumbles.note(client, KEY, 7, 10)
    assert len(stumbles) == 0, "nobody would take it away again"


def test_a_connection_keeps_a_bounded_number(client: FakeClient) -> None:
    stumbles = RetryOrder()
    for producer_id in range(STUMBLES_MAX + 1):
        stumbles.note(client, KEY, producer_id, 10)
    assert stumbles.may_pass(client, KEY, 0, 11), "the oldest went"
    assert not stumbles.may_pass(client, KEY, STUMBLES_MAX, 11)


def test_a_producer_with_all_responses_starts_again_in_that_partition(client: FakeClient) -> None:
    stumbles = RetryOrder()
    for key in (KEY, OTHER):
        for producer_id in (7, 8):
            stumbles.note(client, key, producer_id, 10)
    stumbles.restart(client, KEY)
    assert stumbles.may_pass(client, KEY, 7, 40)
    assert stumbles.may_pass(client, KEY, 8, 40)
    assert not stumbles.may_pass(client, OTHER, 7, 40)
    stumbles.note(client, KEY, 7, 50)
    assert not stumbles.may_pass(client, KEY, 7, 51)

"""The time of one fetch: the client's own, and that for an owner which is missing."""

from __future__ import annotations

import pytest

from bmq.endpoint.fetch.fetch_time import READ_AGAIN_S, FetchTime


def test_without_a_missing_owner_the_clients_time_is_all() -> None:
    time = FetchTime(10.0, 1.0)
    time.on_check(9.9, waits=False, reads=True)
    assert (time.is_up(9.9), time.is_up(10.0), time.is_patient(10.0)) == (False, True, False)
    assert time.next_check_at(9.9) == 10.0


@pytest.mark.parametrize(("missed_at", "until"), [(0.0, 1.0), (9.9, 10.9)])
def test_patience_counts_from_when_an_owner_was_missed_first(missed_at: float, until: float) -> None:
    time = FetchTime(10.0, 1.0)
    for now in (missed_at, missed_at + 0.05):
        time.on_check(now, waits=True, reads=False)
    assert time.is_patient(until - 0.01)
    assert not time.is_patient(until)
    assert time.next_check_at(10.0) == max(10.0, until)
    time.on_check(10.0, waits=False, reads=False)
    assert not time.is_patient(10.0)


def test_a_lost_read_is_repeated_soon_and_forgotten_when_there_is_nothing_to_read() -> None:
    time = FetchTime(10.0, 1.0)
    time.on_check(4.0, waits=False, reads=True)
    time.on_read(4.0, is_lost=True)
    assert (time.is_lost, time.is_patient(4.9), time.is_patient(5.0)) == (True, True, False)
    assert time.next_check_at(4.2) == 4.2 + READ_AGAIN_S
    time.on_check(4.3, waits=False, reads=True)
    assert time.is_lost
    time.on_check(4.4, waits=False, reads=False)
    assert (time.is_lost, time.is_patient(4.4), time.next_check_at(4.4)) == (False, False, 10.0)


def test_without_patience_nothing_is_waited_for_past_the_clients_time() -> None:
    time = FetchTime(0.5, 0.0)
    time.on_check(0.4, waits=True, reads=False)
    assert not time.is_patient(0.5)
    assert time.next_check_at(0.5) == 0.5

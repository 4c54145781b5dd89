"""Rates of new connections: by address as in Kafka, by listener and process in turns, and bounded in memory."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bmq.core.net.admission import Admission
from bmq.core.options import INT_MAX
from bmq.meta.security.client_quotas import CONNECTION_CREATION_RATE, IP
from bmq.meta.security.quotas_view import QuotasView
from bmq.proxy.quotas import connection_rates
from bmq.proxy.quotas.connection_rates import TURN_S, ConnectionRates
from tests.unit.proxy.quotas.quotas_world import FakeQuotas

WINDOW_S = 11


class World:
    def __init__(self, most: int = INT_MAX, **listeners: int) -> None:
        self.now = 100.0
        self.view = FakeQuotas()
        self.rates = ConnectionRates(cast(QuotasView, self.view), cast(Any, self), most, listeners)

    def monotonic(self) -> float:
        return self.now

    def limit(self, address: str | None, value: float | None) -> None:
        self.view.put(CONNECTION_CREATION_RATE, ((IP, address),), value)

    def admit(self, host: str = "10.0.0.1", listener: str = "OUT") -> Admission:
        return self.rates.admit(host, listener)

    def served(self, count: int, **where: str) -> int:
        return sum(1 for _ in range(count) if self.admit(**where) == Admission())


def test_without_a_rate_nothing_is_asked_for() -> None:
    w = World()
    assert not w.rates.is_active
    w.limit(None, 5.0)
    assert w.rates.is_active
    w.limit(None, None)
    assert not w.rates.is_active
    assert World(5).rates.is_active
    assert World(OUT=5).rates.is_active


def test_an_address_over_its_rate_is_held_and_refused_and_others_are_not() -> None:
    w = World()
    w.limit("10.0.0.1", 2.0)
    assert w.served(100) == 2  # a second's worth at once
    held = w.admit()
    assert held.wait_s == pytest.approx(0.5)
    assert "connection_creation_rate (2) of its address" in held.refusal
    assert w.admit("::ffff:10.0.0.2") == Admission()
    w.now += 0.5
    assert w.served(100) == 1
    assert 0 < w.admit().wait_s <= 0.5


@pytest.mark.slow
def test_a_storm_gets_a_tenth_more_than_its_rate_in_no_window() -> None:
    w = World()
    w.limit(None, 3.0)
    came: list[float] = []
    for _ in range(6_000):
        w.now += 0.01
        if w.served(1):
            came.append(w.now)
    for start in came:
        assert sum(1 for at in came if start <= at < start + WINDOW_S) <= 1.1 * 3 * WINDOW_S
    assert len(came) >= 3 * 60 * 0.9


def test_each_address_has_the_default_for_itself_and_its_own_value_wins() -> None:
    w = World()
    w.limit(None, 1.0)
    w.limit("10.0.0.9", 4.0)
    assert [w.served(100, host=host) for host in ("10.0.0.1", "10.0.0.2", "10.0.0.9")] == [1, 1, 4]
    w.limit(None, 20.0)  # in force from the next connection on
    assert w.admit().wait_s <= 0.05
    w.now += 0.1
    assert w.served(100) == 2


def test_connections_over_the_rate_of_the_process_take_turns() -> None:
    w = World(4)
    assert w.served(4) == 4
    waits = [w.admit(f"10.0.1.{number}") for number in range(20)]
    assert [each.wait_s for each in waits] == [pytest.approx((number + 1) / 4) for number in range(20)]
    assert not any(each.refusal for each in waits)
    late = w.admit()
    assert late.wait_s == 0
    assert f"max.connection.creation.rate (4): its turn is more than {TURN_S:g} s away" in late.refusal
    w.now += 0.25  # one that was refused has taken nobody's turn
    assert w.admit().wait_s == pytest.approx(TURN_S)


def test_a_listener_has_a_rate_of_its_own() -> None:
    w = World(8, OUT=2)
    assert w.served(7, listener="OUT") == 2
    assert w.served(1, listener="IN") == 1


def test_what_an_address_is_refused_counts_for_nobody() -> None:
    w = World(5)
    w.limit("10.0.0.1", 1.0)
    assert w.served(1_000) == 1
    assert w.served(9, host="10.0.0.2") == 4


def test_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_rates, "ADDRESSES_MAX", 100)
    w = World()
    w.limit(None, 1.0)
    for number in range(1_000):
        w.admit(f"10.1.{number >> 8}.{number & 255}")
    assert "addresses=100 " in repr(w.rates)
    w.limit(None, None)
    assert "addresses=0 " in repr(w.rates)

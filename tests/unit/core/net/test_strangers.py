"""Connections of the internal port that have not said who they are: how long, how many, how large."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.net.strangers import Strangers
from tests.harness.log_text import lines


class Connection:
    def __init__(self, strangers: Strangers, name: str = "x:1") -> None:
        self.peer = name
        self.is_known = self.is_closed = False
        self._strangers = strangers

    def be_known(self) -> None:
        self.is_known = True

    def close(self) -> None:
        self.is_closed = True
        self._strangers.lost(self)


def opened(strangers: Strangers, count: int) -> list[Connection]:
    connections = [Connection(strangers, f"x:{number}") for number in range(count)]
    for each in connections:
        strangers.opened(each)
    return connections


async def test_a_connection_that_stays_unknown_is_closed_after_its_time(caplog: pytest.LogCaptureFixture) -> None:
    strangers = Strangers(10, 5.0)
    (first,) = opened(strangers, 1)
    await asyncio.sleep(3)
    (second,) = opened(strangers, 1)
    await asyncio.sleep(1.9)
    assert not first.is_closed
    await asyncio.sleep(0.2)
    assert first.is_closed
    assert not second.is_closed, "each has its own time"
    await asyncio.sleep(3)
    assert second.is_closed
    assert len(strangers) == 0
    assert lines(caplog)[0].endswith('connection=x:0 error="it has not said who it is within 5 s"')


async def test_a_known_connection_has_no_bound_any_more() -> None:
    strangers = Strangers(10, 5.0)
    (known,) = opened(strangers, 1)
    strangers.known(known)
    strangers.known(known)
    strangers.known(object())
    assert known.is_known
    assert len(strangers) == 0
    await asyncio.sleep(60)
    assert not known.is_closed


async def test_one_too_many_costs_the_oldest_its_place() -> None:
    strangers = Strangers(3, 5.0)
    connections = opened(strangers, 5)
    assert [each.is_closed for each in connections] == [True, True, False, False, False]
    assert len(strangers) == 3
    for each in connections:
        each.close()
    assert len(strangers) == 0


async def test_lost_connections_need_no_timer() -> None:
    strangers = Strangers(3, 5.0)
    (lost,) = opened(strangers, 1)
    lost.close()
    lost.close()
    (again,) = opened(strangers, 1)
    await asyncio.sleep(4.9)
    assert not again.is_closed
    await asyncio.sleep(0.2)
    assert again.is_closed

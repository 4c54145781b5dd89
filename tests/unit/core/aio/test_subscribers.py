"""Subscribers: the order of notifications, their end, and a wait that is bounded in time."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.aio.subscribers import Subscribers, no_op, wait_for


def test_everybody_is_told_in_order_until_forgotten() -> None:
    told: list[tuple[str, int]] = []
    subscribers = Subscribers[[int]]()
    forget = subscribers.add(lambda number: told.append(("a", number)))
    subscribers.add(lambda number: told.append(("b", number)))
    subscribers.notify(1)
    forget()
    forget()
    subscribers.notify(2)
    subscribers.notify_last(3)
    subscribers.notify(4)
    assert told == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]


def test_one_call_twice_is_two_and_each_is_forgotten_alone() -> None:
    told: list[int] = []
    subscribers = Subscribers[[int]]()
    forget = subscribers.add(told.append)
    subscribers.add(told.append)
    forget()
    subscribers.notify(1)
    assert told == [1]


def test_who_comes_and_goes_while_others_are_told() -> None:
    told: list[str] = []
    subscribers = Subscribers[[]]()

    def come_and_go() -> None:
        told.append("first")
        forget()
        subscribers.add(lambda: told.append("late"))

    forget = subscribers.add(come_and_go)
    subscribers.notify()
    assert told == ["first"]
    subscribers.notify_last()
    assert told == ["first", "late"]


def test_the_last_event_reaches_everybody_though_some_fail() -> None:
    told: list[str] = []
    subscribers = Subscribers[[]]()

    def fail(name: str) -> None:
        told.append(name)
        raise ValueError(name)

    subscribers.add(lambda: told.append("first"))
    subscribers.add(lambda: fail("second"))
    subscribers.add(lambda: fail("third"))
    subscribers.add(lambda: told.append("fourth"))
    with pytest.raises(ValueError, match="third"):
        subscribers.notify_last()
    assert told == ["first", "second", "third", "fourth"]
    subscribers.notify_last()
    assert len(told) == 4


async def test_news_is_waited_for_no_longer_than_its_time() -> None:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    assert not await wait_for(event, 2.0)
    assert loop.time() == 2.0
    loop.call_later(1.0, event.set)
    assert await wait_for(event, 2.0)
    assert loop.time() == 3.0
    assert await wait_for(event, None)


def test_a_callback_that_nobody_needs_takes_what_it_is_given() -> None:
    for arguments in ((), (1,), ("why", None)):
        no_op(*arguments)

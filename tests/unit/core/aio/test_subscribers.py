"""Subscribers: the order of notifications, their end, and a wait that is bounded in time."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.aio.subscribers import Subscribers, no_op, wait_for


def test_everybody_is_told_in_order_until_forgotten() -> None:
    notified: list[tuple[str, int]] = []
    subscribers = Subscribers[[int]]()
    forget = subscribers.add(lambda number: notified.append(("a", number)))
    subscribers.add(lambda number: notified.append(("b", number)))
    subscribers.notify(1)
    forget()
    forget()
    subscribers.notify(2)
    subscribers.notify_last(3)
    subscribers.notify(4)
    assert notified == [("a", 1), ("b", 1), ("b", 2), ("b", 3)]


def test_one_call_twice_is_two_and_each_is_forgotten_alone() -> None:
    notified: list[int] = []
    subscribers = Subscribers[[int]]()
    forget = subscribers.add(notified.append)
    subscribers.add(notified.append)
    forget()
    subscribers.notify(1)
    assert notified == [1]


def test_who_comes_and_goes_while_others_are_told() -> None:
    notified: list[str] = []
    subscribers = Subscribers[[]]()

    def come_and_go() -> None:
        notified.append("first")
        forget()
        subscribers.add(lambda: notified.append("late"))

    forget = subscribers.add(come_and_go)
    subscribers.notify()
    assert notified == ["first"]
    subscribers.notify_last()
    assert notified == ["first", "late"]


def test_the_last_event_reaches_everybody_though_some_fail() -> None:
    notified: list[str] = []
    subscribers = Subscribers[[]]()

    def fail(name: str) -> None:
        notified.append(name)
        raise ValueError(name)

    subscribers.add(lambda: notified.append("first"))
    subscribers.add(lambda: fail("second"))
    subscribers.add(lambda: fail("third"))
    subscribers.add(lambda: notified.append("fourth"))
    with pytest.raises(ValueError, match="third"):
        subscribers.notify_last()
    assert notified == ["first", "second", "third", "fourth"]
    subscribers.notify_last()
    assert len(notified) == 4


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

"""Waits for the store: logged once for each time of trouble, and counted."""

from __future__ import annotations

from dataclasses import dataclass

from bmq.broker.store_waits import StoreWaits


@dataclass(frozen=True)
class Partition:
    name: str
    unflushed_bytes: int = 10


def test_it_is_told_once_and_names_the_reason() -> None:
    waits = StoreWaits[Partition](5_000)
    one, two = Partition("one"), Partition("two", 7)
    waits.asked(one, 0)
    waits.failed("etcd's database is full")
    waits.asked(two, 1_000)
    waits.asked(one, 4_000)  # another try: it has waited since the first
    assert waits.report(4_999) == ""
    assert waits.unflushed_bytes == 17
    assert waits.report(5_000) == "etcd's database is full"
    assert len(waits) == 2
    assert waits.report(60_000) == ""
    waits.answered(one)
    assert waits.report(61_000) == "", "the other one waits still: it is the same trouble"
    waits.forget([two, two])
    assert (len(waits), waits.unflushed_bytes, waits.report(62_000)) == (0, 0, "")
    waits.asked(one, 70_000)
    assert "no answer" in waits.report(75_000), "a new time of trouble"


def test_what_is_answered_in_time_is_not_told() -> None:
    waits = StoreWaits[Partition](5_000)
    for now_ms in range(0, 60_000, 1_000):
        waits.asked(Partition("one"), now_ms)
        assert waits.report(now_ms) == ""
        waits.answered(Partition("one"))


def test_trouble_is_told_from_the_report_until_nothing_waits() -> None:
    waits = StoreWaits[Partition](5_000)
    part = Partition("one")
    waits.asked(part, 0)
    waits.failed("etcd is full")
    assert (waits.report(4_999), waits.trouble) == ("", "")
    assert (waits.report(5_000), waits.trouble) == ("etcd is full", "etcd is full")
    assert (waits.report(6_000), waits.trouble) == ("", "etcd is full")
    waits.answered(part)
    assert waits.trouble == ""

"""Turns (broker/files/flush_scheduler.py): flushes in fair order and within their bounds."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from bmq.broker.files.flush_scheduler import FlushScheduler
from tests.harness.loop import run

pytestmark = pytest.mark.slow


class Sender:
    """A partition with ``unsent`` flushes' worth of data; each sent flush is noted in ``sent``."""

    def __init__(self, name: int, sent: list[Sender], unsent: int = 0) -> None:
        self.name = name
        self.is_queued = False
        self.in_flight = 0
        self.unsent = unsent
        self._sent = sent

    def __repr__(self) -> str:
        return f"<Sender {self.name} unsent={self.unsent} in_flight={self.in_flight}>"

    def send(self) -> bool:
        if self.unsent == 0:
            return False
        self.unsent -= 1
        self._sent.append(self)
        return True

    @property
    def has_unsent(self) -> bool:
        return self.unsent > 0

    @property
    def unsent_bytes(self) -> int:
        return 100 * self.unsent


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ----------------------------------------------------------------------------------------------------------- flushes


async def test_a_lone_writer_is_flushed_in_the_next_turn() -> None:
    """No timer: group commit costs a lone writer nothing.  What it appends in the same turn goes out together."""

    sent: list[Sender] = []
    scheduler, sender = FlushScheduler(64, 8), Sender(0, sent, 1)
    scheduler.want(sender)
    scheduler.want(sender)
    assert sent == []
    await asyncio.sleep(0)
    assert (sent, scheduler.outstanding, sender.in_flight) == ([sender], 1, 1)
    assert asyncio.get_running_loop().time() == 0.0


async def test_small_flushes_behind_another_gather() -> None:
    """Small flushes gather until there are enough bytes or the flush in flight has ended: nothing is ever left
    behind."""

    sent: list[Sender] = []
    scheduler, sender = FlushScheduler(64, 8, gather_bytes=300), Sender(0, sent, 1)

    async def appends(count: int) -> int:
        sender.unsent += count
        scheduler.want(sender)
        await turns()
        return len(sent)

    assert await appends(0) == 1  # alone: at once
    assert await appends(1) == 1
    assert await appends(1) == 1
    assert await appends(1) == 2  # enough; what it leaves is too little again
    assert sender.unsent == 2
    scheduler.on_flush_ended(sender)
    await turns()
    assert (len(sent), sender.in_flight) == (2, 1)
    scheduler.on_flush_ended(sender)
    await turns()
    assert (len(sent), sender.unsent) == (3, 1)
    scheduler.on_flush_ended(sender)
    await turns()
    scheduler.on_flush_ended(sender)
    assert (len(sent), sender.unsent, sender.in_flight, scheduler.outstanding) == (4, 0, 0, 0)


async def test_first_come_first_served() -> None:
    sent: list[Sender] = []
    scheduler = FlushScheduler(2, 1)
    senders = [Sender(n, sent, 1) for n in range(5)]
    for sender in senders:
        scheduler.want(sender)
    await turns()
    assert sent == senders[:2]
    for n in range(5):
        scheduler.on_flush_ended(senders[n])
        await turns()
    assert sent == senders
    assert scheduler.outstanding == 0


async def test_partitions_take_turns() -> None:
    """One with much to send does not starve the others: with all of them busy their flushes stay within one."""

    sent: list[Sender] = []
    scheduler = FlushScheduler(3, 8)
    senders = [Sender(n, sent, 1000) for n in range(10)]
    for sender in senders:
        scheduler.want(sender)
    landed = 0
    for _ in range(500):
        await turns()
        while landed < len(sent):
            scheduler.on_flush_ended(sent[landed])
            landed += 1
            await turns()
    counts = Counter(sender.name for sender in sent)
    assert len(counts) == 10
    assert max(counts.values()) - min(counts.values()) <= 1


async def test_a_late_comer_waits_for_one_round_only() -> None:
    sent: list[Sender] = []
    scheduler = FlushScheduler(1, 8)
    busy = [Sender(n, sent, 1000) for n in range(4)]
    for sender in busy:
        scheduler.want(sender)
    await turns()
    late = Sender(99, sent, 1)
    scheduler.want(late)
    for _ in range(len(busy) + 1):  # the first has had its turn, and stands in line again before it
        scheduler.on_flush_ended(sent[-1])
        await turns()
    assert sent[-1] is late


async def test_no_more_than_its_share_of_one_partition() -> None:
    """``per_partition`` flushes in flight, the next when one has landed, though the window has room."""

    sent: list[Sender] = []
    scheduler, sender = FlushScheduler(64, 3), Sender(0, sent, 10)
    scheduler.want(sender)
    await turns(20)
    assert (len(sent), sender.in_flight, sender.is_queued) == (3, 3, False)
    scheduler.want(sender)  # at its bound: not put in line, its landing will see to it
    await turns(20)
    assert (len(sent), sender.is_queued) == (3, False)
    scheduler.on_flush_ended(sender)
    await turns(20)
    assert (len(sent), sender.in_flight) == (4, 3)


async def test_nothing_to_send_takes_no_place() -> None:
    """A partition that wanted, but has lost its pipeline meanwhile, leaves the line and may come again."""

    sent: list[Sender] = []
    scheduler = FlushScheduler(1, 1)
    empty, other = Sender(0, sent), Sender(1, sent, 1)
    scheduler.want(empty)
    scheduler.want(other)
    await turns()
    assert (sent, scheduler.outstanding, empty.in_flight, empty.is_queued) == ([other], 1, 0, False)
    scheduler.on_flush_ended(other)
    empty.unsent = 1
    scheduler.want(empty)
    await turns()
    assert sent == [other, empty]


@pytest.mark.parametrize("seed", range(30))
async def test_bounds_hold_and_everything_is_sent(seed: int) -> None:
    """Random appends and flush ends, in any order across partitions: never past the window or a partition's share,
    never idle while a partition could send, and in the end nothing is left and all is accounted for."""
    rng = random.Random(seed)
    window, share = rng.randint(1, 6), rng.randint(1, 3)

    sent: list[Sender] = []
    scheduler = FlushScheduler(window, share)
    senders = [Sender(n, sent) for n in range(rng.randint(1, 8))]
    flying: list[Sender] = []
    seen = appended = 0
    while appended < 200 or flying or any(sender.unsent for sender in senders):
        if appended < 200 and rng.random() < 0.5:
            sender = rng.choice(senders)
            sender.unsent += 1
            appended += 1
            scheduler.want(sender)
        if flying and rng.random() < 0.5:
            scheduler.on_flush_ended(flying.pop(rng.randrange(len(flying))))
        if rng.random() < 0.7:
            await turns()
            flying += sent[seen:]
            seen = len(sent)
            assert scheduler.outstanding == len(flying) <= window
            assert {s.name: s.in_flight for s in senders if s.in_flight} == Counter(s.name for s in flying)
            assert max(sender.in_flight for sender in senders) <= share
            can_send = any(sender.unsent and sender.in_flight < share for sender in senders)
            assert not can_send or scheduler.outstanding == window
    assert len(sent) == 200
    assert scheduler.outstanding == 0
    assert not any(sender.is_queued or sender.in_flight for sender in senders)


def test_a_bug_in_one_partition_does_not_hold_up_the_line() -> None:
    """The exception goes to the loop's handler, the others are served."""
    sent: list[Sender] = []

    class Broken(Sender):
        def send(self) -> bool:
            raise ZeroDivisionError("a bug")

    async def serve_all() -> None:
        scheduler = FlushScheduler(4, 1)
        for sender in (Broken(0, sent, 1), Sender(1, sent, 1), Broken(2, sent, 1), Sender(3, sent, 1)):
            scheduler.want(sender)
        await turns(10)

    with pytest.raises(ZeroDivisionError):  # the loop raises what its handler got
        run(serve_all())
    assert [sender.name for sender in sent] == [1, 3]

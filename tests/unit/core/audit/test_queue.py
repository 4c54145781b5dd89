"""Bounds of the lines that wait: floods count, and push nobody else's lines out."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind, LeftOut, Priority
from bmq.core.audit.queue import COUNTED_MAX, LEFT_OUT_S, OTHERS, ROOM, AuditQueue, Room
from bmq.core.security.principal import user
from bmq.core.security.session import Session

SMALL = dict.fromkeys(Priority, Room(10, 1_000))


def of(who: str, kind: Kind, act: str = "FETCH") -> AuditEvent:
    outcome = AuditOutcome.ALLOWED if kind is Kind.ACT else AuditOutcome.DENIED
    return AuditEvent(kind, act, outcome, Session(principal=user(who)), "10.0.0.1")


def offer(queue: AuditQueue, event: AuditEvent, line: bytes = b"x\n") -> bool:
    if not queue.has_room(event):
        return False
    queue.put(event, line)
    return True


def test_a_source_has_half_of_the_room() -> None:
    queue = AuditQueue(100, SMALL)
    assert [offer(queue, of("eve", Kind.DENIAL)) for _ in range(8)] == [True] * 5 + [False] * 3
    assert [offer(queue, of("bob", Kind.DENIAL)) for _ in range(8)] == [True] * 5 + [False] * 3
    assert not offer(queue, of("alice", Kind.DENIAL))
    assert queue.left_out == {"act": 0, "denial": 7, "login": 0}


def test_a_source_has_half_of_the_bytes() -> None:
    queue = AuditQueue(100, SMALL)
    assert [offer(queue, of("eve", Kind.DENIAL), b"x" * 300) for _ in range(3)] == [True, True, False]
    assert offer(queue, of("bob", Kind.DENIAL), b"x" * 300)


@pytest.mark.parametrize("kind", [Kind.DENIAL, Kind.LOGIN])
def test_a_flood_of_denials_or_logins_pushes_no_act_out(kind: Kind) -> None:
    queue = AuditQueue(100, SMALL)
    for number in range(1_000):
        offer(queue, of(f"eve-{number}", kind), b"flood\n")
    assert offer(queue, of("admin", Kind.ACT), b"act\n")
    assert queue.take(1.0)[0] == b"act\n"


def test_acts_are_written_before_denials_before_logins() -> None:
    queue = AuditQueue(100, SMALL)
    for kind in (Kind.LOGIN, Kind.DENIAL, Kind.ACT):
        for number in range(2):
            offer(queue, of("alice", kind), f"{kind.value}{number}\n".encode())
    assert b"".join(queue.take(0.0)).split() == [b"act0", b"act1", b"denial0", b"denial1", b"login0", b"login1"]
    assert len(queue) == 0
    assert queue.size == 0


def test_no_more_lines_a_second_are_written_than_the_rate_says() -> None:
    queue = AuditQueue(3)
    for _ in range(20):
        offer(queue, of("alice", Kind.DENIAL))
    taken = [len(queue.take(at / 10)) for at in range(31)]
    assert taken[0] == 3
    assert sum(taken) == pytest.approx(3 + 9, abs=1)
    assert len(queue.take(3.0, is_last=True)) == 20 - sum(taken), "the end of the process does not wait"


def test_room_that_was_given_back_can_be_used_again() -> None:
    queue = AuditQueue(100, SMALL)
    for _ in range(100):
        for _ in range(5):
            assert offer(queue, of("alice", Kind.DENIAL))
        assert len(queue.take(0.0, is_last=True)) == 5
    assert queue.left_out["denial"] == 0


def test_what_was_left_out_is_told_once_by_source_and_act() -> None:
    queue = AuditQueue(100, SMALL)
    for _ in range(9):
        offer(queue, of("eve", Kind.DENIAL))
    for _ in range(7):
        offer(queue, of("eve", Kind.LOGIN, "LOGIN"))
    assert queue.take_left_out(0.0) == [
        (LeftOut("denial", "User:eve", "FETCH"), 4), (LeftOut("login", "User:eve", "LOGIN"), 2),
    ]  # fmt: skip
    assert not queue.has_left_out
    offer(queue, of("eve", Kind.DENIAL))
    assert queue.take_left_out(LEFT_OUT_S - 0.1) == []
    assert queue.take_left_out(LEFT_OUT_S) == [(LeftOut("denial", "User:eve", "FETCH"), 1)]


@pytest.mark.slow
def test_counts_of_lines_left_out_are_bounded() -> None:
    queue = AuditQueue(100, SMALL)
    for number in range(5_000):
        offer(queue, of(f"eve-{number}", Kind.DENIAL))
    counts: Any = dict(queue.take_left_out(0.0))
    assert len(counts) == COUNTED_MAX + 1
    assert counts[LeftOut("denial", OTHERS, OTHERS)] == 5_000 - 10 - COUNTED_MAX
    assert sum(counts.values()) == 5_000 - 10


def test_long_names_of_sources_and_acts_are_not_kept() -> None:
    queue = AuditQueue(100, SMALL)
    long = of("x" * 100_000, Kind.DENIAL, "GET /" + "y" * 100_000)
    for _ in range(6):
        offer(queue, long)
    ((counted, count),) = queue.take_left_out(0.0)
    assert count == 1
    assert len(counted.source) + len(counted.act) < 700
    assert len(long.source) < 350


def test_memory_of_waiting_lines_is_bounded() -> None:
    assert sum(room.bytes for room in ROOM.values()) <= 40 << 20

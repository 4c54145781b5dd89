"""Deadlines, placement, subscriptions, expiry: the small pure parts."""

from __future__ import annotations

import heapq
import random

import pytest

from bmq.coordinator.group.messages import Now
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group.subscription import parse_topics, subscribed_topics
from bmq.coordinator.group.timers import NEVER, GroupTimers, Timer, TimerKind
from bmq.coordinator.records import GroupRecord, Offset, OffsetRecord, StoredGroup, StoredMember
from bmq.coordinator.shard.state import ShardState
from bmq.core.errors import FormatError
from bmq.meta.group_placement import java_hash, shard_of

SUBSCRIBED = b"\x00\x01\x00\x00\x00\x02\x00\x01a\x00\x02bc" + b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-12345", 158_455_506),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1_772_899),
        ("Grüße", 69_215_351),
    ],
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_shard_of_a_hash_without_a_positive() -> None:
    assert shard_of("polygenelubricants", 50) == 0
    assert shard_of("a", 50) == 47


def test_deadlines_come_in_order_and_only_when_due() -> None:
    """Against a plain model; heartbeats only move, so the heap stays within twice the timers."""
    rng = random.Random(5)
    deadlines = GroupTimers()
    timers = [Timer("g", TimerKind.SESSION, str(number)) for number in range(200)]
    now = 0
    for _ in range(20_000):
        timer = rng.choice(timers)
        if rng.random() < 0.2:
            deadlines.cancel(timer)
        else:
            deadlines.set(timer, now + rng.randrange(1, 1_000))
        if rng.random() < 0.05:
            now += rng.randrange(50)
            due = sorted(each.at for each in timers if each.at <= now)
            popped = []
            while (ended := deadlines.pop(now)) is not None:
                assert not ended.is_set
                popped.append(ended)
            assert len(popped) == len(due)
            assert all(each.at > now for each in timers)
        alive = [each.at for each in timers if each.is_set]
        assert deadlines.next() <= min(alive, default=NEVER)
        assert len(deadlines) <= 2 * len(timers) + 128


def test_a_heartbeat_costs_no_heap_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines, timer = GroupTimers(), Timer("g", TimerKind.SESSION)
    deadlines.set(timer, 100)
    monkeypatch.setattr(heapq, "heappush", None)
    for at in range(101, 1_000):
        deadlines.set(timer, at)
    assert len(deadlines) == 1


def test_subscriptions() -> None:
    topics, end = parse_topics(SUBSCRIBED)
    assert (topics, SUBSCRIBED[:end][-2:]) == (["a", "bc"], b"bc")
    assert subscribed_topics("consumer", [SUBSCRIBED[:end] + bytes([i]) for i in range(9)]) == frozenset({"a", "bc"})
    assert subscribed_topics("consumer", [SUBSCRIBED, SUBSCRIBED[:2] + b"\0\0\0\1\0\1z"]) == frozenset({"a", "bc", "z"})
    assert subscribed_topics("connect", [SUBSCRIBED]) is None
    assert subscribed_topics("consumer", [SUBSCRIBED, b"own format"]) is None
    assert subscribed_topics("consumer", []) == frozenset()


@pytest.mark.parametrize("data", [b"", b"\0\1", SUBSCRIBED[:-6], b"\0\1\x7f\xff\xff\xff", b"\xff\xff\0\0\0\0"])
def test_broken_subscriptions(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_topics(data)


MEMBER = StoredMember("m", None, "c", "h", 10, 10, b"\0\1\0\0\0\1\0\1a", b"")
EMPTY = StoredGroup("consumer", 3, None, None, 500)
STABLE = StoredGroup("consumer", 3, "range", "m", 500, (MEMBER,))
OTHER_TYPE = StoredGroup("connect", 3, "range", "m", 500, (MEMBER,))


@pytest.mark.parametrize(
    ("group", "topic", "value", "expires_at"),
    [
        (None, "a", Offset(1, commit_timestamp=100), 1_100),
        (None, "a", Offset(1, commit_timestamp=100, expire_timestamp=300), 300),
        (EMPTY, "a", Offset(1, commit_timestamp=100), 1_500),
        (StoredGroup("consumer", 3, None, None), "a", Offset(1, commit_timestamp=100), 1_100),
        (STABLE, "a", Offset(1, commit_timestamp=100), None),
        (STABLE, "unsubscribed", Offset(1, commit_timestamp=100), 1_100),
        (OTHER_TYPE, "a", Offset(1, commit_timestamp=100), None),
    ],
    ids=["simple", "own expiry", "since empty", "empty, old record", "subscribed", "unsubscribed", "not consumers"],
)
def test_expiry_kip_211(group: StoredGroup | None, topic: str, value: Offset, expires_at: int | None) -> None:
    state = ShardState(GroupRules())
    if group is not None:
        state.apply(GroupRecord("g", group))
    state.apply(OffsetRecord("g", topic, 0, value))
    list(state.go_live(lambda: Now(0, 0)))
    if expires_at is None:
        assert state.expired_offsets("g", topic, [0], 1 << 60, 1_000) == []
        return
    assert state.expired_offsets("g", topic, [0], expires_at - 1, 1_000) == []
    assert state.expired_group("g") == [], "it has an offset"
    records = state.expired_offsets("g", topic, [0, 1], expires_at, 1_000)
    assert records == [OffsetRecord("g", topic, 0, None)]
    for record in records:
        state.apply(record)
    assert state.expired_group("g") == ([GroupRecord("g", None)] if group is not None and not group.members else [])
    assert "a" not in state.offsets.of_group("g")

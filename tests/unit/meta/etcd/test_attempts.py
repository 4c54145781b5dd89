"""The attempts of one call to a cluster: which member is asked, how often, and what giving up means."""

from __future__ import annotations

from random import Random

import pytest

from bmq.meta.etcd.attempts import Attempts, Repeatability, Rotation
from bmq.meta.etcd.errors import FailureVerdict
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.kv import KvUnavailable, KvUnknown

SETTINGS = EtcdSettings()


def attempts(kind: Repeatability, *, members: int = 3, until: float = 10.0) -> Attempts:
    return Attempts(kind, members=members, backoff_s=SETTINGS.backoff_s, dice=Random(1), until=until)


def test_members_are_asked_in_turn_before_the_first_pause() -> None:
    tried = attempts(Repeatability.ONCE)
    pauses = [tried.pause_s(FailureVerdict.NOT_DONE, 0.0) for _ in range(6)]
    assert pauses[:2] == [0.0, 0.0]
    assert pauses[3:5] == [0.0, 0.0]
    assert SETTINGS.backoff_s.least / 2 <= (pauses[2] or 0) <= SETTINGS.backoff_s.least
    assert SETTINGS.backoff_s.least <= (pauses[5] or 0) <= SETTINGS.backoff_s.least * 2


@pytest.mark.parametrize("kind", Repeatability)
def test_no_attempt_begins_after_the_time_is_over(kind: Repeatability) -> None:
    tried = attempts(kind, until=10.0)
    assert tried.pause_s(FailureVerdict.NOT_DONE, 9.9) == 0.0
    assert tried.pause_s(FailureVerdict.NOT_DONE, 10.0) is None
    assert isinstance(tried.error("gone"), KvUnavailable)


@pytest.mark.parametrize("kind", Repeatability)
@pytest.mark.parametrize("verdict", [FailureVerdict.FORBIDDEN, FailureVerdict.LEASE_GONE])
def test_what_will_not_change_is_not_asked_again(kind: Repeatability, verdict: FailureVerdict) -> None:
    assert attempts(kind).pause_s(verdict, 0.0) is None


def test_what_might_be_done_twice_is_not_sent_again_once_unknown() -> None:
    once = attempts(Repeatability.ONCE)
    assert once.pause_s(FailureVerdict.NOT_DONE, 0.0) == 0.0
    assert once.pause_s(FailureVerdict.TOKEN, 0.0) == 0.0
    assert once.pause_s(FailureVerdict.UNKNOWN, 0.0) is None
    assert isinstance(once.error("lost"), KvUnknown)


def test_what_may_be_repeated_stays_unknown_when_a_later_attempt_is_refused() -> None:
    again = attempts(Repeatability.REPEATABLE)
    assert again.pause_s(FailureVerdict.UNKNOWN, 0.0) == 0.0
    assert again.pause_s(FailureVerdict.FORBIDDEN, 0.0) is None
    assert isinstance(again.error("lost"), KvUnknown)


def test_a_read_is_never_unknown() -> None:
    read = attempts(Repeatability.READ)
    assert read.pause_s(FailureVerdict.UNKNOWN, 0.0) == 0.0
    assert read.pause_s(FailureVerdict.UNKNOWN, 10.0) is None
    assert isinstance(read.error("lost"), KvUnavailable)


def test_one_member_is_asked_until_it_fails_then_the_next() -> None:
    members = Rotation(3, avoid_s=5.0, first=2)
    assert [members.choose(0.0), members.choose(1.0)] == [2, 2]
    members.failed(2, 1.0)
    assert members.choose(1.0) == 0
    members.failed(0, 1.5)
    assert members.choose(2.0) == 1
    assert members.choose(100.0) == 1  # it responds: no call goes back to the first


def test_when_all_are_avoided_the_one_that_failed_first_is_asked() -> None:
    members = Rotation(3, avoid_s=5.0, first=0)
    for member, now in ((0, 1.0), (1, 2.0), (2, 3.0)):
        assert members.choose(now) == member
        members.failed(member, now)
    assert members.choose(3.0) == 0
    members.failed(0, 3.5)
    assert members.choose(3.6) == 1
    members.answered(1)
    assert members.choose(3.7) == 1


def test_a_single_member_is_always_asked() -> None:
    members = Rotation(1, avoid_s=5.0, first=0)
    members.failed(0, 1.0)
    assert members.choose(1.0) == 0

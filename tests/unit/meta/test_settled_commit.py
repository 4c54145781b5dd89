"""Commits whose outcome is known: which failures are tried again, how often, and what a client is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bmq.core.errors import ErrorCode
from bmq.meta.kv import Commit, Compare, Entry, KvError, KvUnavailable, KvUnknown, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.settled_commit import SETTLE_ATTEMPTS, commit_settled, refused

DONE = Commit(True, 7, {})
WRITES = [Put("k", b"v")]


class ScriptedKeyValue(MemoryKeyValue):
    """A store whose commits end as the script says."""

    def __init__(self, *script: Commit | KvError) -> None:
        super().__init__(MemoryStore())
        self._script = list(script)
        self.commits = 0

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        self.commits += 1
        outcome = self._script.pop(0)
        if isinstance(outcome, Commit):
            return outcome
        raise outcome


async def test_a_commit_that_is_answered_is_sent_once() -> None:
    kv = ScriptedKeyValue(DONE)
    assert await commit_settled(kv, [], WRITES) == (DONE, False)
    assert kv.commits == 1


async def test_after_an_unknown_outcome_the_commit_may_be_our_own() -> None:
    conflict = Commit(False, 8, {"k": Entry("k", b"v", 7)})
    kv = ScriptedKeyValue(KvUnknown("lost"), KvUnavailable("away"), conflict)
    assert await commit_settled(kv, [Compare("k", 0)], WRITES) == (conflict, True)


async def test_a_store_that_is_away_before_any_doubt_is_told_at_once() -> None:
    kv = ScriptedKeyValue(KvUnavailable("away"), DONE)
    with pytest.raises(KvUnavailable):
        await commit_settled(kv, [], WRITES)
    assert kv.commits == 1


@pytest.mark.parametrize("then", [KvUnknown("lost"), KvUnavailable("away")])
async def test_an_outcome_that_stays_unknown_is_given_up_after_some_seconds(then: KvError) -> None:
    kv = ScriptedKeyValue(KvUnknown("lost"), *[then] * (SETTLE_ATTEMPTS - 1))
    with pytest.raises(KvUnknown):
        await commit_settled(kv, [], WRITES)
    assert kv.commits == SETTLE_ATTEMPTS
    assert 2.0 < asyncio.get_running_loop().time() < 15.0


def test_a_client_is_told_whether_its_change_may_have_been_done() -> None:
    unknown, away = refused(KvUnknown("lost")), refused(KvUnavailable("away"))
    assert unknown.code is away.code is ErrorCode.REQUEST_TIMED_OUT
    assert "not known" in unknown.message
    assert "nothing was done" in away.message

"""Data encryption keys: how long one is held, and when the NameNode is asked again."""

from __future__ import annotations

import asyncio

import pytest

from bmq.storage.filesystem import StorageUnavailable
from bmq.storage.hdfs.encryption_keys import EncryptionKeys, Key, password_of, user_of

pytestmark = pytest.mark.loops("asyncio")

LIFE_S = 100.0


class Cluster:
    """A NameNode with keys of ``LIFE_S``, whose clock is ``ahead_s`` ahead of this client's."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.now_s = 1000.0
        self.asked = 0
        self.has_keys = True
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.ahead_s = ahead_s
        self.keys = EncryptionKeys(self.ask, wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s)

    async def ask(self) -> Key | None:
        self.asked += 1
        await asyncio.sleep(0)
        await self.may_respond.wait()
        if not self.has_keys:
            return None
        expiry_ms = int((self.now_s + self.ahead_s + LIFE_S) * 1000)
        return Key(id=self.asked, pool="BP-1", nonce=b"nonce", key=b"key", expiry_ms=expiry_ms)


async def test_a_key_is_held_for_most_of_its_life() -> None:
    cluster = Cluster()
    assert [key.id for key in await asyncio.gather(*(cluster.keys.current() for _ in range(5)))] == [1] * 5
    cluster.now_s += 0.79 * LIFE_S
    assert (await cluster.keys.current()).id == 1
    cluster.now_s += 0.02 * LIFE_S
    assert (await cluster.keys.current()).id == 1, "the NameNode is asked meanwhile"
    await settled(cluster)
    assert (await cluster.keys.current()).id == 2


async def settled(cluster: Cluster) -> None:
    """Wait for the question that is under way."""
    await asyncio.gather(*cluster.keys._tasks._tasks)


async def test_a_key_serves_to_its_end_while_the_namenode_is_silent() -> None:
    cluster = Cluster()
    await cluster.keys.current()
    cluster.may_respond.clear()
    cluster.now_s += 0.99 * LIFE_S
    assert [key.id for key in await asyncio.gather(*(cluster.keys.current() for _ in range(16)))] == [1] * 16
    assert cluster.asked == 2
    cluster.may_respond.set()
    await settled(cluster)
    assert (await cluster.keys.current()).id == 2
    await cluster.keys.close()


async def test_callers_without_a_good_key_share_one_question_and_its_failure() -> None:
    cluster = Cluster()
    await cluster.keys.current()
    cluster.has_keys = False
    cluster.now_s += LIFE_S
    errors = await asyncio.gather(*(cluster.keys.current() for _ in range(16)), return_exceptions=True)
    assert {type(error) for error in errors} == {StorageUnavailable}
    assert cluster.asked == 2
    cluster.has_keys = True
    assert (await cluster.keys.current()).id == 3


async def test_a_namenode_that_gives_no_other_key_is_not_asked_for_each_connection() -> None:
    cluster = Cluster()
    await cluster.keys.current()
    cluster.has_keys = False
    cluster.now_s += 0.81 * LIFE_S
    for _ in range(3):
        assert (await cluster.keys.current()).id == 1
        await settled(cluster)
    assert cluster.asked == 2
    cluster.now_s += 6
    assert (await cluster.keys.current()).id == 1
    await settled(cluster)
    assert cluster.asked == 3


async def test_a_caller_that_gives_up_leaves_the_question_to_the_others() -> None:
    cluster = Cluster()
    cluster.may_respond.clear()
    callers = [asyncio.create_task(cluster.keys.current()) for _ in range(2)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.wait(callers[:1])
    cluster.may_respond.set()
    assert (await callers[1]).id == 1
    assert callers[0].cancelled()


async def test_the_end_of_the_client_ends_the_question() -> None:
    cluster = Cluster()
    cluster.may_respond.clear()
    caller = asyncio.create_task(cluster.keys.current())
    await asyncio.sleep(0)
    await cluster.keys.close()
    with pytest.raises(StorageUnavailable, match="closed"):
        await caller


async def test_a_clock_that_is_far_ahead_does_not_ask_for_every_connection() -> None:
    cluster = Cluster(ahead_s=-500.0)
    assert (await cluster.keys.current()).id == (await cluster.keys.current()).id == 1
    cluster.now_s += 2
    assert (await cluster.keys.current()).id == 2


async def test_a_forgotten_key_is_replaced_once() -> None:
    cluster = Cluster()
    first = await cluster.keys.current()
    for _ in range(3):  # of several connections that had it
        cluster.keys.forget(first)
        assert (await cluster.keys.current()).id == 2


async def test_a_namenode_without_keys_says_what_it_needs() -> None:
    cluster = Cluster()
    cluster.has_keys = False
    with pytest.raises(StorageUnavailable, match=r"dfs\.block\.access\.token\.enable"):
        await cluster.keys.current()
    cluster.has_keys = True
    assert (await cluster.keys.current()).id == 2


def test_the_log_in_of_a_key_is_that_of_hadoop() -> None:
    key = Key(id=0xFFFFFFFE, pool="BP-1", nonce=b"\x00\xff", key=b"secret", expiry_ms=1)
    assert user_of(key) == "-2 BP-1 AP8="
    assert password_of(key) == "c2VjcmV0"
    assert "secret" not in repr(EncryptionKeys(Cluster().ask))

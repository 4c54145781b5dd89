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
        self.ahead_s = ahead_s
        self.keys = EncryptionKeys(self.ask, wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s)

    async def ask(self) -> Key | None:
        self.asked += 1
        await asyncio.sleep(0)
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
    assert (await cluster.keys.current()).id == 2


async def test_a_clock_that_is_far_ahead_does_not_ask_for_every_connection() -> None:
    cluster = Cluster(ahead_s=-500.0)
    assert (await cluster.keys.current()).id == (await cluster.keys.current()).id
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

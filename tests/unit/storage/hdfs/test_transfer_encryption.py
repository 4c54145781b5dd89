"""``dfs.encrypt.data.transfer`` is switched at HDFS's servers while this process runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from bmq.core.aio.tasks import cancel_and_wait
from bmq.storage.filesystem import StorageUnavailable, Unsupported
from bmq.storage.hdfs.encryption_keys import Key
from bmq.storage.hdfs.transfer_encryption import EVERY_S, PAUSE_S, WAIT_S, TransferEncryption


@dataclass
class Cluster:
    """A NameNode whose administrators switch its encryption, and the clock of this process."""

    is_encrypted: bool = False
    is_silent: bool = False
    is_down: bool = False
    questions: int = 0
    now_s: float = 100.0
    encryption: TransferEncryption = field(init=False)

    def __post_init__(self) -> None:
        self.encryption = TransferEncryption(self.ask, self.ask_key, monotonic_s=lambda: self.now_s)

    async def ask(self) -> bool:
        self.questions += 1
        if self.is_silent:
            await asyncio.sleep(1000)
        await asyncio.sleep(0.1)
        if self.is_down:
            raise StorageUnavailable("no NameNode responds")
        return self.is_encrypted

    async def ask_key(self) -> Key | None:
        return None

    async def fail(self) -> bool:
        """Have a connection fail; return whether another attempt is worth while."""
        return await self.encryption.has_changed(self.encryption.keys)


@asynccontextmanager
async def begun(*, is_encrypted: bool, demand: str = "") -> AsyncIterator[Cluster]:
    cluster = Cluster(is_encrypted)
    try:
        await cluster.encryption.begin(demand)
        cluster.now_s += PAUSE_S
        yield cluster
    finally:
        await cluster.encryption.close()


@pytest.mark.parametrize("is_encrypted", [False, True])
async def test_a_failed_connection_has_the_namenode_asked_again(is_encrypted: bool) -> None:
    async with begun(is_encrypted=is_encrypted) as cluster:
        assert (cluster.encryption.keys is not None) is is_encrypted
        assert not await cluster.fail(), "nothing was switched"
        cluster.now_s += PAUSE_S
        cluster.is_encrypted = not is_encrypted
        former = cluster.encryption.keys
        assert await asyncio.gather(*(cluster.fail() for _ in range(20))) == [True] * 20
        assert cluster.questions == 3, "all callers share the question"
        assert (cluster.encryption.keys is None) is is_encrypted
        assert await cluster.encryption.has_changed(former), "a connection that began before the switch"
        assert cluster.questions == 3


async def test_the_questions_are_bounded_however_many_connections_fail() -> None:
    async with begun(is_encrypted=False) as cluster:
        for _ in range(100):
            assert not await cluster.fail()
            cluster.now_s += PAUSE_S / 10
        assert cluster.questions == 1 + 10


async def test_a_silent_namenode_holds_a_failed_connection_for_a_moment() -> None:
    async with begun(is_encrypted=False) as cluster:
        cluster.is_silent = True
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert not await cluster.fail()
        assert loop.time() - before == pytest.approx(WAIT_S)


async def test_a_namenode_that_is_down_leaves_the_protection_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async with begun(is_encrypted=True) as cluster:
        cluster.is_down = True
        assert not await cluster.fail()
        assert cluster.encryption.keys is not None
        assert "does not say whether data transfer is encrypted" in caplog.text


async def test_the_namenode_is_asked_each_hour_in_the_background() -> None:
    async with begun(is_encrypted=False) as cluster:
        cluster.is_encrypted = True
        cluster.encryption.note_use()
        assert cluster.questions == 1
        cluster.now_s += EVERY_S
        cluster.encryption.note_use()
        cluster.encryption.note_use()
        await cluster.encryption._tasks.finish()
        assert cluster.questions == 2
        assert cluster.encryption.keys is not None


async def test_demanded_encryption_is_never_given_up(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Unsupported, match="nothing is sent"):
        async with begun(is_encrypted=False, demand="nothing is sent"):
            pass
    async with begun(is_encrypted=True, demand="nothing is sent") as cluster:
        assert cluster.encryption.refusal == ""
        for is_encrypted in (False, False, True, False):
            cluster.is_encrypted = is_encrypted
            assert not await cluster.fail(), "a second attempt would be no other one"
            assert cluster.encryption.keys is not None
            assert cluster.encryption.refusal == ("" if is_encrypted else "nothing is sent")
            cluster.now_s += PAUSE_S
        assert caplog.text.count("nothing is sent") == 2, "once for each switch"


async def test_a_library_that_reads_by_itself_is_refused_while_the_demand_is_denied() -> None:
    """Coded files are read through hdfs-native, which obeys the NameNode alone."""
    async with begun(is_encrypted=True, demand="nothing is sent") as cluster:
        await cluster.encryption.refuse_denied()
        cluster.is_encrypted = False
        await cluster.encryption.refuse_denied()
        assert cluster.questions == 2, "asked a moment ago"
        cluster.now_s += PAUSE_S
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="nothing is sent"):
                await cluster.encryption.refuse_denied()
        assert cluster.questions == 3
        cluster.now_s += PAUSE_S
        cluster.is_encrypted = True
        await cluster.encryption.refuse_denied()
    async with begun(is_encrypted=False) as cluster:
        await cluster.encryption.refuse_denied()
        assert cluster.questions == 1, "nothing is demanded"


async def test_a_caller_that_gives_up_leaves_the_question_to_others() -> None:
    async with begun(is_encrypted=False) as cluster:
        cluster.is_encrypted = True
        first, second = asyncio.create_task(cluster.fail()), asyncio.create_task(cluster.fail())
        await asyncio.sleep(0)
        await cancel_and_wait(first)
        assert await second

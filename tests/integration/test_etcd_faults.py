"""etcd's members killed, paused, cut off and full: nothing is missed, nothing done twice, no belief is wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

import psutil
import pytest

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.address import EtcdAddress, parse_etcd_url
from bmq.meta.etcd.attempts import Repeatability
from bmq.meta.etcd.client import EtcdClient
from bmq.meta.etcd.member import TXN
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.etcd.store import EtcdKeyValue
from bmq.meta.kv import (
    Changes,
    Compacted,
    Compare,
    Entry,
    Event,
    KeyValue,
    KvUnavailable,
    KvUnknown,
    LeaseNotFound,
    Put,
)
from tests.integration.conftest import EtcdFactory
from tests.services.etcd import HOST, EtcdCluster
from tests.services.processes import free_ports

T = TypeVar("T")

# A member that hangs, or a cluster that is away, is given up soon; all else is as in production.
HASTY = EtcdSettings(call_timeout_s=1.0, connect_timeout_s=0.5, retry_for_s=1.0)
WRITERS, WORDS = 4, 40


@asynccontextmanager
async def opened(url: str, settings: EtcdSettings = HASTY) -> AsyncIterator[EtcdKeyValue]:
    """Yield a client; fail the test after 90 s, in case a call never returns."""
    kv = await EtcdKeyValue.open(parse_etcd_url(url), settings)
    try:
        async with asyncio.timeout(90):
            yield kv
    finally:
        await kv.close()


class Log:
    """Log in one key, which grows by a word a commit: a word that is missed, or written twice, shows."""

    def __init__(self, kv: KeyValue) -> None:
        self.kv = kv

    async def append(self, word: str) -> None:
        """Append a word by the recipe of ``bmq.meta.kv``: the same compares again until the outcome is known."""
        entry = await persistent(lambda: self.kv.get("log"))
        while word not in words(entry):
            value, revision = (entry.value, entry.revision) if entry is not None else (b"", 0)
            entry = await self._append(Compare("log", revision), Put("log", value + word.encode() + b" "))

    async def _append(self, compare: Compare, write: Put) -> Entry | None:
        commit = await persistent(lambda: self.kv.commit([compare], [write]))
        return Entry("log", write.value, commit.revision) if commit.succeeded else commit.current["log"]

    async def follow(self, last: str) -> list[Changes]:
        """Return all changes up to the one that brings this word."""
        found: list[Changes] = []
        async with aclosing(self.kv.watch("log", after_revision=1)) as watch:
            async for changes in watch:
                found.append(changes)
                if last in words(changes[0].entry):
                    break
        return found


async def persistent(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except (KvUnavailable, KvUnknown):
            await asyncio.sleep(0.02)  # the store is away: no condition to wait for but that it is back


def words(entry: Entry | None) -> list[str]:
    return entry.value.decode().split() if entry is not None else []


def connected(cluster: EtcdCluster) -> int:
    """Return the index of the member to which this process is connected."""
    members = {ports.client: index for index, ports in enumerate(cluster.ports)}
    peers = {
        connection.raddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED and connection.raddr
    }
    (index,) = {members[port] for port in peers if port in members}
    return index


def others(cluster: EtcdCluster, index: int) -> list[int]:
    return [other for other in range(len(cluster.members)) if other != index]


def victim_of(cluster: EtcdCluster, victim: str) -> int:
    return cluster.leader() if victim == "leader" else connected(cluster)


async def show_nothing_missed_nor_twice(kv: KeyValue, found: list[Changes], expected: set[str]) -> None:
    final = words(await kv.get("log"))
    assert len(final) == len(set(final))
    assert set(final) == expected
    assert [[event.revision for event in changes] for changes in found] == [[2 + n] for n in range(len(final))]
    assert [words(changes[0].entry) for changes in found] == [final[: n + 1] for n in range(len(final))]


@pytest.mark.parametrize("fault", ["kill", "pause"])
@pytest.mark.parametrize("victim", ["leader", "connected"])
def test_commits_and_a_watch_go_on_through_the_loss_of_a_member(fault: str, victim: str, etcd_new: EtcdFactory) -> None:
    cluster = etcd_new(members=3)

    async def write(log: Log, writer: int, is_under_way: asyncio.Event) -> None:
        for n in range(WORDS):
            await log.append(f"{writer}-{n}")
            if n == WORDS // 4:
                is_under_way.set()

    async def main() -> None:
        async with opened(cluster.url) as kv:
            log, is_under_way = Log(kv), asyncio.Event()
            watching = asyncio.create_task(log.follow("end"))
            async with asyncio.TaskGroup() as writers:
                for writer in range(WRITERS):
                    writers.create_task(write(log, writer, is_under_way))
                await is_under_way.wait()
                getattr(cluster, fault)(victim_of(cluster, victim))
            await log.append("end")
            found = await watching
            expected = {f"{writer}-{n}" for writer in range(WRITERS) for n in range(WORDS)} | {"end"}
            await show_nothing_missed_nor_twice(kv, found, expected)

    asyncio.run(main())


def test_all_members_stop_and_come_back(etcd_new: EtcdFactory) -> None:
    cluster = etcd_new(members=3)

    async def main() -> None:
        async with opened(cluster.url) as kv:
            log = Log(kv)
            watching = asyncio.create_task(log.follow("end"))
            await log.append("before")
            cluster.kill_all()
            with pytest.raises(KvUnavailable):  # and by then every connection is known to be lost
                await kv.get("log")
            with pytest.raises(KvUnavailable):  # not KvUnknown: nothing was sent
                await kv.commit([], [Put("never", b"")])
            late = asyncio.create_task(log.append("during"))
            cluster.heal()
            await late
            await log.append("end")
            await show_nothing_missed_nor_twice(kv, await watching, {"before", "during", "end"})
            assert await kv.get("never") is None

    asyncio.run(main())


def test_a_member_without_a_leader_says_so_and_its_watch_resumes(etcd_new: EtcdFactory) -> None:
    cluster = etcd_new(members=3)

    async def main() -> None:
        async with opened(cluster.url) as kv:
            log = Log(kv)
            watching = asyncio.create_task(log.follow("end"))
            await log.append("before")
            for index in others(cluster, connected(cluster)):
                cluster.kill(index)
            while True:  # until the member has noticed, commits are proposed and never answered
                with pytest.raises((KvUnknown, KvUnavailable)) as refused:
                    await kv.commit([Compare("never", 1)], [Put("never", b"")])
                if isinstance(refused.value, KvUnavailable):
                    break
            with pytest.raises(KvUnavailable, match=r"no leader|Connection refused"):
                await kv.get("log")
            late = asyncio.create_task(log.append("during"))
            cluster.heal()
            await late
            await log.append("end")
            await show_nothing_missed_nor_twice(kv, await watching, {"before", "during", "end"})

    asyncio.run(main())


def test_a_watch_that_was_away_during_a_compaction_hears_compacted(etcd_new: EtcdFactory) -> None:
    cluster = etcd_new(members=3)
    urls = [f"etcd://{endpoint}" for endpoint in cluster.endpoints]

    async def main() -> None:
        async with opened(urls[0]) as kv, opened(urls[1]) as other:
            watch = kv.watch("", after_revision=1)
            await kv.commit([], [Put("a", b"")])
            assert await anext(watch) == [Event("a", Entry("a", b"", 2), 2)]
            cluster.kill(0)
            for _ in range(5):
                await persistent(lambda: other.commit([], [Put("a", b"")]))
            revision = await other.revision()
            cluster.compact(revision)
            cluster.restart(0)
            with pytest.raises(Compacted) as compacted:
                await anext(watch)
            assert compacted.value.revision == revision

    asyncio.run(main())


def test_a_lease_outlives_its_leader_and_its_end_is_seen(etcd_new: EtcdFactory) -> None:
    cluster = etcd_new(members=3)

    async def main() -> None:
        async with opened(cluster.url) as kv:
            lease = await kv.grant(3)
            await kv.commit([], [Put("alive", b"", lease)])
            cluster.kill(cluster.leader())
            for _ in range(10):
                await persistent(lambda: kv.keep_alive(lease))
            assert await kv.get("alive") == Entry("alive", b"", 2, lease)
            async with aclosing(kv.watch("alive", after_revision=2)) as watch:
                assert await anext(watch) == [Event("alive", None, 3)]
            with pytest.raises(LeaseNotFound):
                await kv.keep_alive(lease)
            with pytest.raises(LeaseNotFound):
                await kv.commit([], [Put("alive", b"", lease)])

    asyncio.run(main())


def test_members_that_are_dead_from_the_start_are_passed_over(etcd: EtcdCluster) -> None:
    """Commit with two closed ports among the endpoints, ten times, since each client begins at a random one."""
    refusing = ",".join(f"{HOST}:{port}" for port in free_ports(2))

    async def main() -> None:
        for _ in range(10):
            async with opened(f"etcd://{refusing},{etcd.endpoints[0]}") as kv:
                commits = await asyncio.gather(*(kv.commit([], [Put("a", b"")]) for _ in range(10)))
                assert all(commit.succeeded for commit in commits)

    asyncio.run(main())


def test_what_was_never_sent_is_not_unknown() -> None:
    """Commit to a closed port, and to a silent listener (a process that hangs, a firewall): nothing was sent."""
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen(1)
        endpoints = (f"{HOST}:{free_ports(1)[0]}", f"{HOST}:{silent.getsockname()[1]}")

        async def main(endpoint: str) -> str:
            client = EtcdClient(EtcdAddress((endpoint,)), HASTY)
            try:
                with pytest.raises(KvUnavailable) as refused:
                    await client.ask(TXN, pb.TxnRequest(), Repeatability.ONCE)
            finally:
                await client.close()
            return str(refused.value)

        refusals = [asyncio.run(main(endpoint)) for endpoint in endpoints]
    assert "Connection refused" in refusals[0]
    assert endpoints[1] in refusals[1]  # gRPC's words, or ours: its time for a connection ends when ours does


async def fill(kv: KeyValue) -> None:
    for n in range(100):
        await kv.commit([], [Put(f"big/{n}", bytes(500_000))])


def test_a_full_database_is_said_and_can_still_be_read(etcd_new: EtcdFactory) -> None:
    cluster = etcd_new(arguments=("--quota-backend-bytes", "4000000"))

    async def main() -> None:
        async with opened(cluster.url) as kv:
            await kv.commit([], [Put("a", b"first")])
            with pytest.raises(KvUnknown, match="etcd's database is full: compact and defragment it"):
                await fill(kv)
            assert await kv.get("a") == Entry("a", b"first", 2)

    asyncio.run(main())


def test_a_cancelled_call_leaves_room_for_others(etcd: EtcdCluster) -> None:
    async def main() -> None:
        async with opened(etcd.url, dataclasses.replace(HASTY, calls_in_flight=2)) as kv:
            calls = [asyncio.create_task(kv.commit([], [Put(f"k{n}", b"")])) for n in range(20)]
            await asyncio.sleep(0)  # let some be sent and others wait
            for call in calls[::2]:
                call.cancel()
            await asyncio.wait(calls)
            assert all(call.result().succeeded for call in calls[1::2])
            assert (await kv.commit([], [Put("k", b"")])).succeeded

    asyncio.run(main())


def test_a_lease_is_renewed_when_others_have_all_the_room(etcd_new: EtcdFactory) -> None:
    """Pause the member that has the only call in flight: another one renews the lease before that call returns."""
    cluster = etcd_new(members=3)

    async def main() -> None:
        settings = EtcdSettings(call_timeout_s=60.0, urgent_timeout_s=0.5, calls_in_flight=1, doubt_s=60.0)
        async with opened(cluster.url, settings) as kv:
            lease = await kv.grant(60)
            victim = victim_of(cluster, "connected")
            cluster.pause(victim)
            # A read: a commit's outcome is unknown if the paused member was the leader.
            stuck = asyncio.create_task(kv.get("k"))
            await asyncio.sleep(0)  # so that it comes first, and has the place
            assert await kv.keep_alive(lease) > 0
            assert not stuck.done()
            cluster.resume(victim)
            await stuck

    asyncio.run(main())


def test_a_commit_on_its_way_to_a_leader_that_stops_is_repeated_when_another_leads(etcd_new: EtcdFactory) -> None:
    """Commit through a follower, which passes it on: etcd never responds to it, though it has a leader in 2 s."""
    cluster = etcd_new(members=3)

    async def main() -> None:
        leader = cluster.leader()
        follower = cluster.endpoints[(leader + 1) % 3]
        async with opened(f"etcd://{follower}", EtcdSettings(call_timeout_s=60.0)) as kv:
            await kv.commit([], [Put("a", b"1")])
            cluster.pause(leader)
            with pytest.raises(KvUnknown, match="election"):
                await kv.commit([], [Put("a", b"2")])
            assert (await kv.commit([], [Put("a", b"3")])).succeeded
            cluster.resume(leader)

    asyncio.run(main())


def test_a_commit_at_a_member_that_loses_the_others_has_an_unknown_outcome_soon(etcd_new: EtcdFactory) -> None:
    """Stop the others: the member gives its status and goes on in its term, and never responds to the commit."""
    cluster = etcd_new(members=3)

    async def main() -> None:
        leader = cluster.leader()
        follower = (leader + 1) % 3
        others = [member for member in range(3) if member != follower]
        async with opened(f"etcd://{cluster.endpoints[follower]}", EtcdSettings(call_timeout_s=60.0)) as kv:
            await kv.commit([], [Put("a", b"1")])
            for member in others:
                cluster.pause(member)
            async with asyncio.timeout(10):
                with pytest.raises(KvUnknown, match="no leader"):
                    await kv.commit([], [Put("a", b"2")])
            for member in others:
                cluster.resume(member)
            assert (await kv.commit([], [Put("a", b"3")])).succeeded

    asyncio.run(main())


def test_a_watch_on_a_member_that_falls_silent_goes_on_at_another(etcd_new: EtcdFactory) -> None:
    """A call finds the silence within a second; alone the watch would find it after nine."""
    cluster = etcd_new(members=3)

    async def main() -> None:
        async with opened(cluster.url, EtcdSettings(keepalive_s=600.0)) as kv:
            watch = kv.watch("a", after_revision=(await kv.commit([], [Put("a", b"1")])).revision)
            async with aclosing(watch):
                await kv.commit([], [Put("a", b"1")])
                await anext(watch)
                following = asyncio.ensure_future(anext(watch))
                victim = victim_of(cluster, "connected")
                cluster.pause(victim)
                await kv.get("a")
                await kv.commit([], [Put("a", b"2")])
                changes = await following
                assert [event.entry.value for event in changes if event.entry is not None] == [b"2"]
            cluster.resume(victim)

    asyncio.run(main())

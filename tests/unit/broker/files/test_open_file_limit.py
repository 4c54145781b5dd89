"""Places for open files: more partitions are written than storage, or the broker's bound, lets have a file open."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from bmq.broker.config import BrokerConfig
from bmq.broker.files.open_file_limit import BEAT_S, BEATS_A_LOOK, OpenFileLimit
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import ErrorCode, RequestError
from bmq.storage.filesystem import CreateOptions, OutOfSpace, StorageError, StorageUnavailable
from bmq.storage.memory import Faults
from tests.harness.waiting import until
from tests.simulation.world import read_log
from tests.unit.broker.world import World, batch, world

pytestmark = pytest.mark.slow

LOOK_S = BEAT_S * BEATS_A_LOOK


class Crowded:
    """Storage that has room for ``files_max`` open segments, spares among them.

    Counts the files that it refused, and its refusals: a file is asked for with a smaller block, too.
    """

    def __init__(self, w: World, files_max: int) -> None:
        self._storage = w.storage
        self._plain = w.storage.create
        self.files_max = files_max
        self.is_counted = _is_segment
        self.refusals: list[str] = []
        self.count = 0
        self.most = 0
        setattr(w.storage, "create", self.create)  # noqa: B010  (mypy: no plain assignment to a method)

    @property
    def refused(self) -> int:
        return len(set(self.refusals))

    @property
    def open_files(self) -> int:
        return sum(self.is_counted(path) for path in self._storage.open_files())

    def create(self, path: str, holder: str, options: CreateOptions) -> Any:
        if self.is_counted(path):
            if self.open_files >= self.files_max:
                self.refusals.append(path)
                raise OutOfSpace(f"{path}: no datanode has room")
            self.count += 1
            self.most = max(self.most, self.open_files + 1)
        return self._plain(path, holder, options)


def _is_segment(path: str) -> bool:
    return "/topics/" in path and ".idx" not in path


def _is_journal(path: str) -> bool:
    return "/journals/" in path


def _is_segment_or_journal(path: str) -> bool:
    return _is_segment(path) or _is_journal(path)


async def values(w: World, partition: int, end: int) -> list[bytes]:
    """Return the last record's value of each batch below ``end``, as a reader finds it."""
    return [bytes(each.data)[-9:-1] for each in await read_log(w.fs, end, w.path(partition=partition))]


def value(partition: int, number: int) -> bytes:
    return b"%04d%04d" % (partition, number)


def names(w: World, partitions: int) -> list[str]:
    """Return the name of each partition's open segment, "" where none is open."""
    found = []
    for partition in range(partitions):
        driver = w.broker.get(w.key(partition=partition))
        current = driver.machine.current if driver is not None else None
        found.append(str(current.entry.name) if current is not None else "")
    return found


async def keep_busy(w: World, partition: int) -> None:
    """Keep three produces in flight at all times."""
    pending: set[asyncio.Future[list[Any]]] = set()
    while True:
        while len(pending) < 3:
            pending.add(w.produce({("orders", partition): batch()}))
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        assert all(each.result()[0].error_code == 0 for each in done)


# ---------------------------------------------------------------------------------------------------- whole brokers


@pytest.mark.parametrize("bound", ["storage", "config"])
async def test_many_more_partitions_than_open_files_are_all_served(bound: str) -> None:
    """Each partition gets its turn, again and again, and nothing is lost."""
    config = BrokerConfig(open_pipelines_max=5) if bound == "config" else BrokerConfig()

    async with world(broker=config) as w:
        crowded = Crowded(w, 5 if bound == "storage" else 1000)
        w.storage.faults = Faults(ack_s=(0.01, 0.02))
        w.topic(partitions=40)
        for number in range(3):
            sent = [w.produce({("orders", p): batch(value(p, number))}, timeout_ms=120_000) for p in range(40)]
            answers = [response for (response,) in await asyncio.gather(*sent)]
            assert [response.error_code for response in answers] == [0] * 40
            assert [response.base_offset for response in answers] == [number] * 40
        assert crowded.most == 5
        if bound == "config":
            assert crowded.refused == 0, "our own bound is kept without asking storage"
        for partition in range(40):
            assert await values(w, partition, 3) == [value(partition, number) for number in range(3)]


async def test_an_idle_segment_is_closed_for_another_and_busy_ones_stay_open() -> None:
    async with world() as w:
        Crowded(w, 4)
        w.storage.faults = Faults(ack_s=(0.05, 0.1))
        w.topic(partitions=5)
        busy = [asyncio.ensure_future(keep_busy(w, partition)) for partition in (0, 1)]
        for idle in (2, 3):
            assert (await w.produce_one(batch(), idle)).error_code == 0
        await until(lambda: all(names(w, 4)))
        before = names(w, 5)
        assert before[4] == ""
        assert (await w.produce_one(batch(), 4)).error_code == 0
        after = names(w, 5)
        assert after[:2] == before[:2], "what is written keeps its segment"
        assert after[2] == "", "the one that has been idle for longest is closed"
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def test_partitions_that_are_always_busy_take_turns_with_the_open_files() -> None:
    """No partition is idle at any moment; one that has had its turn gives its place away, and gets another later."""

    async with world() as w:
        crowded = Crowded(w, 3)
        w.storage.faults = Faults(ack_s=(0.05, 0.1))
        w.topic(partitions=6)
        busy = [asyncio.ensure_future(keep_busy(w, partition)) for partition in range(6)]
        await until(lambda: len(w.broker.partitions()) == 6)
        partitions = [driver.machine for driver in w.broker.partitions()]

        def have_reached(goal: int) -> bool:
            return all(partition.high_watermark >= goal for partition in partitions)

        for goal in (1, 100):
            await until(partial(have_reached, goal))
        assert crowded.most == 3
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        crowded.files_max = 1000


async def test_a_partition_with_pauses_of_less_than_a_second_keeps_its_file_for_its_turn() -> None:
    """The partition is not idle between two records: else nearly each record would cost a file."""

    async with world(broker=BrokerConfig(open_pipelines_max=4)) as w:
        made = Crowded(w, 1000)
        w.storage.faults = Faults(ack_s=(0.01, 0.02))
        w.topic(partitions=6)
        written = [0] * 6

        async def write(partition: int) -> None:
            while True:
                assert (await w.produce_one(batch(), partition, timeout_ms=60_000)).error_code == 0
                written[partition] += 1
                await asyncio.sleep(0.4)

        writing = [asyncio.ensure_future(write(partition)) for partition in range(6)]
        await until(lambda: min(written) >= 50)
        assert made.count * 4 <= sum(written)
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


async def test_an_idle_file_is_closed_at_once_if_more_partitions_wait_than_have_files() -> None:
    """A thousand that are written once must not each keep a file for the third of a turn."""

    async with world(broker=BrokerConfig(open_pipelines_max=4)) as w:
        w.storage.faults = Faults(ack_s=(0.01, 0.02))
        w.topic(partitions=60)
        for partition in range(60):
            await w.owner(partition=partition)
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = [w.produce({("orders", p): batch()}, timeout_ms=120_000) for p in range(60)]
        await asyncio.gather(*sent)
        assert loop.time() - began < 60 / 4 * w.broker_config.crowded_turn_ms / 1000 / 3


async def test_full_storage_is_tried_about_once_a_second_and_reported_once() -> None:
    """Retries do not grow with the number of partitions that wait; when there is room again all of them continue by
    themselves."""

    async with world() as w:
        crowded = Crowded(w, 0)
        w.topic(partitions=50)
        sent = [w.produce({("orders", p): batch(value(p, 0))}, timeout_ms=600_000) for p in range(50)]
        await until(lambda: w.broker.waiting_for_place >= 49)
        await asyncio.sleep(60)
        assert crowded.refused <= 50 + 60, "those that were on their way when it filled up, then about one a second"
        assert len(crowded.refusals) <= crowded.refused + 50, "once with its usual block, then all with the smallest"
        (report,) = [report for report in w.broker.reports if "no room for another file" in report]
        assert "add datanodes" in report
        crowded.files_max = 1000
        answers = [response for (response,) in await asyncio.gather(*sent)]
        assert [response.error_code for response in answers] == [0] * 50
        assert w.broker.waiting_for_place == 0


async def test_a_broker_that_storage_has_no_room_for_is_not_gray() -> None:
    """Other brokers have no more room. Want of room is a reason to send clients elsewhere; storage that does not
    respond is one to move partitions, too."""

    async with world() as w:
        crowded = Crowded(w, 0)
        w.topic(partitions=4)
        sent = [w.produce({("orders", p): batch()}, timeout_ms=600_000) for p in range(4)]
        await until(lambda: not w.broker.is_serving)
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert not w.broker.is_gray
        crowded.files_max = 1_000
        w.storage.faults = Faults(create_fails=1.0)
        await until(lambda: w.broker.is_gray)
        w.storage.faults = Faults()
        await asyncio.gather(*sent)
        await until(lambda: w.broker.is_serving and not w.broker.is_gray)


async def test_the_limit_rises_to_the_configured_one_when_storage_has_room() -> None:
    """The limit rises again to the configured one; after that it costs no time (rule 8)."""

    async with world() as w:
        crowded = Crowded(w, 4)
        w.topic(partitions=12)
        sent = [w.produce({("orders", p): batch()}, timeout_ms=120_000) for p in range(12)]
        await asyncio.gather(*sent)
        places = w.broker.context.open_files
        assert places.limit < 20
        crowded.files_max = 1000
        await until(lambda: places.limit == 1000)
        assert places._timer is None
        sent = [w.produce({("orders", p): batch()}) for p in range(12)]
        await asyncio.gather(*sent)
        assert all(names(w, 12)), "all of them have a segment open"
        assert "refused" not in repr(places)
        assert places._timer is None


async def test_a_broker_that_leaves_flushes_the_batches_that_wait_for_an_open_file() -> None:
    """Hand-overs free the places that the others need; the next broker finds every batch."""

    async with world() as w:
        Crowded(w, 2)
        w.topic(partitions=10)
        for partition in range(10):
            await w.owner(partition=partition)
        sent = [w.produce({("orders", p): batch(value(p, 0))}, timeout_ms=120_000) for p in range(10)]
        await until(lambda: w.broker.waiting_for_place > 0)
        await w.stop()
        answers = [response for (response,) in await asyncio.gather(*sent)]
        assert [response.error_code for response in answers] == [0] * 10
        await w.start()
        w.assign()
        for partition in range(10):
            assert (await w.owner(partition=partition)).high_watermark == 1
            assert await values(w, partition, 1) == [value(partition, 0)]


async def test_segments_are_closed_for_a_journal_that_storage_has_no_room_for() -> None:
    """Refuse a journal's new file: a journal takes no place, and without it nothing can be handed over, so segments are
    closed until it has its file."""

    async with world() as w:
        crowded = Crowded(w, 1000)
        w.topic(partitions=6)
        for partition in range(6):
            assert (await w.produce_one(batch(), partition)).error_code == 0
        crowded.files_max, crowded.is_counted = 6, _is_segment_or_journal
        (journal,) = [path for path in w.storage.open_files() if "/journals/" in path]
        for each in list(w.storage.appenders):
            if each.lease.paths == (journal,):
                each.node_died(each.replicas[0].node)
        assert (await w.produce_one(batch(), 0)).error_code == 0  # has its checkpoint in a second
        await until(lambda: any("/journals/" in path and path != journal for path in w.storage.open_files()))
        assert names(w, 6).count("") > 0
        assert any("no room" in report for report in w.broker.reports)


async def test_a_broker_whose_journal_is_never_written_leaves_in_bounded_time() -> None:
    async with world() as w:
        await w.stop()
        crowded = Crowded(w, 0)
        crowded.is_counted = _is_journal
        await w.start()
        w.topic()
        assert (await w.produce_one(batch())).error_code == 0
        loop = asyncio.get_running_loop()
        began = loop.time()
        await w.broker.close()
        config = w.broker.config
        assert loop.time() - began <= (config.handover_ms + 2 * config.close_timeout_ms) / 1000
        crowded.files_max = 1000
        await w.start()
        w.assign()
        assert (await w.owner()).high_watermark == 1


async def test_a_partition_that_is_lost_while_it_waits_leaves_the_queue() -> None:
    async with world() as w:
        crowded = Crowded(w, 0)
        w.topic(partitions=3)
        sent = [w.produce({("orders", p): batch()}, timeout_ms=600_000) for p in range(3)]
        await until(lambda: w.broker.waiting_for_place >= 2)
        w.broker.fence_all()
        await until(lambda: w.broker.waiting_for_place == 0)
        crowded.files_max = 1000
        answers = [response for (response,) in await asyncio.gather(*sent)]
        assert [ErrorCode(response.error_code).name for response in answers] == ["NOT_LEADER_OR_FOLLOWER"] * 3
        assert "opening=0 held=0 leaving=0" in repr(w.broker.context.open_files)
        for partition in range(3):
            assert (await w.produce_one(batch(), partition)).error_code == 0, "in its next life"


async def test_the_place_of_a_file_is_free_when_its_closing_is_abandoned() -> None:
    """The process ends while a pipeline hangs in its closing: no connection of it goes on, and its place is free."""

    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        driver = w.broker.get(w.key())
        assert driver is not None
        w.storage.faults = Faults(hung_ack=1.0)
        w.broker._make_room(1)
        await until(lambda: "held=0 leaving=1" in repr(w.broker.context.open_files))
        await driver.abandon()
        assert "held=0 leaving=0" in repr(w.broker.context.open_files)
        assert not [each for each in w.storage.appenders if "/topics/" in str(each.lease.paths)]
        w.storage.faults = Faults()


async def test_a_partition_that_is_being_claimed_is_fenced_with_the_others() -> None:
    """A process that was declared dead does not go on to claim what it was about to."""

    async with world() as w:
        w.topic(assign=False)
        w.kv.pause()
        opening = asyncio.ensure_future(w.broker.open(w.path(), w.key()))
        await until(lambda: w.broker.get(w.key()) is not None)
        driver = w.broker.get(w.key())
        assert driver is not None
        assert driver.machine.state is PartitionState.START
        w.broker.fence_all()
        with pytest.raises(RequestError):
            await opening
        assert repr(driver.machine.state) == repr(PartitionState.FENCED)
        w.kv.resume()
        await until(lambda: w.broker.get(w.key()) is None)  # forgotten
        assert (await w.broker.read_record(w.key()))[0].epoch == 0


# ------------------------------------------------------------------------------------------------------- the parts


async def test_places_are_given_in_order_and_taken_back_from_cancelled_waiters() -> None:
    asked: list[int] = []
    places = OpenFileLimit(2, 2, asked.append, lambda *_, **__: None)
    order: list[int] = []

    async def come(number: int) -> None:
        await places.enter()
        order.append(number)
        places.opened()

    tasks = [asyncio.ensure_future(come(number)) for number in range(6)]
    await asyncio.sleep(2.5 * BEAT_S)
    assert order == [0, 1]
    assert asked == [1, 1], "at each beat, no more than a quarter of the bound and one"
    tasks[2].cancel()
    places.leaves()
    places.left()
    tasks[3].cancel()  # when its turn has come already
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == [0, 1, 4]
    assert repr(places) == "<OpenFileLimit opening=0 held=2 leaving=0 waiting=1 limit=2/2>"
    tasks[5].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(2 * BEAT_S)
    assert places.waiting == 0
    assert places._timer is None
    places.close()


async def test_a_lowered_limit_rises_step_by_step() -> None:
    """Refusals lower the limit once in a few checks, not once each; after each lowering nothing is let in for a
    while."""

    notified: list[str] = []
    places = OpenFileLimit(100, 100, lambda _: None, lambda text, *_, **__: notified.append(text))
    for _ in range(40):
        await places.enter()
    for _ in range(20):
        places.refused("full")
    for _ in range(20):
        places.opened()
    assert places.limit == 100, "storage has not answered all of them yet"
    await until(lambda: places.limit < 100)
    assert places.limit == 15
    assert len(notified) == 1
    for _ in range(10):
        places.leaves()
        places.left()
    await places.enter()
    places.refused("full")
    late = asyncio.ensure_future(places.enter())
    await asyncio.sleep(LOOK_S / 2)
    assert not late.done()
    await asyncio.wait_for(late, LOOK_S)
    assert places.limit == 15, "it was lowered a moment ago"
    places.failed()
    seen = []
    while places.limit < 100:
        seen.append(places.limit)
        await asyncio.sleep(LOOK_S)
    assert list(dict.fromkeys(seen))[:5] == [15, 16, 18, 20, 22]
    await until(lambda: places._timer is None)
    assert len(notified) == 1


async def test_a_share_is_the_limit_until_it_ends() -> None:
    """Neither refusals nor time change the limit before its share ends; then the broker continues by itself, from
    there."""

    asked: list[int] = []
    notified: list[str] = []
    places = OpenFileLimit(100, 100, asked.append, lambda text, *_, **__: notified.append(text))
    for _ in range(40):
        await places.enter()
        places.opened()
    places.share(30, 10.0)
    assert places.limit == 30
    await asyncio.sleep(1.5 * BEAT_S)
    assert asked == [10], "what is above the share is given back though nobody waits here"
    for _ in range(11):
        places.leaves()
        places.left()
    for _ in range(5):
        await places.enter()
        places.refused("full")
        await asyncio.sleep(LOOK_S)
    assert places.limit == 30
    assert places.refusals == 5
    assert len(notified) == 1
    assert "shared" in repr(places)
    await until(lambda: places.limit > 30)
    assert "shared" not in repr(places)
    await until(lambda: places.limit == 100 and places._timer is None)


@pytest.mark.parametrize(("share", "limit"), [(0, 1), (1, 1), (7, 7), (10, 10), (10_000, 10)])
async def test_no_share_takes_the_last_file_or_gives_more_than_is_configured(share: int, limit: int) -> None:
    places = OpenFileLimit(10, 10, lambda _: None, lambda *_, **__: None)
    places.share(share, 10.0)
    assert places.limit == limit
    await places.enter()
    places.opened()
    places.close()
    places.share(share, 10.0)
    assert places._timer is None, "nothing is begun after the end"


async def test_a_larger_share_admits_waiting_openings() -> None:
    places = OpenFileLimit(10, 10, lambda _: None, lambda *_, **__: None)
    places.share(2, 10.0)
    waiting = [asyncio.ensure_future(places.enter()) for _ in range(5)]
    await asyncio.sleep(0)
    assert (places.waiting, places.opening) == (3, 2)
    places.share(4, 10.0)
    assert (places.waiting, places.opening) == (1, 4)
    waiting[-1].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    places.close()


async def test_a_refused_opening_keeps_its_turn() -> None:
    """A refused opening comes back after a while, behind many later ones: it goes first, since it has waited for
    longest."""

    loop = asyncio.get_running_loop()
    places = OpenFileLimit(1, 1, lambda _: None, lambda *_, **__: None)
    order: list[str] = []

    async def come(name: str, since: float | None = None) -> None:
        await places.enter(since)
        order.append(name)
        places.opened()
        places.leaves()
        places.left()

    since = await places.enter()
    places.refused("full")
    await asyncio.sleep(0.3)
    tasks = [asyncio.ensure_future(come(f"new {number}")) for number in range(3)]
    await asyncio.sleep(0.2)
    tasks.append(asyncio.ensure_future(come("refused", since)))
    await asyncio.sleep(0)
    assert places.longest_wait_s == loop.time() - since == 0.5
    await asyncio.gather(*tasks)
    assert order == ["refused", "new 0", "new 1", "new 2"]
    assert places.longest_wait_s == 0.0


async def test_a_partition_that_storage_refuses_goes_first_when_there_is_room() -> None:
    """The refused partition asked before the others, so it is served before them."""

    async with world() as w:
        crowded = Crowded(w, 0)
        w.topic(partitions=30)
        for partition in range(30):
            await w.owner(partition=partition)
        first = w.produce({("orders", 29): batch()}, timeout_ms=600_000)
        await until(lambda: crowded.refused == 1)
        others = [w.produce({("orders", p): batch()}, timeout_ms=600_000) for p in range(29)]
        await until(lambda: w.broker.waiting_for_place >= 29)
        assert w.broker.longest_wait_for_place_s > 0.0
        crowded.files_max = 1
        done, _ = await asyncio.wait([first, *others], return_when=asyncio.FIRST_COMPLETED)
        assert first in done
        crowded.files_max = 1_000
        await asyncio.gather(first, *others)
        assert w.broker.longest_wait_for_place_s == 0.0


async def test_a_place_is_held_until_its_file_is_closed() -> None:
    places = OpenFileLimit(1, 1, lambda _: None, lambda *_, **__: None)

    async def create() -> str:
        assert places.opening == 1
        return "/f"

    async with places.place(create) as file:
        assert (file, places.held, places.opening) == ("/f", 1, 0)
        assert not places.try_enter()
    assert (places.held, places.closing) == (0, 0)
    with pytest.raises(ZeroDivisionError):
        async with places.place(create):
            raise ZeroDivisionError
    assert places.try_enter()
    places.failed()
    places.close()


@pytest.mark.parametrize(("error", "refusals"), [(OutOfSpace("full"), 1), (StorageUnavailable("away"), 0)])
async def test_a_file_that_cannot_be_created_leaves_no_place_behind(error: StorageError, refusals: int) -> None:
    places = OpenFileLimit(1, 1, lambda _: None, lambda *_, **__: None)

    async def create() -> str:
        raise error

    with pytest.raises(type(error)):
        async with places.place(create):
            pass
    assert (places.opening, places.held, places.refusals) == (0, 0, refusals)
    places.close()

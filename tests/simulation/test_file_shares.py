"""Brokers share storage that has room for a part of their open files: every partition gets its turn in bounded time.

Real are the brokers' places (``broker.files.open_file_limit``, ``broker.files.open_segments``) and the controller's
shares (``controller.file_shares``).  Each partition is written at all times: it holds its file until it is asked for
it, after its turn at the earliest, and wants another at once.  Storage has a number of rooms, and a file takes one from
the beginning of its opening to the end of its closing.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.broker import events as ev
from bmq.broker.files.block_ceiling import BlockCeiling
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.open_segments import OpenFiles
from bmq.controller.file_shares import FileShares, OpenFileReport
from bmq.controller.member_client import SHARE_S
from bmq.controller.share_rounds import ROOMY_ROUND_S, SHARE_ROUND_S
from bmq.core.model import SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.filesystem import Lease, OutOfSpace, StorageError
from tests.harness.loop import run

TURN_S = 3.0  # crowded_turn_ms
OPEN_PARALLEL = 32
OPEN_S = (0.01, 0.05)
CLOSE_S = (0.01, 0.05)
RETRY_S = 0.1
RETRY_MAX_S = 2.0
ROUND_S = SHARE_ROUND_S
SWITCH_S = 1.0
SETTLED_S = 15.0
NAME = SegmentName(0, 1, 0)


class Storage:
    """``rooms`` is the sum of the blocks of open files."""

    def __init__(self, rooms: int) -> None:
        self.rooms = rooms
        self.taken = 0

    async def create(self, path: str, size: int) -> File:
        if self.taken + size > self.rooms:
            await asyncio.sleep(random.uniform(*OPEN_S))
            raise OutOfSpace(f"{path}: no datanode has room")
        self.taken += size
        await asyncio.sleep(random.uniform(*OPEN_S))
        return File(self, path, size)


class File:
    """The part of an Appender that ``OpenFiles`` uses."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage = storage
        self._size = size
        self.lease = Lease(paths=(path,), holder="h", file_id=1)
        self.nodes = ("dn",)

    async def close(self) -> None:
        await asyncio.sleep(random.uniform(*CLOSE_S))
        self._storage.taken -= self._size

    def abort(self) -> None:
        self._storage.taken -= self._size


class Partition:
    """Written at all times."""

    def __init__(self, broker: SimBroker, number: int) -> None:
        self.name = f"{broker.name}/{number}"
        self.broker = broker
        self.opened_at = math.inf
        self.wanted = asyncio.Event()
        self.turns = 0
        self.waits_since = math.inf
        self.longest_s = 0.0
        self._files = OpenFiles(cast(Any, broker.context), cast(Any, self))

    async def take_first(self, effect: ev.CreateSpare) -> None:
        """No file was made ahead.  This and ``create`` stand in the place of ``SegmentFiles``."""

    async def create(self, effect: ev.CreateSpare) -> Any:
        return await self.broker.storage.create(self.name, effect.block_bytes)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        entry = SegmentEntry(name=NAME, spare=self.name, holder="h", file_id=1)
        while True:
            self.waits_since = loop.time()
            await self._open()
            self.opened_at = loop.time()
            self.longest_s = max(self.longest_s, self.opened_at - self.waits_since)
            self.waits_since = math.inf
            self.turns += 1
            self.broker.open.append(self)
            await self.wanted.wait()
            self.wanted.clear()
            self.broker.open.remove(self)
            await self._files.close(entry)

    async def _open(self) -> None:
        delay_s = RETRY_S
        while True:
            try:
                usual, least = self.broker.blocks
                await self._files.create(ev.CreateSpare(1, 1, usual, 512, 1, least))
            except StorageError:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, RETRY_MAX_S)
            else:
                return


class SimBroker:
    def __init__(self, name: str, storage: Storage, partitions: int, most: int = 1_000) -> None:
        self.name = name
        self.storage = storage
        self.blocks = (1, 1)  # bytes of a usual and of the smallest block
        self.open: list[Partition] = []  # in the order of their opening
        self.places = OpenFileLimit(most, OPEN_PARALLEL, self._make_room, lambda *_, **__: None)
        self.context = SimpleNamespace(
            open_files=self.places, config=SimpleNamespace(close_timeout_ms=10_000), block_ceiling=BlockCeiling(),
            now_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
        )  # fmt: skip
        self.partitions = [Partition(self, number) for number in range(partitions)]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(each.run()) for each in self.partitions]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.places.close()

    def _make_room(self, wanted: int) -> None:
        """Make room as ``Broker._make_room`` does with partitions that are never idle."""
        now = asyncio.get_running_loop().time()
        wanted -= sum(each.wanted.is_set() for each in self.open)
        due = [each for each in self.open if not each.wanted.is_set() and now - each.opened_at >= TURN_S]
        for each in due[: max(wanted, 0)]:
            each.wanted.set()

    def report(self) -> OpenFileReport:
        places = self.places
        return OpenFileReport(
            held=places.held,
            closing=places.closing,
            waiting=places.waiting + places.opening,
            refused=places.refusals,
            limit_max=places.limit_max,
        )


Tell = Callable[[FileShares, Sequence[SimBroker]], None]


def tell_shares(shares: FileShares, brokers: Sequence[SimBroker]) -> None:
    """One of the controller's rounds."""
    now = asyncio.get_running_loop().time()
    for broker in brokers:
        if (share := shares.share(broker.name)) is not None:
            broker.places.share(share, SHARE_S)
        shares.update(broker.name, broker.report(), now)
    shares.divide(now)


def tell_nothing(shares: FileShares, brokers: Sequence[SimBroker]) -> None:
    """Do nothing: each broker knows of its own refusals only, without a controller."""


async def write(
    rooms: int,
    partitions: Sequence[int],
    tell: Tell,
    *,
    late_s: float,
    seconds: float,
    blocks: tuple[int, int] = (1, 1),
) -> list[SimBroker]:
    """Have brokers of so many partitions write for `seconds`, the last of them beginning `late_s` after the others.

    Storage has room for `rooms` of the usual block; `blocks` are the bytes of that and of the smallest one.
    """
    storage = Storage(rooms * blocks[0])
    brokers = [SimBroker(f"b{number}", storage, count) for number, count in enumerate(partitions)]
    for broker in brokers:
        broker.blocks = blocks
    shares = FileShares()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for broker in brokers[:-1]:
        broker.start()
    while loop.time() < began + seconds:
        if loop.time() >= began + late_s and not brokers[-1]._tasks:
            brokers[-1].start()
        tell(shares, brokers)
        await asyncio.sleep(ROUND_S if shares.is_divided else ROOMY_ROUND_S)
    for broker in brokers:
        now = loop.time()
        for each in broker.partitions:
            each.longest_s = max(each.longest_s, now - each.waits_since if each.waits_since < math.inf else 0.0)
        await broker.stop()
    return brokers


def bound_s(rooms: int, partitions: Sequence[int]) -> float:
    """Return the bound of docs/design/places.md.  From a refusal on the room is 3/4 of storage's at least."""
    return math.ceil(sum(partitions) / (0.75 * rooms)) * (TURN_S + SWITCH_S) + SETTLED_S


def longest_s(broker: SimBroker) -> float:
    return max(each.longest_s for each in broker.partitions)


CASES = {
    "all room taken by the first two": (80, (40, 40, 40)),
    "four for one": (30, (40, 40, 40)),
    "owned unevenly": (30, (80, 30, 10)),
    "seven brokers": (70, (40, 40, 40, 40, 40, 40, 40)),
    "hardly any room": (8, (20, 20, 20)),
    "a room for each broker": (3, (4, 4, 4)),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_every_partition_of_every_broker_gets_its_turn(case: str) -> None:
    """Also those of a broker that comes when the others hold all there is."""
    rooms, partitions = CASES[case]
    bound = bound_s(rooms, partitions)
    brokers = run(write(rooms, partitions, tell_shares, late_s=20.0, seconds=20.0 + 2 * bound), seed=1)
    for broker in brokers:
        assert min(each.turns for each in broker.partitions) >= 1, broker.name
        assert longest_s(broker) <= bound, broker.name


@pytest.mark.parametrize("case", ["all room taken by the first two", "four for one"], ids=["two-thirds", "a-quarter"])
def test_smaller_blocks_shorten_the_turns(case: str) -> None:
    """Blocks of a quarter let more be open at once; sharing among the brokers goes on as before."""
    rooms, partitions = CASES[case]
    seconds = 20.0 + 2 * bound_s(rooms, partitions)
    whole, smaller = (
        run(write(rooms, partitions, tell_shares, late_s=20.0, seconds=seconds, blocks=blocks), seed=1)
        for blocks in ((16 << 20, 16 << 20), (16 << 20, 4 << 20))
    )
    for broker in smaller:
        assert min(each.turns for each in broker.partitions) >= 1, broker.name
        assert longest_s(broker) <= bound_s(rooms, partitions), broker.name
    assert sum(map(longest_s, smaller)) < sum(map(longest_s, whole))


def test_without_shares_a_broker_that_comes_late_starves() -> None:
    """The others have all that they want, and know of no refusal: the simulation sees what shares are for."""
    rooms, partitions = CASES["all room taken by the first two"]
    *_, late = run(write(rooms, partitions, tell_nothing, late_s=20.0, seconds=200.0), seed=1)
    assert longest_s(late) > 2 * bound_s(rooms, partitions)
    assert any(each.turns == 0 for each in late.partitions)


def test_beside_brokers_of_an_earlier_version_the_others_share() -> None:
    """One that takes no shares keeps what it has; the rest is divided among those that do."""

    def tell(shares: FileShares, brokers: Sequence[SimBroker]) -> None:
        tell_shares(shares, brokers[1:])

    rooms, partitions = 60, (20, 60, 60)
    brokers = run(write(rooms, partitions, tell, late_s=20.0, seconds=200.0), seed=1)
    for broker in brokers[1:]:
        assert longest_s(broker) <= bound_s(rooms - partitions[0], partitions[1:]), broker.name


def test_shares_that_end_leave_each_broker_its_own_bound() -> None:
    """End the controllers for good: the last shares do not hold for ever."""

    def tell(shares: FileShares, brokers: Sequence[SimBroker]) -> None:
        if asyncio.get_running_loop().time() < 60.0:
            tell_shares(shares, brokers)
        else:
            for broker in brokers:
                broker.storage.rooms = 1_000

    brokers = run(write(30, (40, 40, 40), tell, late_s=20.0, seconds=300.0), seed=1)
    for broker in brokers:
        assert broker.places.limit == broker.places.limit_max
        assert len(broker.open) == 40

"""Random histories of transactional clients in whole clusters, with a fault at a chosen step of a transaction.

``BMQ_SIM_SEEDS`` says how many; ``BMQ_SIM_SEED`` replays the one that a failure printed.  Applications consume,
transform and produce while a process dies, stands still, is cut off or is drained before or after one of the steps in
``transaction_points``, or the store is lost and rebuilt, or a topic is deleted.  In some histories the level of
``transaction.version`` changes all the time, epochs begin shortly before they run out, processes are of several
versions, or transactional ids expire within seconds.  What must hold:

* readers of committed records get all records of a committed transaction once, and none of any other, never early;
* the consumed offsets move exactly with the output;
* a producer is fenced only by another one of its id, or by its time-out;
* a transactional id is forgotten only after it was not used for long, and then it is;
* no marker arrives without a durable Prepare; a shard is at any time what its replay gives;
* ``DECIDED_S`` after the faults each transaction is decided, and all records are stable.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from bmq.core.config import ROLES
from bmq.core.features import TRANSACTION_VERSION
from tests.harness.network import Disconnected
from tests.simulation.cluster_checks import BugsTold
from tests.simulation.cluster_events import Events
from tests.simulation.cluster_versions import spoken
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.histories import REPLAYED, Histories, seeds_wanted
from tests.simulation.kafka_clients import Refused, check, create_topic, pause, produce
from tests.simulation.kafka_world import CONFIG
from tests.simulation.transaction_attempts import GROUP, INPUT, OUTPUT, OUTPUTS, RING, SIDE, Applications, Dead, Outcome
from tests.simulation.transaction_checks import check_decided, check_forgotten, check_records, check_replays
from tests.simulation.transaction_clients import Instance, RingMember
from tests.simulation.transaction_faults import (
    all_die,
    delete_and_create,
    deletes_a_topic,
    dies,
    is_drained,
    loses_the_others,
    loses_the_store,
    loses_the_store_for_good,
    stands_still,
    switch_levels,
)
from tests.simulation.transaction_points import POINTS, Points, step_of, watched
from tests.simulation.transaction_readers import CommittedReader, position_of

HISTORIES = Histories(module=__name__, seeds=seeds_wanted() // 60 or 1, blocks=10)
TRANSACTIONAL = replace(CONFIG, transaction_state_log_num_partitions=2)
EXPIRATION_S = 3.0
EXPIRING = replace(
    TRANSACTIONAL,
    transactional_id_expiration_ms=round(EXPIRATION_S * 1000),
    transaction_remove_expired_interval_ms=700,
)
"""Transactional ids expire while clients pause."""
INPUTS, RECORDS = 2, 8
"""Partitions of the input, each of an application of its own, and their records."""
TOKENS = 4
"""Records that the ring begins with."""
STARTED_S = 60.0
"""A cluster has begun by then, and the level of transactions is in force."""
STRIDE = 101
"""Between the chosen points of two seeds: it shares no factor with the number of points and faults."""
RARE = frozenset({"Overdue", "AddOffsetsToTxn", "PrepareAbort", "CompleteAbort", "Snapshot"})
"""Steps that a history may come to once only: the fault befalls the first time."""
CLIENTS_S = 120.0
"""A client's own longest time-out, twice."""

FAULTS = (
    dies,
    all_die,
    stands_still,
    loses_the_store,
    loses_the_others,
    is_drained,
    loses_the_store_for_good,
    deletes_a_topic,
)
KINDS = len(POINTS) * len(FAULTS)


# -------------------------------------------------------------------------------------------------------------- history


@dataclass
class History:
    """One history: its world, what its clients know, and the points that it passes."""

    world: ClusterWorld
    rng: Random
    points: Points
    known: Applications
    has_ring: bool
    replays: int = 0
    """Shards that were compared with the replay of their log."""
    level_changes: int = 0

    async def begin(self) -> None:
        """Wait until the cluster serves transactions, and write the input."""
        world, known = self.world, self.known
        await create_topic(world, INPUT, INPUTS)
        await create_topic(world, OUTPUT, OUTPUTS)
        await create_topic(world, SIDE, 1)
        for topic in RING if self.has_ring else ():
            await create_topic(world, topic, 1)
        async with asyncio.timeout(STARTED_S):
            for kind, key in ((0, GROUP), *((1, f"t{each}") for each in range(INPUTS))):
                while not await self._is_served(kind, key):
                    await pause(world)
        for partition in range(INPUTS):
            await produce(world, f"i{partition}", INPUT, partition, RECORDS)
            known.input[partition] = dict(sorted(world.observed.acked[INPUT, partition].items()))
            known.sources.append((INPUT, partition))
        known.outputs += [(OUTPUT, partition) for partition in range(OUTPUTS)]
        if self.has_ring:
            await produce(world, "token", RING[0], 0, TOKENS)
            known.seeds.update(world.observed.acked[RING[0], 0].values())
            known.sources += [(topic, 0) for topic in RING]
            known.outputs += [(topic, 0) for topic in RING]

    async def _is_served(self, kind: int, key: str) -> bool:
        nodes = [place.process.node for place in self.world.places if place.process is not None]
        if not all(node is not None and node.view.levels.of(TRANSACTION_VERSION) == 2 for node in nodes):
            return False
        client = self.world.client()
        try:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            check((await client.call(request, FindCoordinatorResponse, 3)).error_code)
        except (Disconnected, Refused):
            return False
        finally:
            client.close()
        return True

    async def application(self, make: Callable[[int, Random], Instance]) -> None:
        """Run instances one after the other, some of them beside the one before, until the world is over."""
        running: list[tuple[Instance, asyncio.Task[None]]] = []
        rng, number = Random(self.rng.random()), 0
        while not self.world.is_over:
            instance = make(number, rng)
            number += 1
            task = asyncio.create_task(instance.run(rng.randint(1, 3)))
            running.append((instance, task))
            await asyncio.wait([task], timeout=rng.choice((0.2, 2.0, 10.0, 60.0)))
            if not task.done() and rng.random() < 0.7:
                instance.kill()
            await asyncio.sleep(rng.choice((0.0, 0.1, 2.0)))
        for instance, task in running:
            instance.kill()
            await task

    def of_input(self, partition: int, number: int, rng: Random) -> Instance:
        """Make an instance of the application of a partition of the input."""
        source = (INPUT, partition)
        return Instance(self.world, self.known, f"a{partition}-{number}", source, f"t{partition}", rng)

    def of_ring(self, side: int, number: int, rng: Random) -> Instance:
        """Make an instance of an application of the ring."""
        return RingMember(self.world, self.known, f"r{side}-{number}", side, rng)

    def applications(self) -> list[Callable[[int, Random], Instance]]:
        """Return what makes the instances of each application."""
        makers: list[Callable[[int, Random], Instance]] = [partial(self.of_input, each) for each in range(INPUTS)]
        return makers + [partial(self.of_ring, side) for side in range(len(RING) if self.has_ring else 0)]

    def hops(self) -> int:
        """Return the hops of the ring that were acknowledged as committed."""
        done = [each for each in self.known.attempts.values() if each.outcome is Outcome.COMMITTED]
        return sum(len(each.records.get((topic, 0), [])) for each in done for topic in RING)

    async def ask_positions(self) -> None:
        """Ask for the applications' stable offsets, again and again."""
        client = self.world.client()
        while not self.world.is_over:
            with suppress(Dead):
                await position_of(self.world, self.known, client, self.rng.choice(self.known.sources))
            await pause(self.world, 1.0)
        client.close()

    async def switch_levels(self) -> None:
        self.level_changes = await switch_levels(self.world, Random(self.rng.random()))

    async def compare_replays(self) -> None:
        while not self.world.is_over:
            self.replays += await check_replays(self.world)
            await pause(self.world, 2.0)

    async def verdict(self, clients: list[asyncio.Task[None]]) -> None:
        """End the faults; each transaction is decided in time, and all records and offsets are as they must be."""
        world = self.world
        self.points.is_over = True
        if world.rebuilding is not None:
            await world.rebuilding
        await world.heal()
        healed = world.loop.time()
        await asyncio.sleep(self.rng.choice((0.0, 5.0)))
        world.is_over = True
        hosts = [place.host for place in world.with_role("proxy")]
        assert not world.observed.errors, world.observed.errors
        await check_decided(world, self.known, hosts, healed)
        _, pending = await asyncio.wait(clients, timeout=CLIENTS_S)
        assert not pending, f"clients wait for ever: {pending}"
        for client in clients:
            client.result()
        for host in hosts:
            await check_records(world, self.known, host)
        if self.known.expiration_s < math.inf:
            await check_forgotten(world, hosts, self.known.expiration_s)
        await check_replays(world)
        assert not world.observed.errors, world.observed.errors
        await world.shut()
        assert not world.observed.errors, world.observed.errors


def build(world: ClusterWorld, rng: Random) -> None:
    """Two or three processes that have all roles, or roles apart."""
    match rng.randrange(3):
        case 0:
            for number in range(3):
                world.place(f"all{number}", *ROLES)
        case 1:
            world.place("front0", "proxy", "controller")
            for number in range(2):
                world.place(f"back{number}", "controller", "broker", "coordinator")
        case _:
            for number in range(2):
                world.place(f"all{number}", *ROLES)


async def history(
    seed: int,
    point: str = "",
    fault: Callable[..., None] | None = None,
    *,
    switches: bool | None = None,
    expires: bool | None = None,
    are_versions_mixed: bool | None = None,
    has_ring: bool | None = None,
) -> History:
    """One history, judged.

    ``switches``: the level of ``transaction.version`` changes while clients run.  ``expires``: transactional ids expire
    within seconds.  ``has_ring``: two applications read each other's records.  None: by lot.
    """
    rng, lots = Random(seed), Random(f"{seed} of expiration and versions")
    if expires is None:
        expires = lots.random() < 0.3
    if are_versions_mixed is None:
        are_versions_mixed = lots.random() < 0.3
    if has_ring is None:
        has_ring = lots.random() < 0.4
    world = ClusterWorld(
        seed,
        config=EXPIRING if expires else TRANSACTIONAL,
        latency_s=rng.choice((0.001, 0.02)),
        are_versions_mixed=are_versions_mixed,
    )
    events = Events(world, rng)
    kind = seed * STRIDE % KINDS
    point, fault = point or POINTS[kind % len(POINTS)], fault or FAULTS[kind // len(POINTS)]
    switches = rng.random() < 0.4 if switches is None else switches
    played = None
    try:
        with BugsTold(world), spoken(world), watched(world, rng) as points:
            build(world, rng)
            known = Applications(expiration_s=EXPIRATION_S if expires else math.inf)
            played = History(world, rng, points, known, has_ring=has_ring)
            await played.begin()
            chosen = fault
            points.passed.clear()
            count = rng.choice((1, 1, 2, 5))
            points.choose(point, 1 if step_of(point) in RARE else count, lambda process: chosen(world, rng, process))
            readers = [CommittedReader(world, played.known, key) for key in known.outputs]
            clients = [
                asyncio.create_task(each)
                for each in (
                    *(played.application(make) for make in played.applications()),
                    *(reader.follow() for reader in readers),
                    played.ask_positions(),
                    played.compare_replays(),
                    *([delete_and_create(world, Random(rng.random()))] if rng.random() < 0.3 else []),
                    *([played.switch_levels()] if switches else []),
                )
            ]
            await asyncio.sleep(rng.uniform(3.0, 9.0))
            if rng.random() < 0.3:
                events.befall()
            await asyncio.sleep(rng.uniform(0.5, 4.0))
            await played.verdict(clients)
    except BaseException as error:
        error.add_note(f"{fault.__name__} {point}")
        error.add_note("\n".join(events.lines))
        if played is not None:
            error.add_note("\n".join(map(str, played.known.attempts.values())))
            error.add_note("\n".join(played.known.refused))
        raise
    return played


def play(seed: int) -> History:
    return HISTORIES.play(history, seed)


def committed(played: History) -> int:
    """Return how many input records were consumed by committed transactions."""
    return sum(played.known.committed((INPUT, partition)) for partition in range(INPUTS))


@HISTORIES.each_block
def test_history(block: int) -> None:
    played = [play(seed) for seed in HISTORIES.seeds_of(block)]
    HISTORIES.check_acted(block, sum(map(committed, played)))
    missed = [one.points.chosen for one in played if not one.points.has_befallen]
    assert 2 * len(missed) <= len(played) or REPLAYED, f"the faults of most histories did not befall: {missed}"

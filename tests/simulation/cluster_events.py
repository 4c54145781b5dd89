"""Misfortunes of a simulated cluster: they begin at once and are over by themselves, or with ``ClusterWorld.heal``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from random import Random
from typing import Any

from bmq.controller.admin.api import ClusterAdmin
from bmq.core.errors import RequestError
from tests.harness.loop import PROCESS
from tests.simulation.cluster_network import CLIENT
from tests.simulation.cluster_world import OPERATOR, ClusterWorld, Place, Process
from tests.simulation.frail_files import STEPS

PLACES_MAX = 14
DOWN_S = (0.0, 0.5, 3.0, 15.0)
"""How long a process that ended is not started again."""
HANGS_S = (0.3, 1.4, 3.0, 6.0, 25.0)
"""The longest that a process hangs: less than a heartbeat waits, as long as a probe takes, longer than all patience,
and longer than leases last."""
TURNS_SLOWLY_S = 8.0
"""The longest that a process turns slowly: less than ``ClusterWorld.heal`` waits."""


class Events:
    """Events of a cluster, drawn by ``befall``; ``lines`` lists which came when."""

    def __init__(self, world: ClusterWorld, rng: Random) -> None:
        self.lines: list[str] = []
        self._world = world
        self._rng = rng
        self._kinds: list[Callable[[], str]] = [
            self._crash, self._crash, self._crash_many, self._stop_politely, self._restart_all, self._pause,
            self._pause, self._cut, self._cut, self._cut_clients, self._cut_store, self._cut_storage, self._store_away,
            self._split, self._datanode_dies, self._datanode_stops, self._namenode_restarts, self._connections_break,
            self._add, self._operate, self._operate, self._lack_descriptors, self._die_at_a_step,
            self._cut_store_of_some, self._turn_slowly, self._store_pauses,
        ]  # fmt: skip

    def befall(self) -> None:
        self._tell(self._rng.choice(self._kinds)())

    def befall_a_broker(self) -> None:
        """Run an event that gives partitions another owner."""
        self._tell(self._rng.choice((self._crash_broker, self._stop_broker, self._operate))())

    def plan(self) -> None:
        """Run an operator's planned act, which clients must not notice."""
        self._tell(self._rng.choice((self._operate, self._restart_one))())

    def _tell(self, text: str) -> None:
        self.lines.append(f"{self._world.loop.time():7.3f} {text}")

    # ---------------------------------------------------------------------------------------------------- processes

    def _place(self) -> Place:
        return self._rng.choice(self._world.places)

    def _crash(self) -> str:
        place, down_s = self._place(), self._rng.choice(DOWN_S)
        place.crash(down_s)
        return f"{place.host} dies for {down_s} s"

    def _die_at_a_step(self) -> str:
        place, step = self._place(), self._rng.choice(STEPS)
        if place.process is not None:
            place.process.fs.last_step = step
        return f"{place.host} dies at its next {step}"

    def _crash_broker(self) -> str:
        place, down_s = self._rng.choice(self._world.with_role("broker")), self._rng.choice(DOWN_S)
        place.crash(down_s)
        return f"{place.host} dies for {down_s} s"

    def _stop_broker(self) -> str:
        place, down_s = self._rng.choice(self._world.with_role("broker")), self._rng.choice(DOWN_S)
        place.stop_politely(down_s)
        return f"{place.host} is stopped for {down_s} s"

    def _crash_many(self) -> str:
        share = self._rng.choice((0.3, 0.5, 1.0))
        places = [place for place in self._world.places if self._rng.random() < share]
        for place in places:
            place.crash(self._rng.choice(DOWN_S))
        return f"{[place.host for place in places]} die"

    def _stop_politely(self) -> str:
        place, down_s = self._place(), self._rng.choice(DOWN_S)
        place.stop_politely(down_s)
        return f"{place.host} is stopped for {down_s} s"

    def _restart_one(self) -> str:
        """Politely; no proxy, whose clients would have to look for another."""
        place = self._rng.choice([place for place in self._world.places if "proxy" not in place.roles])
        place.stop_politely(0.0)
        return f"{place.host} is restarted"

    def _restart_all(self) -> str:
        """Half of them, politely, at once."""
        places = [place for place in self._world.places if self._rng.random() < 0.5]
        for place in places:
            place.stop_politely(0.0)
        return f"{[place.host for place in places]} are restarted"

    def _pause(self) -> str:
        place, for_s = self._place(), self._rng.choice(HANGS_S) * self._rng.uniform(0.5, 1.0)
        process = place.process
        if process is not None:
            process.stop()
            self._after(for_s, process.resume)
        return f"{place.host} hangs for {for_s:.1f} s"

    def _turn_slowly(self) -> str:
        """Have a process run for a moment only, again and again."""
        place, turn_s = self._place(), self._rng.choice((0.1, 0.5, 1.0))
        for_s = TURNS_SLOWLY_S * self._rng.uniform(0.2, 1.0)
        if place.process is not None:
            self._turn(place.process, turn_s, self._world.loop.time() + for_s)
        return f"{place.host} turns once in {turn_s} s for {for_s:.1f} s"

    def _turn(self, process: Process, turn_s: float, until: float) -> None:
        process.resume()
        if self._world.loop.time() < until:
            self._after(0.001, process.stop)
            self._after(turn_s, self._turn, process, turn_s, until)

    def _lack_descriptors(self) -> str:
        place, for_s = self._place(), self._rng.choice((0.5, 8.0)) * self._rng.uniform(0.5, 1.0)
        process = place.process
        if process is not None:
            process.lack_descriptors(True)
            self._after(for_s, process.lack_descriptors, False)
        return f"{place.host} has no descriptor for {for_s:.1f} s"

    def _add(self) -> str:
        world = self._world
        if len(world.places) >= PLACES_MAX:
            return "nothing"
        role = self._rng.choice(("broker", "broker", "proxy", "coordinator", "controller"))
        return f"added {world.place(f'{role}{len(world.places)}', role).host}"

    # ------------------------------------------------------------------------------------------- between processes

    def _cut(self) -> str:
        one, other = self._rng.sample([place.host for place in self._world.places], 2)
        return self._cut_pair(one, other)

    def _cut_clients(self) -> str:
        return self._cut_pair(CLIENT, self._rng.choice(self._world.with_role("proxy")).host)

    def _cut_pair(self, one: str, other: str) -> str:
        for_s = self._rng.choice((0.3, 3.0, 25.0)) * self._rng.uniform(0.5, 1.0)
        self._cut_for(one, other, for_s)
        return f"{one} and {other} are cut off from each other for {for_s:.1f} s"

    def _cut_for(self, one: str, other: str, for_s: float) -> None:
        self._world.network.cut(one, other)
        self._after(for_s, self._world.network.heal, one, other)

    def _split(self) -> str:
        """Cut some hosts off from the store and from the hosts that keep it; storage and clients reach all of them."""
        world, rng = self._world, self._rng
        for_s = rng.choice((3.0, 15.0, 30.0)) * rng.uniform(0.5, 1.0)
        lost = [place for place in world.places if rng.random() < 0.5]
        for place in lost:
            place.cut_store(True)
            self._after(for_s, place.cut_store, False)
            for other in world.places:
                if other not in lost:
                    self._cut_for(place.host, other.host, for_s)
        return f"{[place.host for place in lost]} are split off for {for_s:.1f} s"

    def _connections_break(self) -> str:
        self._world.network.break_some(self._rng.choice((0.1, 0.5, 1.0)))
        return "connections break"

    # -------------------------------------------------------------------------------------------- store and storage

    def _cut_store(self) -> str:
        place, for_s = self._place(), self._rng.choice((1.0, 8.0, 30.0)) * self._rng.uniform(0.5, 1.0)
        place.cut_store(True)
        self._after(for_s, place.cut_store, False)
        return f"{place.host} is cut off from the store for {for_s:.1f} s"

    def _cut_store_of_some(self) -> str:
        """Several hosts, which everybody reaches else."""
        world, for_s = self._world, self._rng.choice((8.0, 30.0)) * self._rng.uniform(0.5, 1.0)
        places = self._rng.sample(world.places, min(self._rng.randint(2, 4), len(world.places)))
        for place in places:
            place.cut_store(True)
            self._after(for_s, place.cut_store, False)
        return f"{[place.host for place in places]} are cut off from the store for {for_s:.1f} s"

    def _cut_storage(self) -> str:
        place, for_s = self._place(), self._rng.choice((1.0, 5.0, 15.0)) * self._rng.uniform(0.5, 1.0)
        place.cut_storage(True)
        self._after(for_s, place.cut_storage, False)
        return f"{place.host} is cut off from storage for {for_s:.1f} s"

    def _store_away(self) -> str:
        world, for_s = self._world, self._rng.choice((0.5, 5.0, 30.0)) * self._rng.uniform(0.5, 1.0)
        if world.store.down:
            return "nothing"
        world.store.stop()
        self._after(for_s, self._store_back)
        return f"the store is away for {for_s:.1f} s"

    def _store_pauses(self) -> str:
        """Let the store stand still while its clock goes on, so that leases end."""
        world, for_s = self._world, self._rng.choice((1.0, 5.0, 15.0)) * self._rng.uniform(0.5, 1.0)
        if world.store.down:
            return "nothing"
        until = world.loop.time() + for_s
        world.store.stall(until)
        self._after(for_s - 0.001, world.store.expire, until - 0.001)
        return f"the store stands still for {for_s:.1f} s"

    def _store_back(self) -> None:
        if self._world.store.down:
            self._world.store.start(self._world.loop.time())

    def _datanode_dies(self) -> str:
        up = [name for name, node in self._world.storage.datanodes.items() if node.is_up]
        if len(up) <= 3:
            return "nothing"
        name = self._rng.choice(up)
        self._world.storage.kill_datanode(name)
        return f"datanode {name} dies"

    def _datanode_stops(self) -> str:
        up = [name for name, node in self._world.storage.datanodes.items() if node.is_up]
        if len(up) <= 3:
            return "nothing"
        name = self._rng.choice(up)
        self._world.storage.stop_datanode(name)
        return f"datanode {name} hangs"

    def _namenode_restarts(self) -> str:
        self._world.storage.restart_namenode(self._rng.uniform(0.1, 5.0), safe_mode_s=self._rng.uniform(0.0, 3.0))
        return "the NameNode restarts"

    # ---------------------------------------------------------------------------------------------------- operators

    def _operate(self) -> str:
        """Request an operator's act (drain, move, balance) from any process."""
        able = [each for each in self._running() if each.is_ready and each.node is not None]
        brokers = [each.incarnation for each in self._running() if "broker" in each.place.roles]
        if not able or not brokers:
            return "nothing"
        process = self._rng.choice(able)
        assert process.node is not None
        assert process.node.admin is not None
        admin = process.node.admin
        act: Coroutine[Any, Any, object]
        match self._rng.randrange(3):
            case 0:
                victims = [each for each in self._running() if "proxy" not in each.place.roles] or self._running()
                victim = self._rng.choice(victims).incarnation
                act, text = admin.drain(victim), f"{victim} is drained"
            case 1:
                partition = self._rng.randrange(2)
                targets = [self._rng.choice(brokers) for _ in range(self._rng.choice((1, 1, 3)))]
                act, text = (
                    _move(admin, partition, targets),
                    f"orders-{partition} is moved to {', then '.join(targets)}",
                )
            case _:
                act, text = admin.balance(), "balance"
        run_in(process, _try(act))
        return text

    def _running(self) -> list[Process]:
        return [place.process for place in self._world.places if place.process is not None and place.process.is_alive]

    def _after(self, delay_s: float, call: Callable[..., Any], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(delay_s, call, *arguments)


def run_in(process: Process, work: Any) -> None:
    """Run ``work`` as a task of the process."""
    context = copy_context()
    context.run(PROCESS.set, process.incarnation)
    context.run(asyncio.create_task, work, name=OPERATOR)


async def _move(admin: ClusterAdmin, partition: int, targets: list[str]) -> None:
    """Move a partition of `orders`, again before the last move is done."""
    for target in targets:
        await admin.move("orders", partition, target)


async def _try(act: Any) -> None:
    """Run an act whose refusal is not an error: an operator reads the reason and tries again."""
    try:
        await act
    except RequestError:
        return

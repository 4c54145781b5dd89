"""Misfortunes of one partition's owners: they begin at once and are over by themselves, or with ``World.settle``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.frail_files import STEPS
from tests.simulation.partition_clients import delete_records
from tests.simulation.world import KEY, PROCESSES_MAX, Process, World

HOUR_MS = 3_600_000


class Events:
    """Events of a partition's owners, drawn by ``befall``; ``lines`` lists which came when."""

    def __init__(self, world: World, rng: Random) -> None:
        self.lines: list[str] = []
        self._is_alone = False  # no process starts beside the last victim
        self._world = world
        self._rng = rng
        self._kinds: list[Callable[[Process], str]] = [
            self._crash, self._crash, self._hang, self._die_at_a_step, self._lack_descriptors, self._datanode_dies,
            self._datanode_stops, self._namenode_restarts, self._datanodes_back, self._move, self._storage_full,
            self._return, self._return, self._return_while_fencing_hangs, self._undecodable, self._nothing,
        ]  # fmt: skip
        if world.log_config.flush_sync:
            self._kinds += [self._power_lost] * 6
        if world.are_clocks_wrong:
            self._kinds += [self._clock_set] * 2
        if world.are_copies_asked:
            self._kinds += [self._few_datanodes] * 6
        if world.is_journal_busy:
            self._kinds += [self._leave_idle] * 4

    def befall(self) -> None:
        """One misfortune, usually with a new owner after it; the old one may live on as a zombie."""
        world = self._world
        owner = next((process for process in reversed(world.processes) if process.is_serving), world.processes[-1])
        victim = owner if self._rng.random() < 0.5 else self._rng.choice(world.processes)
        self._is_alone = False
        text = self._rng.choice(self._kinds)(victim)
        if not self._is_alone and self._rng.random() < 0.8 and len(world.processes) < PROCESSES_MAX:
            text += f"; {world.process().name} starts"
        self.lines.append(f"{asyncio.get_running_loop().time():7.3f} {text}")

    # ---------------------------------------------------------------------------------------------------- processes

    def _nothing(self, victim: Process) -> str:
        return "nothing"

    def _crash(self, victim: Process) -> str:
        victim.crash()
        return f"{victim.name} dies"

    def _die_at_a_step(self, victim: Process) -> str:
        victim.fs.last_step = self._rng.choice(STEPS)
        return f"{victim.name} dies at its next {victim.fs.last_step}"

    def _leave_idle(self, victim: Process) -> str:
        """Close the last segment before records are deleted: only the journal, which goes on, holds the log start."""
        if not victim.is_serving:
            return "nothing"
        idle_s, after_s = self._rng.uniform(3.0, 8.0), self._rng.uniform(0.0, 15.0)
        self._world.quiet_until = asyncio.get_running_loop().time() + idle_s + after_s
        victim.moving = asyncio.create_task(_leave_idle(self._world, victim, idle_s))
        self._is_alone = True
        self._after(idle_s + after_s, self._world.start_another)
        return f"nobody writes; {victim.name} hands over in {idle_s:.1f} s, somebody starts {after_s:.1f} s later"

    def _hang(self, victim: Process) -> str:
        for_s = self._rng.uniform(0.1, 20.0)
        victim.pause()
        self._after(for_s, victim.resume)
        return f"{victim.name} hangs for {for_s:.1f} s"

    def _lack_descriptors(self, victim: Process) -> str:
        for_s = self._rng.choice((0.5, 8.0)) * self._rng.random()
        victim.lack_descriptors(for_s)
        return f"{victim.name} has no descriptor for {for_s:.1f} s"

    def _clock_set(self, victim: Process) -> str:
        victim.clock.ahead_ms = self._rng.choice((0, -HOUR_MS, 10_000, HOUR_MS))
        return f"{victim.name}'s clock is {victim.clock.ahead_ms} ms ahead"

    def _move(self, victim: Process) -> str:
        if not victim.is_serving:
            return "nothing"
        victim.moving = asyncio.create_task(_move_away(victim))
        return f"{victim.name} hands over"

    def _return(self, victim: Process) -> str:
        if not victim.is_serving:
            return "nothing"
        victim.moving = asyncio.create_task(victim.return_under_its_name())
        return f"{victim.name} loses its lease and comes back"

    def _return_while_fencing_hangs(self, victim: Process) -> str:
        """Stop the datanodes of the open segment; journals go on, on the others.  No other process starts meanwhile."""
        nodes = self._open_on(victim)
        if not victim.is_serving or not nodes:
            return "nothing"
        for name in nodes:
            if self._world.storage.datanodes[name].is_up:
                self._world.storage.stop_datanode(name)
        for_s = self._rng.uniform(1.0, 15.0)
        self._after(for_s, self._wake_datanodes)
        if self._rng.random() < 0.7:
            self._after(for_s * self._rng.uniform(0.3, 1.0), victim.crash)
        return f"{self._return(victim)}, while {', '.join(nodes)} hang for {for_s:.1f} s"

    def _undecodable(self, victim: Process) -> str:
        if not victim.is_alive:
            return "nothing"
        victim.write_undecodable()
        self._after(self._rng.uniform(0.0, 0.5), victim.crash)
        return f"{victim.name} writes what nobody can decode, and dies"

    # ------------------------------------------------------------------------------------------------------ storage

    def _open_on(self, process: Process) -> tuple[str, ...]:
        """Return the datanodes of the process's open segment."""
        partition = process.driver.machine if process.driver is not None else None
        if partition is None or partition.current is None or process.driver is None:
            return ()
        return process.driver.files[partition.current.entry.spare].nodes

    def _up(self) -> list[str]:
        return [name for name, node in self._world.storage.datanodes.items() if node.is_up]

    def _datanode_dies(self, victim: Process) -> str:
        name = self._rng.choice(list(self._world.storage.datanodes))
        self._world.storage.kill_datanode(name)
        return f"{name} dies"

    def _datanode_stops(self, victim: Process) -> str:
        up = self._up()
        if not up:
            return "nothing"
        name = self._rng.choice(up)
        self._world.storage.stop_datanode(name)
        return f"{name} hangs"

    def _wake_datanodes(self) -> None:
        storage = self._world.storage
        for name, node in storage.datanodes.items():
            if node.state.name == "STOPPED":
                storage.resume_datanode(name)

    def _datanodes_back(self, victim: Process) -> str:
        storage = self._world.storage
        self._wake_datanodes()
        for name, node in storage.datanodes.items():
            if not node.is_up:
                storage.start_datanode(name)
        return "all datanodes are back"

    def _few_datanodes(self, victim: Process) -> str:
        """All but a few die, and come back."""
        up = self._up()
        left, for_s = self._rng.randint(1, 2), self._rng.choice((1.0, 10.0)) * self._rng.random()
        for name in self._rng.sample(up, max(0, len(up) - left)):
            self._world.storage.kill_datanode(name)
        self._after(for_s, self._datanodes_back, victim)
        return f"only {left} datanodes are left for {for_s:.1f} s"

    def _namenode_restarts(self, victim: Process) -> str:
        down_s = self._rng.uniform(0.1, 5.0)
        self._world.storage.restart_namenode(down_s, safe_mode_s=self._rng.uniform(0.0, 3.0))
        return f"the NameNode restarts in {down_s:.1f} s"

    def _power_lost(self, victim: Process) -> str:
        self._world.lose_power(is_partial=True)
        return "all machines lose power"

    def _storage_full(self, victim: Process) -> str:
        for_s = self._rng.uniform(0.2, 8.0)
        self._world.storage.is_full = True
        self._after(for_s, self._world.has_room_again)
        return f"storage is full for {for_s:.1f} s"

    def _after(self, delay_s: float, call: Callable[..., Any], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(delay_s, call, *arguments)


async def _move_away(process: Process) -> None:
    """Hand the partition over as planned, which may well be interrupted."""
    if process.broker.get(KEY) is not None:
        await process.broker.move(KEY)


async def _leave_idle(world: World, process: Process, idle_s: float) -> None:
    await asyncio.sleep(idle_s)
    await delete_records(world, process)
    await _move_away(process)

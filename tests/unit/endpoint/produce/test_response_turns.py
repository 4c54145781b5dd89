"""Turns of the event loop from storage's acknowledgement of a flush to the write of its produces' responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import Listener
from bmq.storage.memory import Faults
from bmq.storage.memory.appender import MemoryAppender
from tests.unit.broker.world import World, batch, world
from tests.unit.core.net.world import Peer


class Turns:
    """The numbers of the loop's turns in which storage acknowledged and responses were written."""

    def __init__(self) -> None:
        self.now = 0
        self.acknowledged: list[int] = []
        self.written: list[int] = []


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Turns]:
    turns = Turns()
    loop: Any = asyncio.get_running_loop()
    once, acknowledge, write = loop._run_once, MemoryAppender._acknowledge, Peer.write

    def run_once() -> None:
        turns.now += 1
        once()

    def acknowledged(appender: MemoryAppender, flush: Any) -> bool:
        is_done = acknowledge(appender, flush)
        if is_done and turns.now not in turns.acknowledged:  # the journal's checkpoint is acknowledged, too
            turns.acknowledged.append(turns.now)
        return is_done

    def written(peer: Peer, data: Any) -> None:
        turns.written.append(turns.now)
        write(peer, data)

    with patch.context() as patched:
        patched.setattr(loop, "_run_once", run_once)
        patched.setattr(MemoryAppender, "_acknowledge", acknowledged)
        patched.setattr(Peer, "write", written)
        yield turns


async def connect(w: World) -> Peer:
    """Return a client's connection, whose partition has an open segment that was flushed to."""
    w.topic()
    await w.owner()
    peer = Peer(Listener(w.endpoint, w.config, PortCounters()))
    peer.send(w.produce_frame({("orders", 0): batch()}))
    await asyncio.sleep(1)
    assert len(peer.answers()) == 1
    return peer


@pytest.mark.parametrize(("count", "turns_later"), [(1, 1), (5, 2)])
async def test_a_flush_takes_its_responses_to_the_socket(
    count: int, turns_later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush's own turn writes a lone response; several of one connection share the write of the next turn."""
    async with world() as w:
        peer = await connect(w)
        w.storage.faults = Faults(ack_s=(0.01, 0.01))
        with counted(monkeypatch) as turns:
            for _ in range(count):
                peer.send(w.produce_frame({("orders", 0): batch()}))
            await asyncio.sleep(1)
        assert len(peer.answers()) == 1 + count
        assert len(turns.acknowledged) == len(turns.written) == 1
        assert turns.written[0] - turns.acknowledged[0] == turns_later

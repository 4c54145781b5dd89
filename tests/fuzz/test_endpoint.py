"""Malformed frames against a whole endpoint but for its handlers: connection, header, versions, decoders, encoders.

20,000 by default, ten million with BMQ_SOAK=1.  Every frame is answered under its own correlation id or closes its
connection; nothing else gets out, and nothing stays behind.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any

import psutil
import pytest

from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.listener import ClientConnection, Listener
from bmq.core.net.request import Request, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.limits import PARTITIONS
from bmq.endpoint.api import Api
from bmq.endpoint.request_plan import PlanRule
from bmq.endpoint.response_budget import ResponseBudget
from bmq.proxy.apis import ALL_APIS
from tests.harness.loop import run
from tests.harness.scopes import make_endpoint, make_scopes
from tests.harness.seeds import IS_SOAK
from tests.unit.core.net.world import Peer, turn
from tests.unit.core.wire.mutations import mutate, sample_frames

FRAMES = 10_000_000 if IS_SOAK else 20_000
SHARDS = 4
SEED = 4_711
SIZE_MAX = 100_000


def trivial(api: Api[Any]) -> Api[Any]:
    """Return the same API with a handler that needs no services; every third one waits before it responds."""
    if api.key == ApiKey.API_VERSIONS:
        return api
    if api.parse is not None:
        return api._replace(handle=_at_once, rule=PlanRule(partitions=PARTITIONS))
    return api._replace(handle=_waits if api.key % 3 == 0 else _at_once, response_bytes=None)


def _at_once(scopes: Any, request: Request, message: Any) -> Response:
    return _response_to(request)


async def _waits(scopes: Any, request: Request, message: Any) -> Response:
    await asyncio.sleep(0)
    return _response_to(request)


def _response_to(request: Request) -> Response:
    return Response((struct.pack(">i", request.correlation_id),))


class StrictListener(Listener):
    def bug(self, connection: ClientConnection, error: BaseException) -> None:
        raise error


class Fuzz:
    """Sends frames over one connection after another."""

    def __init__(self, apis: Sequence[Api[Any]], rng: random.Random, samples: list[bytes]) -> None:
        self.rng = rng
        self.samples = samples
        self.metrics = PortCounters()
        config = NodeConfig(socket_request_max_bytes=SIZE_MAX, queued_max_request_bytes=SIZE_MAX)
        scopes = make_scopes(responses=ResponseBudget(1 << 30))
        self.listener = StrictListener(make_endpoint(scopes, list(map(trivial, apis))), config, self.metrics)
        self.peer: Peer | None = None
        self.answered = self.closed = 0

    async def step(self) -> bytes:
        """One frame, or something like it; what was sent."""
        rng = self.rng
        if self.peer is None:
            self.peer = Peer(self.listener, piece=rng.choice((1 << 20, 1 << 20, 100, 3)))
        peer = self.peer
        body = bytes(mutate(rng, self.samples))
        data, is_whole = struct.pack(">i", len(body)) + body, True
        kind = rng.randrange(20)
        if kind == 0:
            data, is_whole = rng.randbytes(rng.randrange(1, 200)), False
        elif kind == 1:
            size = rng.choice((-1, 0, 7, len(body) - 1, len(body) + 1, len(body) + 5000, SIZE_MAX + 1, 1 << 30))
            data, is_whole = struct.pack(">i", size) + body, False
        elif kind == 2:
            data, is_whole = data[: rng.randrange(len(data))], False
        try:
            peer.send(data)
            for _ in range(10 if is_whole else 1):
                if peer.received or peer.is_gone:
                    break
                await turn(1)
            if is_whole and not peer.is_gone:
                assert bytes(peer.received[4:8]) == body[4:8], "an answer that is not this request's"
                (size,) = struct.unpack_from(">i", peer.received)
                assert len(peer.received) == 4 + size, "not one answer"
        except BaseException as error:
            error.add_note(f"sent in pieces of {peer.piece}: {data.hex()}")
            raise
        if peer.is_gone or not is_whole or rng.random() < 0.02:
            self.closed += peer.is_gone
            peer.leave()
            await turn(2)
            self.peer = None
        else:
            self.answered += 1
            peer.received.clear()
        return data


async def fuzz(apis: Sequence[Api[Any]], count: int, seed: str, samples: list[bytes]) -> None:
    world = Fuzz(apis, random.Random(seed), samples)
    before = (0, 0)
    for number in range(count):
        await world.step()
        if number % 1_000 == 0:
            await asyncio.sleep(0.001)  # time passes: the loop takes many turns in one moment for a bug
        if number in (count // 2, count - 1):
            if world.peer is not None:
                world.peer.leave()
                world.peer = None
            await turn()
            gc.collect()
            after = (sys.getallocatedblocks(), psutil.Process().memory_info().rss)
            if number == count - 1:
                grown = (after[0] - before[0], after[1] - before[1])
                assert grown[0] < 5_000, f"{grown[0]} objects stay"
                assert grown[1] < 20 << 20, f"{grown[1]} bytes stay"
            before = after
    assert world.answered > count // 50
    assert world.closed > count // 50
    assert world.metrics.request_bytes_held == 0
    assert world.metrics.connections == 0
    assert not world.listener.connections


@pytest.mark.parametrize("shard", range(SHARDS))
def test_malformed_frames(shard: int) -> None:
    logging.getLogger(
        "bmq.core.net.listener"
    ).disabled = True  # a line for each closed connection, limited: not what is tested
    try:
        samples = sample_frames(SEED + shard, each=2)
        run(fuzz(ALL_APIS, FRAMES // SHARDS, f"{SEED} {shard}", samples), limit_s=1e9)
    finally:
        logging.getLogger("bmq.core.net.listener").disabled = False

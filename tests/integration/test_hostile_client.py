"""A hostile client beside a polite one: every API and version, legal and not, in an order that a seed gives.

One `bmq serve` as a process of its own, the clients in this one.  Asserted: the polite client is refused nothing and
gets its turns, the server's loop is not stopped, and its log and its memory stay small.  Turns are counted in
hostile requests that were answered meanwhile, and stops are processor time of the loop's own thread: a noisy machine
makes every other clock wrong.

Legal requests have as many elements as Kafka's own tools send in one: some hundreds of names, some thousands of
partitions.  ``test_largest_requests`` sends as many as each API's limit allows.

``BMQ_HOSTILE_SEED`` gives another order and other damage.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import time
from pathlib import Path
from uuid import UUID

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bmq.core.records.batch import Record, build_batch
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from tests.integration.hostile_requests import hostile_requests, sized
from tests.integration.largest_requests import TOPIC
from tests.services.bmq import BmqServer

SEED = int(os.environ.get("BMQ_HOSTILE_SEED", "1"))
HOSTILE = 6
"""Connections."""
PARTITIONS = 10
BETWEEN_MAX = 20 * HOSTILE
"""Hostile requests that are answered between two answers to the polite client."""
POLITE_S = 30.0
"""A request of the polite client is answered within this time on any machine: Kafka's request.timeout.ms."""
GIVEN_UP_S = 5.0
"""A hostile connection closes a request that is not answered within: a join of a group may wait for its members."""
GIVEN_UP_SHARE = 0.05
STOP_MAX_MS = 50.0
LOG_MAX = 64 << 10
"""Bytes."""
MEMORY_MAX = 200 << 20
"""Bytes by which the server may grow."""


class Attack:
    """The hostile connections, and what became of their requests."""

    def __init__(self, server: BmqServer, requests: list[bytes]) -> None:
        self._server = server
        self._left = requests
        self.answered = self.closed = self.given_up = 0

    @property
    def ended(self) -> int:
        return self.answered + self.closed + self.given_up

    async def run(self) -> None:
        await asyncio.gather(*(self._attack() for _ in range(HOSTILE)))

    async def _attack(self) -> None:
        connection = Connection(self._server)
        while self._left:
            try:
                response = await asyncio.wait_for(connection.call(self._left.pop()), GIVEN_UP_S)
            except TimeoutError:
                self.given_up += 1
                connection.close()
            else:
                self.answered += bool(response)
                self.closed += not response
        connection.close()


class Connection:
    """Opened again when the server has closed it."""

    def __init__(self, server: BmqServer) -> None:
        self._server = server
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, sent: bytes) -> bytes:
        """Return the response; b"" if the connection was closed instead."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._server.host, self._server.port)
        reader, writer = self._streams
        try:
            writer.write(sent)
            await writer.drain()
            if not is_whole(sent):
                writer.write_eof()
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            return b""

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def is_whole(sent: bytes) -> bool:
    return len(sent) >= 4 and len(sent) == 4 + struct.unpack_from(">i", sent)[0]


async def produce(server: BmqServer, topic_id: UUID, attack: Attack, is_over: asyncio.Event) -> list[int]:
    """Produce until it is over; return how many hostile requests ended during each request."""
    connection = Connection(server)
    records = memoryview(bytes(build_batch([Record(value=b"polite")])))
    body = b"".join(encode_produce_request(-1, 30_000, [(topic_id, [(0, records)])]))
    request = sized(struct.pack(">hhihs", ApiKey.PRODUCE, PRODUCE_VERSION, 1, 1, b"p") + b"\0" + body)
    between = []
    while not is_over.is_set():
        before = attack.ended
        response = await asyncio.wait_for(connection.call(request), POLITE_S)
        assert response, "the polite client's connection was closed"
        ((part,),) = [topic.partitions for topic in decode_produce_response(memoryview(response)[5:])]
        assert part.error_code == 0
        between.append(attack.ended - before)
    connection.close()
    return between


async def play(server: BmqServer, topic_id: UUID, attack: Attack) -> list[int]:
    is_over = asyncio.Event()
    polite = asyncio.create_task(produce(server, topic_id, attack, is_over))
    await attack.run()
    is_over.set()
    return await polite


def create_topic(server: BmqServer) -> UUID:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
    described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(60).topic_id
    halves = described.get_most_significant_bits(), described.get_least_significant_bits()
    return UUID(bytes=struct.pack(">qq", *halves))


def test_a_hostile_client_harms_nobody(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    stops = tmp_path / "stops.json"
    prefix = (sys.executable, "-m", "tests.integration.watched_bmq", str(stops))
    environment = {"BMQ_AUTO_CREATE_TOPICS_ENABLE": "false", "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    with BmqServer(f"file://{tmp_path}/root", folder=tmp_path, prefix=prefix, environment=environment) as server:
        topic_id = create_topic(server)
        requests = hostile_requests(rng, topic_id)
        count = len(requests)
        attack = Attack(server, requests)
        log_before, memory_before, begin_s = server.log.stat().st_size, server.rss_bytes, time.monotonic()
        between = asyncio.run(play(server, topic_id, attack))
        end_s = time.monotonic()
        grown, logged = server.rss_bytes - memory_before, server.log.stat().st_size - log_before
    found = [json.loads(line) for line in stops.read_text().splitlines()]
    longest = [stop for stop in found if begin_s <= stop["at"] <= end_s and stop["ms"] > STOP_MAX_MS]
    seed = f"BMQ_HOSTILE_SEED={SEED}"
    assert attack.ended == count
    assert attack.answered > 0
    assert attack.closed > 0
    assert attack.given_up <= GIVEN_UP_SHARE * count, f"{seed}: {attack.given_up} requests were not answered"
    assert len(between) > count / BETWEEN_MAX
    assert max(between) <= BETWEEN_MAX, f"{seed}: the polite client waited"
    assert not longest, f"{seed}: the loop stopped: {longest}"
    assert logged < LOG_MAX, f"{seed}: {logged} bytes of log, {server.log}"
    assert grown < MEMORY_MAX, f"{seed}: the server grew by {grown >> 20} MiB"

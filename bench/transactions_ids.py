"""Idle transactional ids of one process of BMQ: the memory of each, and the time until a process has loaded them.

A bare client makes the ids.  It commits a transaction of each, to which it adds a partition and no record.  The caches
of the process are as small as they may be: what they hold of the shards' logs would look like memory of ids.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import raw_client
from bench.deployments import OWN, Deployment
from bench.raw_client import Address, NotAcknowledged, Reader, string
from bench.results import Sample
from bench.servers import BMQ_ENVIRONMENT
from bench.transactions_plan import IDS, Plan
from bmq.core.errors import ErrorCode
from bmq.core.machine_memory import WORKER_BYTES
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.messages import ListTransactionsRequest
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

ADAPTER = "bmq-local"
CONNECTIONS = 64
FEW = 500
"""Ids that are there before: ten in each shard, so that every shard is in use."""
FEW_LOADED, FEW_MADE, MADE, LOADED = "few ids loaded", "few ids used", "all ids made", "all ids loaded"
"""The cases: a process that has loaded few ids, after it served each, once it made the others, and a process that has
loaded all of them."""
TIMEOUT_S = 120.0
POLL_S = 0.005
"""Time between two looks whether all shards are loaded: the resolution of the time of a load."""
NO_PRODUCER = -2
"""A producer id of none: a listing of its transactions is empty."""
TRANSACTION_TIMEOUT_MS = 60_000
_INIT, _ADD, _END = 1, 2, 2
"""The versions of InitProducerId, AddPartitionsToTxn and EndTxn: the last before flexible headers."""
_RETRIED = frozenset({
    ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
})  # fmt: skip


def measure(plan: Plan, parent: Path | None) -> Iterator[Sample]:
    """Measure memory and the start of a process with few ids, with ids that it made, and with ids that it loaded.

    Raises RuntimeError if not all ids are loaded.
    """
    folder = Path(tempfile.mkdtemp(prefix="bmq-bench-ids-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        environment = BMQ_ENVIRONMENT | {"BMQ_CACHE_BYTES": str(WORKER_BYTES)}
        server = BmqServer((folder / "root").as_uri(), environment=environment, folder=folder)
        stack.push(server)
        server.start()
        deployment = Deployment(ADAPTER, server.bootstrap, 1, {OWN: [server.process]})
        topic = deployment.create_topic(1)
        (address,) = raw_client.addresses_of(server.bootstrap)
        make([address] * CONNECTIONS, topic, _ids(FEW))
        yield _sample(FEW_LOADED, _restarted(server, address))
        make([address] * CONNECTIONS, topic, _ids(FEW))  # now all code has run, and every log has its file
        yield _sample(FEW_MADE, {"rss_bytes": float(server.rss_bytes)})
        begun = time.monotonic()
        make([address] * CONNECTIONS, topic, _ids(plan.ids, FEW))
        metrics = {"rss_bytes": float(server.rss_bytes), "ids_s": plan.ids / (time.monotonic() - begun)}
        yield _sample(MADE, metrics)
        metrics = _restarted(server, address)
        if (found := listed(address)) != plan.ids + FEW:
            raise RuntimeError(f"{found} of {plan.ids + FEW:,} ids are loaded")
        yield _sample(LOADED, metrics)


def make(addresses: Sequence[Address], topic: str, ids: Sequence[str]) -> None:
    """Initialise each id, and commit a transaction of it; as many at the same time as there are addresses.

    Raises NotAcknowledged if a request is refused for good, OSError if a connection fails.
    """
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(raw_client.connect(each)) for each in addresses]
        for at in range(0, len(ids), len(connections)):
            _make(connections, topic, ids[at : at + len(connections)])


def _ids(count: int, first: int = 0) -> list[str]:
    return [f"idle-{number:08}" for number in range(first, first + count)]


def _make(connections: Sequence[socket.socket], topic: str, ids: Sequence[str]) -> None:
    frames = [init_frame(each) for each in ids]
    producers = [each.producer for each in _in_step(connections, ids, frames, init_result)]
    named = list(zip(ids, producers, strict=True))
    _in_step(connections, ids, [add_frame(each, *producer, topic) for each, producer in named], add_result)
    _in_step(connections, ids, [end_frame(each, *producer) for each, producer in named], end_result)


class Result:
    """The error of a response, and the producer id and epoch of an InitProducerId's."""

    __slots__ = ("code", "producer")

    def __init__(self, code: int, producer: tuple[int, int] = (-1, -1)) -> None:
        self.code = code
        self.producer = producer


def init_frame(transactional_id: str) -> bytes:
    """Return an InitProducerId."""
    body = string(transactional_id) + struct.pack(">i", TRANSACTION_TIMEOUT_MS)
    return raw_client.request(ApiKey.INIT_PRODUCER_ID, _INIT, body)


def add_frame(transactional_id: str, producer_id: int, epoch: int, topic: str) -> bytes:
    """Return an AddPartitionsToTxn of partition 0."""
    body = string(transactional_id) + struct.pack(">qhi", producer_id, epoch, 1) + string(topic)
    return raw_client.request(ApiKey.ADD_PARTITIONS_TO_TXN, _ADD, body + struct.pack(">ii", 1, 0))


def end_frame(transactional_id: str, producer_id: int, epoch: int) -> bytes:
    """Return an EndTxn that commits."""
    body = string(transactional_id) + struct.pack(">qh?", producer_id, epoch, True)
    return raw_client.request(ApiKey.END_TXN, _END, body)


def init_result(reader: Reader) -> Result:
    """Read the response to ``init_frame``, behind its throttle time."""
    return Result(reader.take("h"), (reader.take("q"), reader.take("h")))


def add_result(reader: Reader) -> Result:
    """Read the response to ``add_frame``, behind its throttle time."""
    reader.take("i")
    reader.string()
    reader.take("i")
    reader.take("i")
    return Result(reader.take("h"))


def end_result(reader: Reader) -> Result:
    """Read the response to ``end_frame``, behind its throttle time."""
    return Result(reader.take("h"))


def _in_step(
    connections: Sequence[socket.socket],
    ids: Sequence[str],
    frames: Sequence[bytes],
    read: Callable[[Reader], Result],
) -> list[Result]:
    """Send a frame on each connection, then read all responses; send again what is refused for now."""
    found: dict[int, Result] = {}
    left, end = list(range(len(frames))), time.monotonic() + TIMEOUT_S
    while left:
        for number in left:
            connections[number].sendall(frames[number])
        for number in left:
            reader = Reader(raw_client.receive(connections[number]))
            reader.take("i")  # correlation id
            reader.take("i")  # throttle time
            found[number] = read(reader)
        left = [number for number in left if found[number].code]
        for number in left:
            code = found[number].code
            if code not in _RETRIED or time.monotonic() > end:
                raise NotAcknowledged(f"{ids[number]}: error {code}")
        if left:
            time.sleep(POLL_S)
    return [found[number] for number in range(len(frames))]


def listed(address: Address, *, producers: Sequence[int] = ()) -> int | None:
    """Return how many transactional ids are listed, of these producers or of all; None if a shard is not loaded.

    Raises OSError if the connection fails.
    """
    message = ListTransactionsRequest(state_filters=[], producer_id_filters=list(producers))
    head = struct.pack(">hhih", ApiKey.LIST_TRANSACTIONS, 0, 1, -1) + b"\0"  # without tagged fields
    body = bytes(encode_request(ApiKey.LIST_TRANSACTIONS, 0, message))
    with raw_client.connect(address, timeout_s=TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        response = raw_client.receive(connection)
    found = decode_response(ApiKey.LIST_TRANSACTIONS, 0, memoryview(response)[5:])
    return None if found.error_code else len(found.transaction_states)


def _restarted(server: BmqServer, address: Address) -> dict[str, float]:
    """Kill the process and start it; return the seconds until all shards are loaded, and its memory then."""
    server.kill()
    begun = time.monotonic()
    server.start(wait=False)

    def is_loaded() -> bool:
        try:
            return listed(address, producers=[NO_PRODUCER]) is not None
        except OSError:
            return False

    wait_for(is_loaded, f"all shards of {server!r}", timeout_s=TIMEOUT_S, interval_s=POLL_S)
    seconds = time.monotonic() - begun
    return {"seconds": seconds, "rss_bytes": float(server.rss_bytes)}


def _sample(case: str, metrics: dict[str, float]) -> Sample:
    return Sample(adapter=ADAPTER, bench=IDS, case=case, round=1, metrics=metrics)

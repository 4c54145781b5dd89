"""Rules of transactions that must hold of a simulated cluster: at the end of a history, and of shards at any time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from copy import copy
from typing import Any

from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from bmq.coordinator.shard.replay import Replay
from bmq.coordinator.shard.shard import Shard
from bmq.core.errors import RequestError
from tests.harness.network import Disconnected
from tests.simulation.cluster_checks import Through
from tests.simulation.cluster_world import ClusterClient, ClusterWorld
from tests.simulation.kafka_clients import Client, Refused, check
from tests.simulation.transaction_attempts import RING, Applications, Attempt, Key, Outcome, writer_of
from tests.simulation.transaction_isolation import (
    aborted_reads,
    broken_circles,
    circular_flows,
    disorder,
    early_reads,
    misplaced,
)
from tests.simulation.transaction_readers import CommittedReader, position_of, stable_offset

FORGOTTEN_S = 30.0
"""From the expiration of a transactional id until a search has found it, and its removal is durable."""
DECIDED_S = 60.0
"""From the end of the faults until each transaction is decided, and readers of committed records are at the end."""
_OPEN = {"Ongoing", "PrepareCommit", "PrepareAbort"}
READ_BYTES, REPLAY_S = 1 << 20, 5.0


async def _ends(client: Client, key: Key) -> tuple[int, int]:
    """Return the last stable offset and the high watermark of a partition."""
    topic, partition = key
    ends = []
    for isolation in (1, 0):
        Topic = ListOffsetsRequest.ListOffsetsTopic
        part = Topic.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation, topics=[Topic(name=topic, partitions=[part])]
        )
        response = await client.call(request, ListOffsetsResponse, 5)
        found = response.topics[0].partitions[0]
        check(found.error_code)
        ends.append(found.offset)
    return ends[0], ends[1]


async def _transactions(client: Client) -> list[Any]:
    """Return the transactional ids of the cluster, with their states.  Raises Refused."""
    request = ListTransactionsRequest(
        state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=""
    )
    response = await client.call(request, ListTransactionsResponse, 1)
    check(response.error_code)
    return list(response.transaction_states)


async def _undecided(client: Client, known: Applications) -> list[str]:
    """Return what is open, of the cluster's transactional ids and of the partitions that transactions write.

    Raises Refused while the offset of a source is unstable.
    """
    found = [
        f"{each.transactional_id} is in {each.transaction_state}"
        for each in await _transactions(client)
        if each.transaction_state in _OPEN
    ]
    for key in known.outputs:
        stable, end = await _ends(client, key)
        if stable != end:
            found.append(f"{key} is stable up to {stable} of {end}")
    for source in known.sources:
        await stable_offset(client, source)
    return found


async def check_decided(world: ClusterWorld, known: Applications, hosts: list[str], since: float) -> None:
    """Check that each transaction is decided, and all records and offsets are stable, ``DECIDED_S`` after ``since``."""
    for host in hosts:
        client = ClusterClient(world, host)
        while True:
            try:
                found = await _undecided(client, known)
            except (Disconnected, Refused) as error:
                found = [f"{host}: {error}"]
            if not found:
                break
            took_s = world.loop.time() - since
            assert took_s < DECIDED_S, f"{took_s:.0f} s after the faults, through {host}: {found}"
            await asyncio.sleep(0.5)
        client.close()


async def check_forgotten(world: ClusterWorld, hosts: list[str], expiration_s: float) -> None:
    """Check that no transactional id is kept longer than ``expiration_s`` and a while: no client uses them any more."""
    deadline = world.loop.time() + expiration_s + FORGOTTEN_S
    for host in hosts:
        client = ClusterClient(world, host)
        while True:
            try:
                found = [each.transactional_id for each in await _transactions(client)]
            except (Disconnected, Refused) as error:
                found = [f"{host}: {error}"]
            if not found:
                break
            assert world.loop.time() < deadline, f"through {host}, these are kept: {found}"
            await asyncio.sleep(0.5)
        client.close()


async def check_records(world: ClusterWorld, known: Applications, host: str) -> None:
    """Check that committed transactions have all of their records, once, and others none; and what they consumed."""
    through = Through(world, host)
    found: dict[str, dict[Key, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    readers = {key: CommittedReader(through, known, key) for key in known.outputs}
    client = ClusterClient(world, host)
    for key, reader in readers.items():
        _, end = await _ends(client, key)
        while reader.offset < end:
            await reader.poll(client)
        for _, value in sorted(reader.values.items()):
            if value not in known.seeds:
                found[writer_of(value)][key].append(value)
    for attempt in known.attempts.values():
        records = {key: values for key, values in found.get(attempt.name, {}).items() if values}
        assert records in _allowed(attempt), f"{attempt} through {host}: readers get {records}"
    positions = {}
    for source in known.sources:
        committed = [a for a in known.attempts.values() if a.source == source and a.name in found]
        consumed = sorted((a.begin, a.end) for a in committed if a.end > a.begin)
        ends = [0, *(end for _, end in consumed)]
        assert [begin for begin, _ in consumed] == ends[:-1], f"{source} is consumed as {consumed}"
        offset = positions[source] = await position_of(through, known, client, source)
        assert offset == ends[-1], f"{source} is consumed as {consumed}, and its offset is {offset}"
    client.close()
    wrong = _wrong(known, set(found), readers, positions)
    assert not wrong, f"through {host}: {wrong}"


def _wrong(
    known: Applications, committed: set[str], readers: dict[Key, CommittedReader], positions: dict[Key, int]
) -> list[str]:
    """Return what is wrong about the isolation of transactions, and about the order and the places of records."""
    attempts = known.attempts
    logs = {key: reader.log for key, reader in readers.items()}
    ring = {key: readers[key].values for key in readers if key[0] in RING}
    return [
        *aborted_reads(attempts.values(), committed, known.seeds),
        *(each for key, log in logs.items() for each in early_reads(key, known.seen[key], log)),
        *circular_flows(attempts.values(), committed),
        *disorder(attempts.values(), logs),
        *misplaced(known.acked, logs),
        *broken_circles(ring, attempts, known.seeds, positions),
    ]


def _allowed(attempt: Attempt) -> list[dict[Key, list[bytes]]]:
    """Return the records that readers of committed records may get of a transaction."""
    match attempt.outcome:
        case Outcome.COMMITTED:
            return [attempt.records]
        case Outcome.COMMITTING:
            return [attempt.records, {}]
    return [{}]


# --------------------------------------------------------------------------------------------------------------- shards


def _loaded(world: ClusterWorld) -> list[Shard[Any, Any]]:
    """Return the loaded shards of all processes that run."""
    shards: list[Shard[Any, Any]] = []
    for place in world.places:
        node = place.process.node if place.process is not None and place.process.runs else None
        role = node.coordinator if node is not None else None
        if role is None:
            continue
        shards += [each for kind in role._kinds for each in kind.shards._shards.values() if each.serving is not None]
    return shards


def _is_idle(writer: Any) -> bool:
    """Return whether all that was handed to a shard's writer is durable."""
    return not (writer._queue or writer._is_in_flight or writer._error)


async def check_replays(world: ClusterWorld) -> int:
    """Check that each loaded shard is what its log's replay gives (rule 14); return how many were compared."""
    compared = 0
    for shard in _loaded(world):
        serving, log = shard.serving, shard._log
        if serving is None or log is None or not _is_idle(serving.writer):
            continue
        live, end = serving.state.facts(), log.high_watermark
        seen = copy(log)  # a remote log's end moves with each read: a former owner's would pass its successor's records
        replay = Replay(seen, state := shard._new_state(), READ_BYTES)
        try:
            async with asyncio.timeout(REPLAY_S):
                await replay.read(end)
        except (RequestError, TimeoutError):
            continue  # its log or its storage is away
        if shard.serving is not serving or not log.is_open or replay.offset > end:
            continue  # more was written meanwhile, perhaps by another process
        replayed = state.facts()
        gaps = {key for key in live.keys() | replayed.keys() if live.get(key) != replayed.get(key)}
        if gaps:
            values = {key: (live.get(key), replayed.get(key)) for key in gaps}
            world.observed.errors.append(f"{shard.id}: live and replayed state differ (rule 14): {values}")
        compared += 1
    return compared

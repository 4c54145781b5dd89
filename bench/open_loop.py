"""An open loop: records are due at a fixed rate, whatever the servers do, and readers follow the end of the log.

A latency is the time from when a record was due, not from when it was sent: a client that is held up sends late, and
what its records waited counts (Tene's "coordinated omission" is the error of leaving that out).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from numpy.typing import NDArray

from bench.client_load import NO_PROPERTIES
from bench.load_process import LoadProcess
from bench.open_loop_clients import LATE_MAX, TIMEOUT_S, Load, follow, send
from tests.services.processes import wait_for

LEAD_S = 0.2
"""Seconds from the word to begin until the first record is due."""
NOT_KNOWN_YET = frozenset({
    KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION,
})  # fmt: skip
"""Errors of a partition of which some broker has not heard, or a client."""
Floats = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Timed:
    """The times, by ``time.monotonic``, of each record; nan for what never came."""

    due: Floats
    acked: Floats
    received: list[Floats] = field(default_factory=list)
    """One for each reader."""
    client_cpu_s: float = 0.0
    """Processor seconds of the thread that produces: as many as the run has are all that it can take."""

    @property
    def ack_latencies_s(self) -> Floats:
        """Seconds from when a record was due to its acknowledgement, of all records that were acknowledged."""
        return _known(self.acked - self.due)

    @property
    def end_latencies_s(self) -> Floats:
        """Seconds from when a record was due until a reader had it, of all readers."""
        return _known(np.concatenate([times - self.due for times in self.received] or [np.empty(0)]))


class OpenLoop:
    """A producer and readers that are connected, and wait for the word to begin."""

    def __init__(self, load: Load, sender: LoadProcess, followers: Sequence[LoadProcess]) -> None:
        self._load = load
        self._sender = sender
        self._followers = followers

    def run(self) -> Timed:
        """Run the load once.  Raises LoadFailed if a record was refused, or a reader did not get all of them."""
        load = self._load
        begun = time.monotonic() + LEAD_S
        self._sender.send(begun)
        acked, cpu_s = self._sender.expect(LEAD_S + load.seconds * (1 + LATE_MAX) + TIMEOUT_S)
        found = Timed(
            due=begun + np.arange(load.count) / load.records_s, acked=np.asarray(acked), client_cpu_s=cpu_s
        )  # fmt: skip
        goal = int(np.count_nonzero(~np.isnan(found.acked)))
        for follower in self._followers:
            follower.send(goal)
        for follower in self._followers:
            found.received += [np.asarray(times) for times in follower.expect(TIMEOUT_S)]
        return found


@contextlib.contextmanager
def open_loop(load: Load, *, readers: int = 1, processes: int = 1) -> Iterator[OpenLoop]:
    """Start and connect the client processes, and stop them at the end; ``processes`` share the ``readers``."""
    with contextlib.ExitStack() as stack:
        offsets = end_offsets(load.bootstrap, load.topic, load.partitions, load.properties)
        shares = [readers // processes + (index < readers % processes) for index in range(processes)]
        followers = [
            stack.enter_context(LoadProcess(follow, load=load, offsets=offsets, readers=share))
            for share in shares
            if share
        ]
        sender = stack.enter_context(LoadProcess(send, load=load))
        for process in (sender, *followers):
            process.expect(TIMEOUT_S)
        yield OpenLoop(load, sender, followers)


def end_offsets(
    bootstrap: str, topic: str, partitions: int, properties: Mapping[str, str] = NO_PROPERTIES
) -> list[int]:
    """Return each partition's end offset, once each has a leader: a broker may not know a new topic yet.

    Raises NotReady if a partition has none in ``TIMEOUT_S``, and KafkaException for another error.
    """
    found: list[int] = []
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0, **properties})

    def are_known() -> bool:
        try:
            while len(found) < partitions:
                found.append(consumer.get_watermark_offsets(TopicPartition(topic, len(found)), timeout=TIMEOUT_S)[1])
        except KafkaException as error:
            if error.args[0].code() not in NOT_KNOWN_YET:
                raise
            consumer.list_topics(topic, timeout=TIMEOUT_S)
        return len(found) == partitions

    try:
        wait_for(are_known, f"leaders of {topic}", timeout_s=TIMEOUT_S)
        return found
    finally:
        consumer.close()


def _known(values: Floats) -> Floats:
    return values[~np.isnan(values)]

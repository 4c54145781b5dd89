"""Applications that read one topic and write another with exactly-once: where they run, and how far they have come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.services.processes import ServiceProcess, wait_for

LIMIT_S = 180.0
CALL_S = 5.0
PASSING = (KafkaError._DESTROY_BROKER, KafkaError._TIMED_OUT, KafkaError._UNKNOWN_PARTITION)
"""Errors of librdkafka itself that pass: a request stays with a broker that has died, or a process has yet to hear of a
new topic."""


class Fault(NamedTuple):
    """A fault of BMQ: ``begin`` it, let the application go on if it can, and ``end`` it."""

    name: str
    begin: Callable[[], None]
    end: Callable[[], None]


class Place(NamedTuple):
    """A BMQ with the faults that the test makes, one after another."""

    bootstrap: str
    folder: Path
    faults: list[Fault]


class Sink:
    """The topic that an application writes."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._partitions = partitions

    def wait_for_more(self, step: int, application: ServiceProcess) -> None:
        """Wait until the application, which must not end, has committed at least ``step`` more offsets."""
        goal = sum(self.ends("read_committed")) + step

        def is_done() -> bool:
            application.require_running()
            return sum(self.ends("read_committed")) >= goal

        what = f"offset {goal} of {self.topic}; log: {application.log}"
        wait_for(is_done, what, timeout_s=LIMIT_S, interval_s=0.5)

    def ends(self, isolation: str) -> Sequence[int]:
        """Return the partitions' ends at this isolation level, once their brokers answer."""
        found: list[Sequence[int]] = []

        def is_read() -> bool:
            try:
                found.append(self._ask_for_ends(isolation))
            except KafkaException as exception:
                error = exception.args[0]
                if error.code() not in PASSING and not error.retriable():
                    raise
            return bool(found)

        wait_for(is_read, f"the ends of {self.topic}", timeout_s=LIMIT_S, interval_s=0.5)
        return found[0]

    def _ask_for_ends(self, isolation: str) -> Sequence[int]:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": "ends", "isolation.level": isolation}
        consumer = Consumer({**settings, "log_level": 0})
        try:
            places = [TopicPartition(self.topic, place) for place in range(self._partitions)]
            return [consumer.get_watermark_offsets(place, CALL_S)[1] for place in places]
        finally:
            consumer.close()

"""Apache Flink with `DeliveryGuarantee.EXACTLY_ONCE`, while its application dies, and processes of BMQ die.

The application copies a topic.  Flink prepares a transaction with each checkpoint, and commits it once the checkpoint
is whole.  An application that starts again from its last checkpoint commits what it finds prepared there, by the
producer id and epoch of its former life, and aborts what was open.  The time-out of its transactions is far above
the time limits here.  So committed readers get no further if a transaction of a former life stays open.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient

from tests.integration.cluster.application import LIMIT_S, Place, Sink
from tests.integration.history import report
from tests.integration.load import create_topic
from tests.integration.source import Source
from tests.integration.transformer import check_values, committed, read
from tests.services.flink import STRATEGIES, Copies
from tests.services.processes import wait_for

PARTITIONS = 4
STEP = 200
"""Records of the sink that are committed between two faults."""
LIVES = 2
"""How often the application dies in each of two ways."""
ENDED = {"Empty", "CompleteCommit", "CompleteAbort"}
CALL_S = 20.0


class Copying:
    """The application, its source and its sink."""

    def __init__(self, place: Place, strategy: str) -> None:
        self.bootstrap = place.bootstrap
        for topic in ("source", "sink"):
            create_topic(self.bootstrap, topic, PARTITIONS)
        self.source = Source(self.bootstrap, "source", PARTITIONS)
        self.sink = Sink(self.bootstrap, "sink", PARTITIONS)
        self.application = Copies(self.bootstrap, "copies", "source", "sink", strategy, place.folder)

    def start(self) -> None:
        self._abort_a_record_of_each_partition()
        self.source.start()
        self.application.start()
        self.progress()

    def _abort_a_record_of_each_partition(self) -> None:
        """Write records to the source that no reader of committed records gets."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": "aborts", "log_level": 0})
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        for place in range(PARTITIONS):
            producer.produce("source", b"aborted", partition=place)
        assert producer.flush(CALL_S) == 0
        producer.abort_transaction(CALL_S)

    def progress(self) -> None:
        """Wait until the application has committed some more transactions, to at least STEP more offsets."""
        self.sink.wait_for_more(STEP, self.application)

    def kill_in_a_transaction(self) -> None:
        """Send SIGKILL once the sink has records that are not committed."""

        def is_open() -> bool:
            self.application.require_running()
            ends = zip(self.sink.ends("read_committed"), self.sink.ends("read_uncommitted"), strict=True)
            return all(stable < end for stable, end in ends)

        wait_for(is_open, "an open transaction in each partition", timeout_s=LIMIT_S, interval_s=0.05)
        self.application.kill()

    def finish(self) -> int:
        """Stop the source, wait until all is copied and stop the application; check sink, offsets and transactions.

        Return how many records of the sink are of aborted transactions.
        """
        self.source.finish()
        values = read(self.bootstrap, "source", PARTITIONS, "read_committed")
        assert sum(map(len, values)) == self.source.sent

        ends = Sink(self.bootstrap, "source", PARTITIONS).ends("read_committed")

        def is_done() -> bool:
            """Return whether Flink has committed the last offsets, as it does once a checkpoint is whole."""
            self.application.require_running()
            return committed(self.bootstrap, self.application.application, "source", PARTITIONS) == ends

        wait_for(is_done, f"offsets {ends} of the source", timeout_s=LIMIT_S, interval_s=0.5)
        self.application.stop()
        assert self.sink.ends("read_committed") == self.sink.ends("read_uncommitted")
        assert self._states() <= ENDED
        return check_values(self.bootstrap, "sink", [[b"copy of " + value for value in part] for part in values])

    def _states(self) -> set[str]:
        """Return the states of all transactional ids."""
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap.split(","))
        try:
            found = admin.list_transactions()
        finally:
            admin.close()
        return {str(each.state.value) for part in found.values() for each in part}

    def abandon(self) -> None:
        self.source.abandon()
        self.application.kill()


@contextlib.contextmanager
def copying(place: Place, strategy: str) -> Iterator[Copying]:
    """Yield the application, started; end it with the context."""
    made = Copying(place, strategy)
    try:
        made.start()
        yield made
    finally:
        made.abandon()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flink_copies_each_record_once(single: Place, strategy: str) -> None:
    """Nobody dies: there are no records of aborted transactions either."""
    with copying(single, strategy) as made:
        assert made.finish() == 0
    assert made.application.resumed() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flink_copies_each_record_once_while_it_dies(
    single: Place, strategy: str, request: pytest.FixtureRequest
) -> None:
    """The application dies in the middle of transactions, and between a checkpoint and its commits."""
    with copying(single, strategy) as made:
        for fault in (made.kill_in_a_transaction, made.application.halt_between_phases) * LIVES:
            fault()
            began = time.monotonic()
            made.application.start()
            made.progress()
            report(request, f"{fault.__name__}: {time.monotonic() - began:.1f} s to {STEP} more offsets")
        aborted, resumed = made.finish(), made.application.resumed()
    assert aborted > 0
    assert resumed > 0
    report(request, f"{made.source.sent} records copied once, {aborted} aborted, {resumed} transactions resumed")


def copy_through_faults(place: Place, strategy: str, request: pytest.FixtureRequest) -> None:
    """Make the place's faults while the application runs; it goes on by itself."""
    with copying(place, strategy) as made:
        for fault in place.faults:
            began = time.monotonic()
            fault.begin()
            made.progress()
            report(request, f"kill -9 of {fault.name}: {time.monotonic() - began:.1f} s to {STEP} more offsets")
            fault.end()
        aborted = made.finish()
    report(request, f"{made.source.sent} records copied once, {aborted} aborted")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flink_copies_each_record_once_while_one_process_dies(
    single: Place, strategy: str, request: pytest.FixtureRequest
) -> None:
    """`bmq serve` is killed and started again."""
    copy_through_faults(single, strategy, request)


@pytest.mark.etcd
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_flink_copies_each_record_once_while_each_of_three_dies(
    three: Place, strategy: str, request: pytest.FixtureRequest
) -> None:
    """Each of three processes is killed and stays away until the application has gone on."""
    copy_through_faults(three, strategy, request)

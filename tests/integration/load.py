"""Real clients under which servers are broken: idempotent producers and groups, and what must hold in the end.

* ``Writer`` counts; ``check_log`` finds every record once, in its writer's order, at the offset that was answered.
* ``Group`` reads: whoever takes a partition over goes on from the group's committed offset, neither before nor past it.

How long partitions went without an acknowledgement is told by ``Writer.take_pauses``.  What a group waits for that
does not go on in time is told by `group_trouble`.  Time in which the whole machine stood still does not count.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.harness.patience import Patience
from tests.integration import group_trouble

LIMIT_S = 120.0
VALUE_BYTES = 1000
BURST = 50
REQUEST_TIMEOUT_MS = 10_000
"""Time after which a client leaves a paused server; librdkafka's default is a minute."""
COMMIT_EVERY_S = 0.3


class Writer:
    """An idempotent producer in a thread of its own, from ``start`` to ``finish``: numbered records, without pause.

    Record n goes to partition n modulo their number.  ``burst_s`` is the time between two bursts of 50 kB; the default,
    about 8 MB/s, is a load and not a benchmark.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        *,
        number: int = 0,
        burst_s: float = 0.005,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.partitions = partitions
        self.number = number
        self.sent = 0
        self.errors: list[str] = []
        self.offsets = [array("q") for _ in range(partitions)]
        """Acknowledged offsets of each partition, in the order of sending; -1 where the client got none."""
        self._burst_s = burst_s
        self._request_timeout_ms = request_timeout_ms
        self._stop = threading.Event()
        self._is_abandoned = False
        self._last_ack = [0.0] * partitions
        self._longest_s = [0.0] * partitions
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "none",
                "socket.timeout.ms": self._request_timeout_ms,
                "log_level": 0,  # that a server went away is what tests are about
            }
        )
        self._last_ack = [time.monotonic()] * self.partitions
        while not self._stop.is_set():
            value = b"%04d %012d" % (self.number, self.sent) + b"." * VALUE_BYTES
            try:
                producer.produce(self.topic, value, partition=self.sent % self.partitions, on_delivery=self._delivered)
            except BufferError:
                producer.poll(0.05)
                continue
            self.sent += 1
            producer.poll(0)
            if self.sent % BURST == 0:
                time.sleep(self._burst_s)
        if self._is_abandoned:
            producer.purge()  # else what is left would be sent to whatever answers there later
        left = producer.flush(LIMIT_S)
        if left:
            self.errors.append(f"{left} records were not answered after {LIMIT_S} s")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now, partition = time.monotonic(), message.partition()
        assert partition is not None
        self._longest_s[partition] = max(self._longest_s[partition], now - self._last_ack[partition])
        self._last_ack[partition] = now
        if error is not None:
            self.errors.append(f"partition {partition}: {error}")
        else:
            offset = message.offset()
            self.offsets[partition].append(-1 if offset is None else offset)

    def take_pauses(self) -> list[float]:
        """Return each partition's longest time, in seconds, without an acknowledgement since the last call."""
        now = time.monotonic()
        pauses = [max(*each) for each in zip(self._longest_s, (now - last for last in self._last_ack), strict=True)]
        self._longest_s = [0.0] * self.partitions
        return pauses

    def take_pause(self) -> float:
        """Return the longest pause of all partitions, and begin to measure again as `take_pauses` does."""
        return max(self.take_pauses())

    def wait_acked(self, more: int) -> None:
        """Wait until every partition has acknowledged its share of so many more records: none hides behind others."""
        goals = [len(acked) + more // self.partitions for acked in self.offsets]
        patience = Patience(LIMIT_S)
        while any(len(acked) < goal for acked, goal in zip(self.offsets, goals, strict=True)):
            assert not self.errors, self.errors[:5]
            acked = [len(acked) for acked in self.offsets]
            assert not patience.is_over(), f"only {acked} of {goals} acknowledged after {patience}"
            time.sleep(0.005)

    def finish(self) -> None:
        """Stop, and check that every record was acknowledged."""
        self._stop.set()
        self._thread.join(2 * LIMIT_S)
        assert not self._thread.is_alive()
        assert not self.errors, self.errors[:5]
        assert sum(map(len, self.offsets)) == self.sent

    def abandon(self) -> None:
        """Stop without a check of what was sent: after a failure that is reported already, or a loss."""
        self._is_abandoned = True
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LIMIT_S)


def describe(pauses: Sequence[float]) -> str:
    """Return the spread of the pauses, one for each fault, as text."""
    return (
        "longest time without an answer from a partition"
        f" min/median/max {min(pauses):.2f}/{median(pauses):.2f}/{max(pauses):.2f} s"
    )


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, -1)], operation_timeout=30).values():
        future.result(30)


def delete_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.delete_topics([topic], operation_timeout=30).values():
        future.result(60)


def check_log(bootstrap: str, *writers: Writer) -> list[int]:
    """Check that each partition has each writer's share, once, in order, as acknowledged; return the ends."""
    found = read_log(bootstrap, writers[0].topic, writers[0].partitions)
    for partition, log in enumerate(found):
        for writer in writers:
            stored = [(offset, number) for offset, (by, number) in enumerate(log) if by == writer.number]
            numbers = [number for _, number in stored]
            expected = list(range(partition, writer.sent, writer.partitions))
            assert numbers == expected, f"partition {partition}: {_difference(numbers, expected)}"
            for (offset, number), answered in zip(stored, writer.offsets[partition], strict=True):
                assert answered in (-1, offset), f"{number} was answered offset {answered}, it stands at {offset}"
    return [len(log) for log in found]


def read_log(bootstrap: str, topic: str, partitions: int) -> list[list[tuple[int, int]]]:
    """Return (writer, number) of every record of each partition, in the order of offsets, which have no gap."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    found: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    end = time.monotonic() + LIMIT_S
    while len(ended) < partitions:
        assert time.monotonic() < end, f"read {sum(map(len, found))}, ended {ended}"
        for message in consumer.consume(10_000, 0.5):
            error, partition, value = message.error(), message.partition(), message.value()
            assert partition is not None
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(partition)
                continue
            assert message.offset() == len(found[partition]), "offsets have a gap"
            by, number = (value or b"")[:17].split()
            found[partition].append((int(by), int(number)))
    consumer.close()
    return found


def _difference(found: Sequence[int], expected: Sequence[int]) -> str:
    """Lost, doubled or swapped, and the first place."""
    lost, doubled = set(expected) - set(found), len(found) - len(set(found))
    where = next((at for at, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(found))
    return (
        f"{len(lost)} lost, {doubled} doubled, else swapped, from record {where} on: {list(found[where : where + 5])}"
    )


class _Position:
    """Position of a group in one partition: committed for certain, committed perhaps, and read."""

    __slots__ = ("attempted", "committed", "following")

    def __init__(self) -> None:
        self.committed = self.attempted = self.following = 0


class Group:
    """Consumers of one group, each in a thread of its own and with its own list of proxies."""

    def __init__(
        self,
        name: str,
        topic: str,
        partitions: int,
        bootstraps: Sequence[str],
        *,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.name = name
        self.limit_s = limit_s
        self.request_timeout_ms = request_timeout_ms
        self.topic = topic
        self.errors: list[str] = []
        self.commits_refused = 0
        self.assignments = self.losses = 0
        self.positions = [_Position() for _ in range(partitions)]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._bootstraps = list(bootstraps)
        self._threads: list[threading.Thread] = []
        self._members: list[_GroupMember] = []

    def start(self) -> None:
        for bootstrap in self._bootstraps:
            self.join(bootstrap)

    def join(self, bootstrap: str) -> None:
        """Start a further member: the others give up their partitions, and all go on from what is committed."""
        self._threads.append(threading.Thread(target=self._guarded, args=(bootstrap,), daemon=True))
        self._threads[-1].start()

    def wait_committed(self, ends: Sequence[int]) -> None:
        """Wait until the group has read each partition up to these ends, and its coordinator has acknowledged that."""
        patience = Patience(self.limit_s)
        while any(position.committed < end for position, end in zip(self.positions, ends, strict=True)):
            assert not self.errors, self.errors[:5]
            at = [(position.committed, position.following) for position in self.positions]
            assert not patience.is_over(), (
                f"group {self.name} has (committed, read) {at}, it should be at {ends} after {patience}\n"
                f"{self.trouble(ends)}"
            )
            time.sleep(0.02)

    def trouble(self, ends: Sequence[int]) -> str:
        """Return what the coordinator, the members and the servers of the partitions say that have not reached ends."""
        behind = {
            partition: position.following
            for partition, (position, end) in enumerate(zip(self.positions, ends, strict=True))
            if position.committed < end
        }
        clients = {each.client_id: str(each) for each in self._members}
        return group_trouble.describe(self._bootstraps[0], self.name, self.topic, clients, behind)

    def wait_more(self, records: int) -> None:
        """Wait until every partition has been read, and that committed, by its share of so many records further."""
        self.wait_committed([position.following + records // len(self.positions) for position in self.positions])

    def finish(self, ends: Sequence[int]) -> None:
        """Wait until everything up to these ends is read and committed; every member must leave without an error."""
        self.wait_committed(ends)
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), f"a member of {self.name} does not leave"
        assert not self.errors, self.errors[:5]
        assert [position.following for position in self.positions] == list(ends), f"{self.name} read past the end"

    def abandon(self) -> None:
        self._stop.set()

    # ---------------------------------------------------------------------------------------------------- one member

    def _guarded(self, bootstrap: str) -> None:
        try:
            member = _GroupMember(self, bootstrap)
            self._members.append(member)
            member.run(self._stop)
        except (AssertionError, KafkaException) as error:
            self.errors.append(f"a member of {self.name}: {error}")

    def begins(self, partition: int, offset: int) -> None:
        """Check the first record after an assignment: its offset must be one that was, or may have been, committed."""
        with self._lock:
            position = self.positions[partition]
            assert position.committed <= offset <= position.attempted, (
                f"partition {partition} goes on from {offset}, committed was {position.committed} to "
                f"{position.attempted}, read up to {position.following}"
            )

    def reads(self, partition: int, offset: int) -> None:
        position = self.positions[partition]
        position.following = max(position.following, offset + 1)

    def commits(self, offsets: Sequence[TopicPartition], commit: Callable[[], object]) -> None:
        """Commit these offsets and note the result: a commit that failed may have happened."""
        with self._lock:
            for each in offsets:
                position = self.positions[each.partition]
                position.attempted = max(position.attempted, each.offset)
        try:
            commit()
        except KafkaException:
            self.commits_refused += 1  # a rebalance, or a coordinator that moves: the next one commits this too
            return
        with self._lock:
            for each in offsets:
                position = self.positions[each.partition]
                position.committed = max(position.committed, each.offset)


class _GroupMember:
    """Consumer that reads, and commits what it has read."""

    def __init__(self, group: Group, bootstrap: str) -> None:
        self._group = group
        self._next: dict[int, int] = {}  # of the partitions that are ours now and have been read
        self._assignment: list[int] = []
        self._due_at = 0.0
        self._call, self._called_at = "start", time.monotonic()
        self._warnings = _Warnings()
        self.client_id = f"client-{uuid.uuid4().hex[:6]}"
        logger = logging.Logger("librdkafka")
        logger.addHandler(self._warnings)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group.name,
                "client.id": self.client_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "socket.timeout.ms": group.request_timeout_ms,
                "log_level": 4,  # warnings
            },
            logger=logger,
        )

    def __str__(self) -> str:
        since_s = time.monotonic() - self._called_at
        said = "".join(f"; it said: {line}" for line in self._warnings.lines)
        return f"partitions {sorted(self._assignment)}, in {self._call} for {since_s:.1f} s{said}"

    def run(self, stop: threading.Event) -> None:
        self._consumer.subscribe(
            [self._group.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        while not stop.is_set():
            self._calls("consume")
            for message in self._consumer.consume(1000, 0.1):
                self._take(message)
            if time.monotonic() >= self._due_at:
                self._commit()
        self._commit()
        self._leave()

    def _calls(self, name: str) -> None:
        self._call, self._called_at = name, time.monotonic()

    def _leave(self) -> None:
        """Give everything up, and only then close.

        librdkafka waits for itself for ever when a rebalance comes while it closes, as it does when all members leave
        at once; and with it this whole process, since its Python binding holds the interpreter meanwhile.
        """
        self._calls("leave")
        self._consumer.unsubscribe()
        end = time.monotonic() + LIMIT_S
        while self._consumer.assignment():
            assert time.monotonic() < end, "a member that leaves is not told that it has nothing any more"
            self._consumer.poll(0.1)
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error, partition, offset = message.error(), message.partition(), message.offset()
        assert error is None, error
        assert partition is not None
        assert offset is not None
        following = self._next.get(partition)
        if following is None:
            self._group.begins(partition, offset)
        else:
            assert offset == following, f"partition {partition}: {offset} read where {following} should come"
        self._next[partition] = offset + 1
        self._group.reads(partition, offset)

    def _commit(self) -> None:
        self._due_at = time.monotonic() + COMMIT_EVERY_S
        offsets = [TopicPartition(self._group.topic, partition, offset) for partition, offset in self._next.items()]
        if offsets:
            self._calls("commit")
            self._group.commits(offsets, lambda: self._consumer.commit(offsets=offsets, asynchronous=False))

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._group.assignments += 1
        self._assignment = [each.partition for each in partitions]
        self._next.clear()

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._assignment = []
        self._next.clear()

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._group.losses += 1
        self._assignment = []
        self._next.clear()


class _Warnings(logging.Handler):
    """The last things that a client said of its membership; that servers went away is what tests are about."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=3)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if any(word in text for word in ("SESSTMOUT", "MAXPOLL")):
            self.lines.append(text)

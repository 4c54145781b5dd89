"""The loop of ``bmq consume``: from the consumer to standard output, with commits, ends and signals."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import monotonic
from types import FrameType
from typing import Any, BinaryIO, NamedTuple, Protocol

from kafka import OffsetAndMetadata, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import CorruptRecordError, KafkaError, RebalanceInProgressError

from bmq.cli.admin_client import explain, knock
from bmq.cli.kafka_client import Settings
from bmq.cli.output import fail
from bmq.cli.progress import Progress
from bmq.cli.records.output import Consumed, Writer
from bmq.core.http_call import ServerUnreachable

POLL_MS = 200
"""Longest time, in milliseconds, before a signal, or a reader that has gone, is noticed."""
POLL_RECORDS_MAX = 2_000
COMMIT_S = 1.0


class Consumer(Protocol):
    """The part of kafka-python's consumer that is used; it documents what the methods return."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None: ...
    def assignment(self) -> set[TopicPartition]: ...
    def subscribe(self, topics: Sequence[str], listener: ConsumerRebalanceListener) -> None: ...
    def seek(self, partition: TopicPartition, offset: int) -> None: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def position(self, partition: TopicPartition, timeout_ms: int | None = None) -> int | None: ...
    def poll(self, timeout_ms: int, max_records: int) -> Mapping[TopicPartition, Sequence[Consumed]]: ...
    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> None: ...
    def group_metadata(self) -> Any: ...
    def close(self, autocommit: bool, timeout_ms: int) -> None: ...


class Plan(NamedTuple):
    """The start of each partition, and the offset before which it ends: ``ends`` is None if it does not.

    ``present`` are the partitions whose records up to the end exist now: no new ones are waited for.
    """

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None = None
    present: frozenset[TopicPartition] = frozenset()


class StopFlag:
    """A flag set by signals: the number of the one that asks for an end; 0 until then."""

    signal = 0


@contextlib.contextmanager
def stop_signals() -> Iterator[StopFlag]:
    """Make SIGINT and SIGTERM ask for an end between two polls; a second SIGINT interrupts at once."""
    stopped = StopFlag()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.signal = number
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ConsumeLoop(ConsumerRebalanceListener):  # type: ignore[misc]
    """The loop from the consumer to standard output, with the offsets that are written and not committed yet."""

    def __init__(
        self,
        consumer: Consumer,
        arguments: argparse.Namespace,
        writer: Writer,
        output: BinaryIO,
        plan: Plan,
        stopped: StopFlag,
        has_readers: Callable[[], bool],
        check_group: Callable[[], None],
    ) -> None:
        """Take ``has_readers`` and ``check_group``.

        ``has_readers`` returns whether every partition has a reader: this member may get a partition without a reader.
        ``check_group`` raises ServerUnreachable if the group cannot be joined now.
        """
        self._consumer = consumer
        self._servers: str = arguments.bootstrap_server
        self._timeout_s: float = arguments.timeout
        self._settings: Settings = arguments.settings
        self._left: int | None = arguments.max_records
        self._commits: bool = arguments.group is not None and not arguments.no_commit
        self._writer = writer
        self._output = output
        self._ends = plan.ends
        self._present = plan.present
        self._stopped = stopped
        self._has_readers = has_readers
        self._check_group = check_group
        self._written: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._ended: set[TopicPartition] = set()
        self._positions: dict[TopicPartition, int | None] = {}
        self._commit_due = monotonic() + COMMIT_S
        self._is_commit_failing = False
        self._moved_at = monotonic()
        self._is_silent = False
        self._count = 0
        self.has_joined = False

    # ------------------------------------------------------------------------------------- kafka-python's listener

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Note that the group has given this member its partitions, even if there are none."""
        self.has_joined = True
        self._ended &= self._consumer.assignment()
        if self._ended:
            self._consumer.pause(*self._ended)  # a new assignment ends the pause

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Commit what was written of partitions that another member gets."""
        self._commit()
        for key in revoked:
            self._written.pop(key, None)
            self._committed.pop(key, None)

    # ------------------------------------------------------------------------------------------------------------- loop

    def run(self) -> None:
        """Read until the end.

        Raises ServerUnreachable if an end that exists is not reached, CorruptRecordError at a damaged batch.
        """
        try:
            self._read()
        except CorruptRecordError:
            self._commit(is_last=True)  # here: from the listener, when the consumer closes, a failure hides this error
            raise
        self._commit(is_last=True)

    def _read(self) -> None:
        found: Mapping[TopicPartition, Sequence[Consumed]] = {}
        with Progress("consume", unit="records") as progress:
            while not self._stopped.signal and not self._is_done(found.keys()):
                wanted = POLL_RECORDS_MAX if self._left is None else min(self._left, POLL_RECORDS_MAX)
                found = self._consumer.poll(timeout_ms=POLL_MS, max_records=wanted)
                if found:
                    self._write(found)
                    if not sys.stdout.isatty():
                        progress.show(self._count)
                elif is_reader_gone(self._output):
                    raise BrokenPipeError
                if monotonic() >= self._commit_due:
                    self._commit()
                self._check_moving(bool(found))

    def _write(self, found: Mapping[TopicPartition, Sequence[Consumed]]) -> None:
        written = dict(self._written)
        for key, records in found.items():
            end = None if self._ends is None else self._ends.get(key)
            due = [record for record in records if end is None or record.offset < end]
            if due:
                write_whole(self._output, b"".join(map(self._writer, due)))
                written[key] = due[-1].offset + 1
                self._count += len(due)
                if self._left is not None:
                    self._left -= len(due)
        self._output.flush()
        self._written = written

    def _is_done(self, read: Collection[TopicPartition]) -> bool:
        """Return whether the end is reached; ``read`` are the partitions that the last poll had records of.

        A consumer's position costs some work.  The positions of other partitions are read when a poll had no records at
        all: only then can they have moved over offsets without any.
        """
        if self._left == 0:
            return True
        if self._ends is None or not self.has_joined:
            return False
        mine = self._consumer.assignment()
        for key in (mine.intersection(read) if read else mine) - self._ended:
            position = self._consumer.position(key, timeout_ms=0)
            if self._positions.get(key) != position:
                self._positions[key] = position
                self._moved_at = monotonic()  # also over offsets without records
            if position is not None and position >= self._ends.get(key, 0):
                self._consumer.pause(key)
                self._ended.add(key)
        return mine <= self._ended and self._has_readers()

    def _check_moving(self, has_found: bool) -> None:
        """Check the servers if no records have come for ``--timeout``.

        Raises ServerUnreachable if existing records are waited for, and no server sends them, or if this member cannot
        join its group since no coordinator serves it.  If new records are waited for, a line says that the servers do
        not respond, and reading continues when they do.
        """
        now = monotonic()
        if has_found:
            self._moved_at, self._is_silent = now, False
            return
        if now - self._moved_at < self._timeout_s:
            return
        self._moved_at = now
        try:
            knock(self._servers, self._timeout_s, self._settings)
        except ServerUnreachable as error:
            if self._ends is not None:
                raise
            if not self._is_silent:
                fail(f"{error}: waiting for it")
            self._is_silent = True
            return
        self._is_silent = False
        if not self.has_joined:
            self._check_group()
        if self._ends is not None and self.has_joined:
            left = sorted((self._consumer.assignment() - self._ended) & self._present)
            if left:
                raise ServerUnreachable(
                    f"{partition_name(left[0])} gave nothing for {self._timeout_s:g} s; try again, or see --timeout"
                )

    def _commit(self, *, is_last: bool = False) -> None:
        """Commit what was written, and the positions of the other partitions that this member has.

        Kafka's console consumer commits these too: the lag of a group counts only partitions with an offset.  A commit
        that may succeed later is tried again, even if no more records come; not if ``is_last``: leaving the group does
        not wait for one more try.
        """
        self._commit_due = monotonic() + COMMIT_S
        due = self._due() if self._commits else {}
        self._commits = self._commits and not is_last
        if not due:
            return
        offsets = {key: OffsetAndMetadata(offset, "", -1) for key, offset in due.items()}
        try:
            self._consumer.commit(offsets, timeout_ms=int(self._timeout_s * 1000))
        except KafkaError as error:
            is_later = not is_last and (error.retriable or isinstance(error, RebalanceInProgressError))
            if is_last or not self._is_commit_failing:
                again = "; the commit is tried again" if is_later else ""
                fail(f"note: not committed, others of the group may get these records again: {explain(error)}{again}")
            if is_later:
                self._is_commit_failing = True
                return
        else:
            self._committed.update(due)
        self._is_commit_failing = False
        self._written = {}

    def _due(self) -> dict[TopicPartition, int]:
        """Return the offsets to be committed, by partition, without offsets that are committed already.

        A position is past records that were not written if these are behind the end.
        """
        due = dict(self._written)
        for key in self._consumer.assignment():
            position = self._consumer.position(key, timeout_ms=0)
            if position is not None and (self._ends is None or position <= self._ends.get(key, position)):
                due[key] = position
        return {key: offset for key, offset in due.items() if self._committed.get(key) != offset}


def write_whole(output: BinaryIO, data: bytes) -> None:
    """Write all of ``data``: with PYTHONUNBUFFERED, a signal may make standard output write a part only."""
    left = memoryview(data)
    while left:
        left = left[output.write(left) :]


def is_reader_gone(output: BinaryIO) -> bool:
    """Return whether output is a pipe that nothing reads any more, without writing to it."""
    try:
        descriptor = output.fileno()
    except (OSError, ValueError):
        return False  # not a file of the system
    if os.name != "posix":
        return False
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def partition_name(key: TopicPartition) -> str:
    return f"partition {key.partition} of topic {key.topic}"

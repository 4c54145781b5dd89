"""``bmq produce``: records from standard input or files into a topic, over Kafka's protocol.

The client is kafka-python's producer: idempotent with ``--acks all``, and pure Python with wheels for its codecs, so it
is there wherever ``bmq`` is.  Unacknowledged records are bounded by number and bytes, and settled in the order of the
input, so that the first failed record is reported by its place.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from kafka import KafkaProducer
from kafka.errors import BrokerResponseError, KafkaError, KafkaTimeoutError

from bmq.cli.admin_client import (
    AdminClient,
    describe_code,
    explain,
    open_client,
)
from bmq.cli.exit_status import EXIT_REFUSED
from bmq.cli.output import fail, print_json, printable
from bmq.cli.progress import Progress
from bmq.cli.records.broker_errors import BrokerErrors
from bmq.cli.records.input import (
    RECORD_BYTES_MAX,
    FixedFields,
    InputError,
    InputRecord,
    JsonReader,
    RecordFormat,
    TextReader,
    join,
    split,
)
from bmq.cli.records.text import NotEncoded, decode
from bmq.cli.usage import UsageError
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused

PENDING_RECORDS_MAX = 20_000
PENDING_BYTES_MAX = 32 << 20
BATCH_BYTES = 128 << 10
"""Bytes: eight times Kafka's default, because a file is one long burst."""
LINGER_MS = 5
CHUNK_BYTES = 64 << 10
_CODE_IN_TEXT = re.compile(r"\[Error (\d+)\]")
EXIT_INTERRUPTED = 130


class Producer(Protocol):
    """The part of kafka-python's producer that is used; it documents what the methods return."""

    def send(self, topic: str, **record: Any) -> Any: ...
    def partitions_for(self, topic: str) -> set[int]: ...
    def close(self, timeout: float | None = None) -> None: ...


# ----------------------------------------------------------------------------------------------------------- command


def produce(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Produce all records of the input.  Returns 1 if a record is not acknowledged.

    Raises UsageError, RequestRefused or ServerUnreachable.
    """
    reader = _reader(arguments)
    inputs = _inputs(arguments)
    if not arguments.allow_auto_create_topics:
        _check_topic(admin, arguments.topic)
    timeout_ms = int(arguments.timeout * 1000)
    producer: Producer = open_client(
        KafkaProducer,
        arguments.bootstrap_server,
        arguments.timeout,
        arguments.settings,
        acks=arguments.acks if arguments.acks == "all" else int(arguments.acks),
        enable_idempotence=arguments.acks == "all",
        # Without sequence numbers a batch that is sent again would follow those sent after it.
        max_in_flight_requests_per_connection=5 if arguments.acks == "all" else 1,
        compression_type=None if arguments.compression == "none" else arguments.compression,
        batch_size=BATCH_BYTES,
        linger_ms=LINGER_MS,
        max_request_size=RECORD_BYTES_MAX,
        max_block_ms=timeout_ms,
        delivery_timeout_ms=timeout_ms + LINGER_MS,
        allow_auto_create_topics=arguments.allow_auto_create_topics,
        metrics_enabled=False,
    )
    errors = BrokerErrors()
    try:
        partitions = producer.partitions_for(arguments.topic)
        on_acknowledged = _print_place if arguments.json else None
        delivery = Delivery(producer, arguments.topic, partitions, arguments.timeout, on_acknowledged, errors)
        with errors.kept():
            return _run(arguments, reader, inputs, delivery)
    finally:
        with contextlib.suppress(KafkaTimeoutError):  # a second Ctrl-C leaves unacknowledged records
            producer.close(timeout=0)


def _run(arguments: argparse.Namespace, reader: RecordFormat, inputs: Iterable[Path | None], delivery: Delivery) -> int:
    status, problem = 0, ""
    is_typed = not arguments.files and sys.stdin.isatty()
    with Progress("produce", unit="records") as progress:
        try:
            for source in inputs:
                for place, data in _numbered(source, arguments):
                    record = _read(reader, place, data)
                    if record is not None:
                        delivery.send(place, record)
                        if not is_typed:
                            progress.show(delivery.acknowledged)
        except (InputError, NotDelivered) as error:
            status, problem = EXIT_REFUSED, str(error)
        except KeyboardInterrupt:
            status = EXIT_INTERRUPTED
        try:
            delivery.settle_all()
        except NotDelivered as error:
            status, problem = status or EXIT_REFUSED, problem or str(error)
    done = f"{_count(delivery.acknowledged)} produced to {arguments.topic}"
    if not arguments.json:
        print(printable(done))
    if problem:
        sys.stdout.flush()
        lost = f"; {_count(delivery.failed)} not acknowledged" if delivery.failed else ""
        fail(f"{problem} ({done}{lost})", status=status)
    return status


def _count(number: int) -> str:
    return "1 record" if number == 1 else f"{number} records"


def _print_place(place: Any) -> None:
    print_json(
        {"topic": place.topic, "partition": place.partition, "offset": place.offset, "timestamp": place.timestamp}
    )


def _check_topic(admin: AdminClient, topic: str) -> None:
    """Raise RequestRefused if there is no such topic: a producer would ask for it again and again."""
    (found,) = admin.describe_topics([topic])
    if found["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise RequestRefused(
            f"there is no topic {topic}; `bmq topic create {topic}` makes it, or use --allow-auto-create-topics"
        )
    if found["error_code"] != ErrorCode.NONE:
        right = f"Describe on topic {topic}"
        raise RequestRefused(f"topic {topic}: {describe_code(found['error_code'], right=right)}")


# ------------------------------------------------------------------------------------------------------------- input


def _inputs(arguments: argparse.Namespace) -> list[Path | None]:
    """Return the files to be read, None for standard input.  Raises UsageError if one cannot be read."""
    if not arguments.files:
        if sys.stdin.isatty():
            what = "one record" if arguments.format == "raw" else "records, one a line"
            print(f"bmq: reading {what} from the terminal; Ctrl-D ends", file=sys.stderr)
        return [None]
    for name in arguments.files:
        try:
            if not Path(name).is_fifo():  # the writer of a pipe would lose its data to the first that opens it
                Path(name).open("rb").close()
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror}") from None
    return [Path(name) for name in arguments.files]


def _numbered(source: Path | None, arguments: argparse.Namespace) -> Iterator[tuple[str, bytes]]:
    """Yield each record's place and bytes.  Raises InputError if a record or a file cannot be read."""
    name = "standard input" if source is None else str(source)
    number = 0
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if source is None else source.open("rb") as stream:
            chunks = iter(lambda: _chunk(stream), b"")
            records = join(chunks) if arguments.format == "raw" else split(chunks, arguments.delimiter)
            for number, data in enumerate(records, 1):
                yield f"{name}, record {number}", data
    except InputError as error:
        raise InputError(f"{name}, record {number + 1}: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror}") from None


def _chunk(stream: BinaryIO) -> bytes:
    """Return the bytes that are there, without waiting for more: a terminal's lines are produced as they come."""
    assert isinstance(stream, io.BufferedIOBase)
    return stream.read1(CHUNK_BYTES)


def _read(reader: RecordFormat, place: str, data: bytes) -> InputRecord | None:
    try:
        return reader.read(data)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _reader(arguments: argparse.Namespace) -> RecordFormat:
    """Return the rules of the format.  Raises UsageError for options that belong to another one."""
    is_text, is_json = arguments.format == "text", arguments.format == "json"
    if not is_text and (arguments.key_separator is not None or arguments.null is not None):
        raise UsageError("--key-separator and --null belong to --format text")
    if not is_json and (arguments.ignore_partition or arguments.ignore_timestamp):
        raise UsageError("--ignore-partition and --ignore-timestamp belong to --format json")
    if arguments.key is not None and arguments.key_separator is not None:
        raise UsageError("--key is the key of every record, --key-separator reads one from each: give one of them")
    try:
        key = None if arguments.key is None else decode(_as_bytes(arguments.key), arguments.key_encoding)
    except NotEncoded as error:
        raise UsageError(f"--key: {error}") from None
    fixed = FixedFields(key=key, headers=arguments.header, partition=arguments.partition, timestamp=arguments.timestamp)
    if is_json:
        return JsonReader(
            fixed=fixed,
            key_encoding=arguments.key_encoding,
            value_encoding=arguments.value_encoding,
            ignores_partition=arguments.ignore_partition,
            ignores_timestamp=arguments.ignore_timestamp,
        )
    return TextReader(
        fixed=fixed,
        key_separator=arguments.key_separator,
        key_encoding=arguments.key_encoding,
        value_encoding=arguments.value_encoding,
        null=None if arguments.null is None else _as_bytes(arguments.null),
    )


def _as_bytes(text: str) -> bytes:
    """Return an argument's bytes as the shell gave them."""
    return text.encode("utf-8", "surrogateescape")


# ---------------------------------------------------------------------------------------------------------- delivery


class NotDelivered(Exception):
    """A record is not acknowledged; ``str`` says which one and why."""


class _Pending(NamedTuple):
    place: str
    size: int
    has_key: bool
    future: Any


class Delivery:
    """Unacknowledged records, settled in the order in which they were sent."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        partitions: set[int],
        timeout_s: float,
        on_acknowledged: Callable[[Any], None] | None,
        errors: BrokerErrors,
    ) -> None:
        """Take ``on_acknowledged``, which is called with kafka-python's RecordMetadata of each record.

        ``errors``: the last errors of brokers, for the records that are not acknowledged in time.
        """
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._timeout_s = timeout_s
        self._on_acknowledged = on_acknowledged
        self._errors = errors
        self._pending: deque[_Pending] = deque()
        self._bytes = 0
        self._failed_with_batch: NotDelivered | None = None
        self.acknowledged = 0
        self.failed = 0

    def send(self, place: str, record: InputRecord) -> None:
        """Send a record; wait while too many are unacknowledged.  Raises NotDelivered, also for an earlier record."""
        if record.partition is not None and record.partition not in self._partitions:
            there = f"it has {len(self._partitions)}, from 0 up; --ignore-partition chooses one by the key"
            raise NotDelivered(f"{place}: topic {self._topic} has no partition {record.partition}: {there}")
        try:
            future = self._producer.send(
                self._topic,
                value=record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                timestamp_ms=record.timestamp,
            )
        except KafkaError as error:
            self.failed += 1
            raise NotDelivered(f"{place}: {self._why(error)}") from error
        size = len(record.key or b"") + len(record.value or b"")
        self._pending.append(_Pending(place, size, record.key is not None, future))
        self._bytes += size
        while self._pending and (
            len(self._pending) > PENDING_RECORDS_MAX
            or self._bytes > PENDING_BYTES_MAX
            or self._pending[0].future.is_done
        ):
            self._settle()

    def settle_all(self) -> None:
        """Wait for all records.  Raises NotDelivered for the first that failed, after all have ended.

        The error of a record that failed with its batch, because of another record, gives way to any other error.
        """
        first: NotDelivered | None = None
        while self._pending:
            try:
                self._settle()
            except NotDelivered as error:
                first = first or error
        first = first or self._failed_with_batch
        if first is not None:
            raise first

    def _settle(self) -> None:
        """Wait for the oldest record; if that is interrupted, it stays the oldest.

        Raises NotDelivered if the record failed, unless because of another record of its batch, whose error follows.
        """
        oldest = self._pending[0]
        try:
            # The producer's own limit ends before: this one is against waiting for ever.
            place = oldest.future.get(timeout=2 * self._timeout_s)
        except KafkaError as error:
            self._forget_oldest()
            self.failed += 1
            why = self._why(error, has_key=oldest.has_key)
            failure = NotDelivered(f"{oldest.place}: {why}")
            if type(error) is not KafkaError:
                raise failure from error
            self._failed_with_batch = self._failed_with_batch or failure  # KIP-467: kafka-python has no class for it
            return
        self._forget_oldest()
        self.acknowledged += 1
        if self._on_acknowledged is not None:
            self._on_acknowledged(place)

    def _forget_oldest(self) -> None:
        self._bytes -= self._pending.popleft().size

    def _why(self, error: KafkaError, *, has_key: bool = True) -> str:
        if not isinstance(error, KafkaTimeoutError):
            return _why(error, self._topic, has_key=has_key)
        code = self._errors.code_for(str(error))
        last = "" if code is None else f"; the broker's last error: {describe_code(code)}"
        return f"not acknowledged within {self._timeout_s:g} s{last}; it may have been written all the same"


def _why(error: KafkaError, topic: str, *, has_key: bool) -> str:
    code, message = _code_of(error)
    if code is None:
        return explain(error)
    is_of_cluster = code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    other = ", or IdempotentWrite on the cluster" if is_of_cluster else ""
    if code == ErrorCode.INVALID_RECORD and not has_key:
        return f"{describe_code(code, message)}; --key or --key-separator gives records a key"
    return describe_code(code, message, f"Write on topic {topic}{other}")


def _code_of(error: KafkaError) -> tuple[int | None, str | None]:
    """Return an error's Kafka code and message.  kafka-python has that of InitProducerId in a text only."""
    message = error.args[0] if error.args and isinstance(error.args[0], str) else None
    if isinstance(error, BrokerResponseError) and error.errno is not None:
        return error.errno, message
    found = _CODE_IN_TEXT.search(message or "")
    return (int(found[1]), None) if found else (None, message)

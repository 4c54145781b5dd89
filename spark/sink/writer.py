"""The sink: rows of a query to a topic, through the Kafka endpoint, on executors.

A task is done when every row of it is acknowledged.  The producer is idempotent: a row that it sends again itself is
stored once.  Rows that Spark sends again (of a task that failed or ran twice, of a micro-batch after a restart) are
stored again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from bmq.core.options import ConfigError
from bmq.core.security.client_settings import ClientSecuritySettings
from bmq.spark.sink.options import SinkOptions
from bmq.spark.sink.security import explain, is_final, producer_settings

_log = logging.getLogger("bmq.spark")

ROWS_BETWEEN_POLLS = 1000
"""Rows given to the producer between two checks for a row that failed."""
WAIT_S = 1.0
ANY_PARTITION = -1
NOW = 0
"""librdkafka's numbers for "no partition" and "no timestamp"; the second hides the first millisecond of 1970."""


class SinkError(Exception):
    """A row cannot be written, or was not acknowledged; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Acknowledged(WriterCommitMessage):
    """A finished task's message to the driver."""

    rows: int


class BmqWriter(DataSourceArrowWriter):
    """The sink of a batch query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Acknowledged:
        return write(self._options, iterator)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        log_kept_rows(messages)


def log_kept_rows(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log how many acknowledged rows of an aborted write stay: a topic takes nothing back."""
    rows = sum(each.rows for each in messages if isinstance(each, Acknowledged))
    _log.warning("the write was aborted; %d rows of finished tasks, and some of failed ones, stay in the topic", rows)


def write(options: SinkOptions, batches: Iterable[pa.RecordBatch]) -> Acknowledged:
    """Write every row of ``batches`` and return when all are acknowledged.

    Raises SinkError if one cannot be; the producer is then dropped with the rows that it holds.
    """
    sending = _Sending(_kept.producer(options), _kept)
    try:
        for batch in batches:
            sending.send(options, batch)
        sending.finish()
    except BaseException:
        _kept.give_up()
        raise
    return Acknowledged(sending.rows)


class _Sending:
    """One task's rows in the producer, not all of them acknowledged."""

    def __init__(self, producer: Producer, kept: _Kept) -> None:
        self._producer = producer
        self._kept = kept
        self._failed: str | None = None
        self._is_of_another = False  # the error is another row's: this row shared its batch
        self.rows = 0

    def send(self, options: SinkOptions, batch: pa.RecordBatch) -> None:
        for topic, key, value, partition, timestamp, headers in rows_of(options, batch):
            if topic is None:
                raise SinkError("null topic present in the data. Use the topic option for setting a default topic.")
            self._produce(topic, value, key, partition, timestamp, headers)
            self.rows += 1
            if not self.rows % ROWS_BETWEEN_POLLS:
                self._poll(0)

    def _produce(self, topic: str, *record: Any) -> None:
        value, key, partition, timestamp, headers = record
        while True:
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=self._on_failure, timestamp=timestamp, headers=headers
                )
                return
            except BufferError:  # bounded: rows that cannot go out fail after delivery.timeout.ms
                self._poll(WAIT_S)
            except KafkaException as error:
                size = len(key or b"") + len(value or b"")
                place = topic if partition == ANY_PARTITION else f"{topic}-{partition}"
                raise SinkError(f"a row of {size} bytes for {place} was refused: {error.args[0].str()}") from error

    def finish(self) -> None:
        while self._producer.flush(WAIT_S):
            self._poll(0)
        self._poll(0)

    def _poll(self, wait_s: float) -> None:
        self._producer.poll(wait_s)
        if self._failed is not None:
            raise SinkError(self._failed + self._kept.reason)
        if self._kept.refusal:
            raise SinkError(self._kept.refusal)

    def _on_failure(self, error: Any, message: Any) -> None:
        """Take the delivery report of a row that was not acknowledged, and keep the first one's error.

        An error of another row of its batch (KIP-467) gives way to that row's own.
        """
        if error is None:
            return
        is_of_another = error.code() == KafkaError._INVALID_DIFFERENT_RECORD
        if self._failed is None or (self._is_of_another and not is_of_another):
            self._is_of_another = is_of_another
            partition = message.partition()  # None before one was chosen
            place = message.topic() if partition is None or partition < 0 else f"{message.topic()}-{partition}"
            why = explain(error, message.topic(), has_key=message.key() is not None)
            self._failed = f"a row for {place} was not acknowledged: {why}"


class _Kept:
    """The producer of this process, kept for its next task: Spark reuses its Python processes."""

    def __init__(self) -> None:
        self._pid = 0
        self._options: tuple[dict[str, str], ClientSecuritySettings | None] = ({}, None)
        self._producer: Producer | None = None
        self.refusal = ""
        """Why no server takes this producer's rows, and no second try helps; empty as long as that is not so."""
        self.reason = ""
        """The last error of a connection, in brackets."""

    def producer(self, options: SinkOptions) -> Producer:
        """Return the producer for ``options``.

        Raises SinkError, which shows no secret, if librdkafka refuses a setting, or a file cannot be used.
        """
        wanted = (options.config, options.security)
        if self._producer is None or self._pid != os.getpid() or self._options != wanted:
            self.refusal = self.reason = ""
            try:
                own = {} if options.security is None else producer_settings(options.security)
                settings = {**options.config, **own, "error_cb": self._on_error, "delivery.report.only.error": True}
                self._producer = Producer(settings, logger=_log)
            except (KafkaException, ConfigError) as error:
                text = error.args[0].str() if isinstance(error, KafkaException) else error
                raise SinkError(f"a setting of kafka.* is wrong: {text}") from error
            self._pid, self._options = os.getpid(), wanted
        return self._producer

    def _on_error(self, error: Any) -> None:
        """Take an error of a connection: librdkafka goes on trying, whatever it is."""
        self.reason = f" ({error.str()})"
        if is_final(error):
            self.refusal = f"no row can be written: {error.str()}"

    def give_up(self) -> None:
        """Drop the producer and the rows that it holds: after some errors it takes no more."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


_kept = _Kept()

# ------------------------------------------------------------------------------------------------------------ rows

Row = tuple[Any, Any, Any, Any, Any, Any]


def rows_of(options: SinkOptions, batch: pa.RecordBatch) -> Iterator[Row]:
    """Return (topic, key, value, partition, timestamp, headers) of each row, as the producer takes them.

    Raises SinkError if a row has a value that cannot be written.
    """
    columns = {name: batch.column(name) for name in options.columns}
    count = batch.num_rows
    topics = columns["topic"].to_pylist() if "topic" in columns else [options.topic] * count
    return zip(
        topics,
        _bytes(columns.get("key"), count),
        _bytes(columns["value"], count),
        _numbers(columns.get("partition"), count, ANY_PARTITION),
        _milliseconds(columns.get("timestamp"), count),
        _headers(columns.get("headers"), count),
        strict=True,
    )


def _bytes(column: pa.Array | None, count: int) -> list[bytes | None]:
    return [None] * count if column is None else column.cast(pa.large_binary()).to_pylist()


def _numbers(column: pa.Array | None, count: int, none: int) -> list[int]:
    if column is None:
        return [none] * count
    if pc.min(column).as_py() is not None and pc.min(column).as_py() < 0:
        raise SinkError(f"there is no partition {pc.min(column).as_py()}")
    return list(column.fill_null(none).to_pylist())


def _milliseconds(column: pa.Array | None, count: int) -> list[int]:
    if column is None:
        return [NOW] * count
    times = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
    least = pc.min(times).as_py()
    if least is not None and least < 0:
        raise SinkError(f"a timestamp of {-least} ms before 1970 cannot be written")
    if least == NOW:  # librdkafka would write the present
        raise SinkError(
            "a timestamp of 1970-01-01 00:00:00.000 UTC cannot be written, because librdkafka takes it for none: use"
            " null for the present, or the next millisecond"
        )
    return list(times.fill_null(NOW).to_pylist())


def _headers(column: pa.Array | None, count: int) -> list[list[tuple[str, bytes | None]] | None]:
    if column is None:
        return [None] * count
    return [None if each is None else [_header(header) for header in each] for each in column.to_pylist()]


def _header(header: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise SinkError("a header without a key cannot be written")
    return header["key"], header["value"]

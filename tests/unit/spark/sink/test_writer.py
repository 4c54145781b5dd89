"""The sink's rows, and what it does when a producer fails."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql.datasource import CaseInsensitiveDict

from bmq.spark import BmqDataSource
from bmq.spark.sink import writer as sink
from bmq.spark.sink.writer import BmqWriter, SinkError, rows_of, write
from tests.unit.spark.sink.writes import HEADERS, SERVERS, options, schema


def test_the_source_gives_a_writer() -> None:
    source = BmqDataSource(CaseInsensitiveDict(SERVERS | {"Topic": "t"}))
    assert isinstance(source.writer(schema("value string"), overwrite=False), BmqWriter)


@pytest.mark.needs_spark("stream writer")
def test_the_source_gives_a_writer_of_streams() -> None:
    from bmq.spark.sink.stream_writer import BmqStreamWriter

    source = BmqDataSource(CaseInsensitiveDict(SERVERS | {"Topic": "t"}))
    assert isinstance(source.streamWriter(schema("value string"), overwrite=False), BmqStreamWriter)


EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def test_rows_are_passed_to_the_producer() -> None:
    ddl = f"offset bigint, topic string, key string, value binary, {HEADERS}, partition int, timestamp timestamp"
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch(
        {
            "offset": pa.array([1, 2, 3]),
            "topic": pa.array(["a", None, "b"]),
            "key": pa.array(["k", None, ""]),
            "value": pa.array([b"v", b"", None]),
            "headers": pa.array([[("h", b"1"), ("h", None)], None, []], kind),
            "partition": pa.array([3, None, 0], pa.int32()),
            "timestamp": pa.array([EPOCH, None, EPOCH], pa.timestamp("us", tz="UTC")),
        }
    )
    milliseconds = int(EPOCH.timestamp() * 1000)
    headers = [("h", b"1"), ("h", None)]
    assert list(rows_of(options(ddl), batch)) == [
        ("a", b"k", b"v", 3, milliseconds, headers),
        (None, None, b"", -1, 0, None),
        ("b", b"", None, 0, milliseconds, []),
    ]
    named = options(ddl, topic="all")
    assert [row[0] for row in rows_of(named, batch)] == ["all"] * 3, "the option goes before the column"
    plain = pa.record_batch({"value": pa.array(["x"], pa.large_string())})
    assert list(rows_of(options(topic="t"), plain)) == [("t", None, b"x", -1, 0, None)]


@pytest.mark.parametrize(
    ("ddl", "column", "text"),
    [
        ("partition int", pa.array([-1], pa.int32()), "there is no partition -1"),
        ("timestamp timestamp", pa.array([-1000], pa.timestamp("us", tz="UTC")), "1 ms before 1970"),
        ("timestamp timestamp", pa.array([999, 1000], pa.timestamp("us", tz="UTC")), "1970-01-01 00:00:00.000 UTC"),
        (
            HEADERS,
            pa.array([[(None, b"")]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            "a header without a key",
        ),
        ("topic string", pa.array([None], pa.string()), "null topic present in the data"),
    ],
)
def test_rows_that_cannot_be_written_are_named(ddl: str, column: pa.Array, text: str, producer: list[Working]) -> None:
    name = ddl.partition(" ")[0]
    wanted = options(f"value string, {ddl}", **({} if name == "topic" else {"topic": "t"}))
    with pytest.raises(SinkError, match=text):
        write(wanted, [pa.record_batch({"value": pa.array(["v"] * len(column)), name: column})])
    assert producer[0].is_purged, "what it holds is not to be sent"


class Message:
    def __init__(self, topic: str, partition: int) -> None:
        self._place = topic, partition

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int | None:
        return None if self._place[1] == sink.ANY_PARTITION else self._place[1]

    def key(self) -> bytes | None:
        return None


class Working:
    """A producer with room for ``room`` rows, which are acknowledged when it is asked, or fail as ``error`` says."""

    room = 10
    error: KafkaError | None = None
    refusal: Exception | None = None

    def __init__(self, config: dict[str, Any], **_: Any) -> None:
        self.config = config
        self.waiting: list[Any] = []
        self.written = 0
        self.is_purged = False

    def produce(self, topic: str, value: Any, key: Any, partition: int, *, on_delivery: Any, **_: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        if len(self.waiting) == self.room:
            raise BufferError
        self.waiting.append((on_delivery, Message(topic, partition)))

    def poll(self, _: float) -> None:
        for report, message in self.waiting:
            error = self.error
            if error is None:
                self.written += 1
            else:
                report(error, message)
        self.waiting.clear()

    def flush(self, _: float) -> int:
        left = len(self.waiting)
        self.poll(0)
        return left

    def purge(self) -> None:
        self.is_purged = True


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Working]]:
    """Yield the list of producers that were made."""
    made: list[Working] = []

    def make(config: dict[str, Any], **given: Any) -> Working:
        made.append(Working(config, **given))
        return made[-1]

    monkeypatch.setattr(sink, "Producer", make)
    monkeypatch.setattr(sink, "_kept", sink._Kept())
    yield made
    sink._kept.give_up()


def values(count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(["v"] * count)})


def test_a_task_is_done_when_every_row_is_acknowledged(producer: list[Working]) -> None:
    assert write(options(topic="t"), [values(2500), values(0), values(33)]).rows == 2533
    assert producer[0].written == 2533
    write(options(topic="other"), [values(1)])
    assert len(producer) == 1, "kept for the next task"
    write(options(topic="t", **{"kafka.linger.ms": "9"}), [values(1)])
    assert len(producer) == 2


def test_a_row_that_is_not_acknowledged_fails_the_task(producer: list[Working], monkeypatch: Any) -> None:
    monkeypatch.setattr(Working, "error", KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises(SinkError, match="a row for t was not acknowledged: Local: Message timed out"):
        write(options(topic="t"), [values(1)])
    with pytest.raises(SinkError, match="not acknowledged"):
        write(options(topic="t"), [values(50)])
    assert [each.is_purged for each in producer] == [True, True], "one that failed is not used again"


def test_the_row_that_its_batch_was_refused_for_is_reported(producer: list[Working], monkeypatch: Any) -> None:
    """The rows that shared its batch fail before it, with an error that says no more than that (KIP-467)."""
    of_another = KafkaError(KafkaError._INVALID_DIFFERENT_RECORD)
    errors = iter([of_another, KafkaError(KafkaError.INVALID_RECORD), of_another])
    monkeypatch.setattr(Working, "error", property(lambda _: next(errors)))
    with pytest.raises(SinkError, match=r"\(INVALID_RECORD\): a topic whose cleanup.policy has compact needs a key"):
        write(options(topic="t"), [values(3)])


def test_a_row_that_is_refused_fails_the_task(producer: list[Working], monkeypatch: Any) -> None:
    error = KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    monkeypatch.setattr(Working, "refusal", error)
    with pytest.raises(SinkError, match="a row of 1 bytes for t was refused: Broker: Message size too large"):
        write(options(topic="t"), [values(1)])
    assert producer[0].is_purged


def test_an_unknown_setting_of_the_producer_fails_the_write() -> None:
    wanted = options(topic="t", **{"kafka.nonsense": "1"})
    with pytest.raises(SinkError, match='No such configuration property: "nonsense"'):
        write(wanted, [values(1)])


def test_rows_that_stay_in_the_topic_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    sink.log_kept_rows([sink.Acknowledged(7), None])
    assert "7 rows of finished tasks" in caplog.text

"""``bmq produce``: input to records, reports of records that are not acknowledged, bounds."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import (
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NotEnoughReplicasError,
)

from bmq.cli.records import produce
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition
from tests.unit.cli.fake_clients import FakeFuture, FakeProducer

pytestmark = pytest.mark.slow

Run = Callable[..., int]
Told = pytest.CaptureFixture[str]


class Stdin:
    """Standard input that is not a terminal."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


@pytest.fixture
def producer(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    admin.add_topic("orders", FakePartition(), FakePartition())
    fake = FakeProducer()

    def open_client(make: object, servers: str, timeout_s: float, settings: object, **configs: Any) -> FakeProducer:
        return fake(**configs)

    monkeypatch.setattr(produce, "open_client", open_client)
    return fake


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    return lambda data: monkeypatch.setattr(sys, "stdin", Stdin(data))


def values(producer: FakeProducer) -> list[bytes]:
    return [each["value"] for each in producer.sent]


def test_lines(bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told) -> None:
    stdin(b"one\ntwo\n\nlast")
    assert bmq("produce", "orders", "--header", "a=b=c", "--partition", "1", "--timestamp", "@9") == 0
    assert values(producer) == [b"one", b"two", b"", b"last"]
    assert producer.sent[0] == {
        "topic": "orders",
        "value": b"one",
        "key": None,
        "headers": [("a", b"b=c")],
        "partition": 1,
        "timestamp_ms": 9,
    }
    assert capsys.readouterr().out == "4 records produced to orders\n"
    assert producer.is_closed
    assert producer.configs["acks"] == "all"
    assert producer.configs["enable_idempotence"] is True
    assert producer.configs["allow_auto_create_topics"] is False


def test_no_input(bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told) -> None:
    stdin(b"")
    assert bmq("produce", "orders") == 0
    assert capsys.readouterr().out == "0 records produced to orders\n"


def test_keys_and_delivery(bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None]) -> None:
    stdin(b"k:v\0l:w\0")
    words = ["--delimiter", "\\0", "--key-separator", ":", "--acks", "1", "--compression", "zstd"]
    assert bmq("produce", "orders", *words) == 0
    assert [(each["key"], each["value"]) for each in producer.sent] == [(b"k", b"v"), (b"l", b"w")]
    assert producer.configs["acks"] == 1
    assert producer.configs["enable_idempotence"] is False
    assert producer.configs["compression_type"] == "zstd"


def test_files_and_places_as_json(bmq: Run, producer: FakeProducer, tmp_path: Path, capsys: Told) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"%s\x00\n" % name.encode())
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert bmq("produce", "orders", *files, "--format", "raw", "--key", "00ff", "--key-encoding", "hex", "--json") == 0
    assert [(each["key"], each["value"]) for each in producer.sent] == [
        (b"\x00\xff", b"a\x00\n"),
        (b"\x00\xff", b"b\x00\n"),
    ]
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"topic": "orders", "partition": 0, "offset": offset, "timestamp": 5} for offset in (0, 1)
    ]


def test_json(bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None]) -> None:
    stdin(b'{"key": "k", "value": "v", "partition": 7, "timestamp": 9}\n\n')
    assert bmq("produce", "orders", "--format", "json", "--ignore-partition") == 0
    assert [(each["key"], each["partition"], each["timestamp_ms"]) for each in producer.sent] == [(b"k", None, 9)]


def test_a_record_that_cannot_be_read(
    bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told
) -> None:
    """Put a record without a key separator between two others: only the one before it is produced."""
    stdin(b"a:1\nb\nc:3\n")
    assert bmq("produce", "orders", "--key-separator", ":") == 1
    assert values(producer) == [b"1"]
    out, err = capsys.readouterr()
    assert out == "1 record produced to orders\n"
    assert err == "bmq: standard input, record 2: no key separator b':' (1 record produced to orders)\n"


def test_a_partition_that_is_not_there(
    bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told
) -> None:
    stdin(b'{"value": "a", "partition": 0}\n{"value": "b", "partition": 9}\n')
    assert bmq("produce", "orders", "--format", "json") == 1
    assert "record 2: topic orders has no partition 9: it has 2, from 0 up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (KafkaTimeoutError("x"), "not acknowledged within 30 s; it may have been written all the same"),
        (NotEnoughReplicasError(), "NOT_ENOUGH_REPLICAS"),
        (MessageSizeTooLargeError("larger than max.message.bytes"), "MESSAGE_TOO_LARGE"),
    ],
)
@pytest.mark.parametrize("answers", [False, True])
def test_the_first_that_fails_is_named(
    error: Exception,
    why: str,
    answers: bool,
    bmq: Run,
    producer: FakeProducer,
    stdin: Callable[[bytes], None],
    capsys: Told,
) -> None:
    """Let two records fail, at once or at the end: those in flight are waited for and counted."""
    producer.answers = answers
    producer.failing = {b"b": error, b"c": error}
    stdin(b"a\nb\nc\nd\n")
    assert bmq("produce", "orders") == 1
    out, err = capsys.readouterr()
    assert err.startswith("bmq: standard input, record 2: ")
    assert why in err
    done, lost = (1, 1) if answers else (2, 2)
    assert out == f"{done} record{'s' if done > 1 else ''} produced to orders\n"
    assert f"; {lost} record{'s' if lost > 1 else ''} not acknowledged)" in err


def test_a_record_that_is_late_is_reported_with_the_brokers_last_error(
    bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = TopicPartition("orders", 0)
    send = producer.send

    def log_and_send(topic: str, **record: Any) -> FakeFuture:
        logging.getLogger("kafka.producer.sender").warning("%s: retrying after %s", key, "NotEnoughReplicasError")
        return send(topic, **record)

    monkeypatch.setattr(producer, "send", log_and_send)
    producer.failing = {b"a": KafkaTimeoutError(f"Expiring 1 record(s) for {key}: 30000 ms has passed")}
    stdin(b"a\n")
    assert bmq("produce", "orders") == 1
    error = capsys.readouterr().err
    assert "not acknowledged within 30 s; the broker's last error: storage has fewer copies" in error
    assert "(NOT_ENOUGH_REPLICAS); it may have been written all the same" in error


@pytest.mark.parametrize("answers", [False, True])
def test_the_bad_record_of_a_batch_is_named_not_the_others(
    answers: bool, bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told
) -> None:
    """KIP-467: a batch that is refused for its second record fails the first one, too."""
    producer.answers = answers
    bad = InvalidRecordError("Compacted topic cannot accept message without key")
    producer.failing = {b"a": KafkaError("part of a batch"), b"b": bad}
    stdin(b"a\nb\n")
    assert bmq("produce", "orders") == 1
    err = capsys.readouterr().err
    assert err.startswith("bmq: standard input, record 2: Compacted topic cannot accept message without key")
    assert "--key or --key-separator gives records a key" in err
    assert "2 records not acknowledged" in err


def test_a_record_that_the_producer_refuses(
    bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told
) -> None:
    producer.too_large = {b"b"}
    stdin(b"a\nb\nc\n")
    assert bmq("produce", "orders") == 1
    assert "record 2: The message is 200 bytes" in capsys.readouterr().err
    assert values(producer) == [b"a"]


def test_ctrl_c_keeps_what_was_read(bmq: Run, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            if self.tell():
                raise KeyboardInterrupt
            return super().read1(size)

    stdin = Stdin(b"")
    stdin.buffer = Interrupted(b"a\nb\n")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert bmq("produce", "orders") == 130
    assert values(producer) == [b"a", b"b"]
    assert producer.is_closed


def test_ctrl_c_while_it_waits_loses_no_record(
    bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    """The one that was waited for is waited for again, and counted."""
    monkeypatch.setattr(produce, "PENDING_RECORDS_MAX", 1)
    interrupts = iter([KeyboardInterrupt()])
    get = FakeFuture.get

    def interrupted(future: FakeFuture, timeout: float) -> Any:
        for interrupt in interrupts:
            raise interrupt
        return get(future, timeout)

    monkeypatch.setattr(FakeFuture, "get", interrupted)
    stdin(b"a\nb\nc\n")
    assert bmq("produce", "orders") == 130
    assert values(producer) == [b"a", b"b"]
    assert capsys.readouterr().out == "2 records produced to orders\n"


@pytest.mark.parametrize(("acks", "requests"), [("all", 5), ("1", 1), ("0", 1)])
def test_a_batch_that_is_sent_again_overtakes_none(
    acks: str, requests: int, bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None]
) -> None:
    stdin(b"a\n")
    assert bmq("produce", "orders", "--acks", acks) == 0
    assert producer.configs["enable_idempotence"] is (acks == "all")
    assert producer.configs["max_in_flight_requests_per_connection"] == requests


def test_no_such_topic(bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], capsys: Told) -> None:
    stdin(b"a\n")
    assert bmq("produce", "missing") == 1
    assert "there is no topic missing; `bmq topic create missing` makes it" in capsys.readouterr().err
    assert bmq("produce", "missing", "--allow-auto-create-topics") == 0
    assert producer.configs["allow_auto_create_topics"] is True


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--format", "json", "--key-separator", ":"], "belong to --format text"),
        (["--format", "raw", "--null", ""], "belong to --format text"),
        (["--ignore-partition"], "belong to --format json"),
        (["--key", "k", "--key-separator", ":"], "give one of them"),
        (["--key", "k", "--key-encoding", "hex"], "--key: not hex"),
        (["--header", "\udcff=v"], "header: '\\udcff' is not UTF-8"),
        (["/nowhere/file"], "cannot read /nowhere/file: No such file"),
    ],
)
def test_wrong_usage(words: list[str], why: str, bmq: Run, producer: FakeProducer, capsys: Told) -> None:
    assert bmq("produce", "orders", *words) == 2
    assert why in capsys.readouterr().err


def test_arguments_that_are_bytes(bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None]) -> None:
    """Keys, values of headers and names of files need not be UTF-8."""
    stdin(b"a\n")
    assert bmq("produce", "orders", "--key", "\udcff", "--header", "h=\udcfe") == 0
    assert producer.sent[0]["key"] == b"\xff"
    assert producer.sent[0]["headers"] == [("h", b"\xfe")]


def test_a_folder_is_no_input(bmq: Run, producer: FakeProducer, tmp_path: Path, capsys: Told) -> None:
    assert bmq("produce", "orders", str(tmp_path)) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_a_named_pipe_is_opened_once(bmq: Run, producer: FakeProducer, tmp_path: Path) -> None:
    """Read a named pipe: closed once, it would lose its writer's data, and its other end would not be opened again."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(["sh", "-c", 'printf "one\\ntwo\\n" > "$0"', str(pipe)])
    try:
        assert bmq("produce", "orders", str(pipe)) == 0
        assert values(producer) == [b"one", b"two"]
        assert writer.wait() == 0
    finally:
        writer.kill()


@pytest.mark.parametrize(("records", "size"), [(3, 10**9), (10**9, 25)])
def test_what_is_on_its_way_is_bounded(
    records: int,
    size: int,
    bmq: Run,
    producer: FakeProducer,
    stdin: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(produce, "PENDING_RECORDS_MAX", records)
    monkeypatch.setattr(produce, "PENDING_BYTES_MAX", size)
    waited = []
    settle = produce.Delivery._settle

    def count(delivery: produce.Delivery) -> None:
        waited.append(len(delivery._pending))
        settle(delivery)

    monkeypatch.setattr(produce.Delivery, "_settle", count)
    stdin(b"12345678\n" * 10)
    assert bmq("produce", "orders") == 0
    assert max(waited) == 4
    assert len(producer.sent) == 10


def test_a_terminal_is_told_what_to_do(
    bmq: Run, producer: FakeProducer, stdin: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch, capsys: Told
) -> None:
    stdin(b"a\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert bmq("produce", "orders") == 0
    assert "reading records, one a line from the terminal; Ctrl-D ends" in capsys.readouterr().err

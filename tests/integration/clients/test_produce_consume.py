"""`bmq produce` and `bmq consume` as processes against a running server, and against Apache Kafka just the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.clients.endpoint import Endpoint

pytestmark = [pytest.mark.clients]

BMQ = Path(sys.executable).with_name("bmq")
TIMEOUT_S = 120
Bmq = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def environment(endpoint: Endpoint, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "BMQ_BOOTSTRAP": endpoint.bootstrap, "XDG_CONFIG_HOME": str(tmp_path), "BMQ_PROFILE": ""}


@pytest.fixture
def bmq(environment: dict[str, str]) -> Bmq:
    def run(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [BMQ, *words, "--timeout", "60"], input=data, capture_output=True, timeout=TIMEOUT_S, env=environment
        )

    return run


@pytest.fixture
def topic(endpoint: Endpoint) -> Iterator[str]:
    """Yield the name of a new topic of three partitions."""
    name = f"records-{uuid.uuid4().hex[:10]}"
    admin = AdminClient({"bootstrap.servers": endpoint.bootstrap})
    admin.create_topics([NewTopic(name, 3, 1)])[name].result(60)
    yield name
    admin.delete_topics([name])[name].result(60)


def done(result: subprocess.CompletedProcess[bytes]) -> bytes:
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


@pytest.mark.smoke
def test_records_come_back_as_they_were_given(bmq: Bmq, topic: str) -> None:
    """JSON lines carry everything: keys, values that are no text, nulls, headers, partitions, timestamps."""
    records: list[dict[str, object]] = [
        {"key": "a", "value": "ä", "headers": [{"key": "h", "value": "1"}], "partition": 2, "timestamp": 1_000},
        {"key": None, "value": {"base64": "AP8="}, "headers": [], "partition": 2, "timestamp": 2_000},
        {"key": {"base64": "/w=="}, "value": None, "headers": [], "partition": 0, "timestamp": 3_000},
    ]
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in records)
    assert done(bmq("produce", topic, "--format", "json", data=lines)) == f"3 records produced to {topic}\n".encode()
    printed = done(bmq("consume", topic, "--to", "latest", "--json"))
    found = {(each["partition"], each["offset"]): each for each in map(json.loads, printed.splitlines())}
    assert sorted(found) == [(0, 0), (2, 0), (2, 1)]
    for (_, offset), each in found.items():
        assert each == {"topic": topic, "offset": offset, **records[offset if each["partition"] == 2 else 2]}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_codecs_of_others(codec: str, bmq: Bmq, topic: str, endpoint: Endpoint) -> None:
    """librdkafka reads what is produced here, and what it produced is read here."""
    data = b"".join(b"key%d\tvalue number %d\n" % (number, number) for number in range(1_000))
    done(bmq("produce", topic, "--key-separator", "\\t", "--partition", "0", "--compression", codec, data=data))
    consumer = Consumer({"bootstrap.servers": endpoint.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        messages = consumer.consume(1_000, timeout=60)
    finally:
        consumer.close()
    assert b"".join(b"%s\t%s\n" % (each.key(), each.value()) for each in messages) == data
    producer = Producer({"bootstrap.servers": endpoint.bootstrap, "compression.type": codec})
    for number in range(1_000):
        producer.produce(topic, value=b"from librdkafka, number %d" % number, partition=1)
    assert producer.flush(60) == 0
    printed = done(bmq("consume", topic, "--partition", "1", "--to", "latest"))
    assert printed.splitlines() == [b"from librdkafka, number %d" % number for number in range(1_000)]


def test_a_group_goes_on_where_it_ended(bmq: Bmq, topic: str) -> None:
    lines = [b"%d" % number for number in range(100)]
    done(bmq("produce", topic, "--partition", "1", data=b"\n".join(lines)))
    first = done(bmq("consume", topic, "--group", topic, "--max-records", "30"))
    rest = done(bmq("consume", topic, "--group", topic, "--to", "latest"))
    assert (first + rest).splitlines() == lines
    assert len(first.splitlines()) == 30
    described = json.loads(done(bmq("group", "describe", topic, "--json")))
    assert {each["lag"] for each in described["offsets"] if each["committed"] is not None} == {0}
    done(bmq("group", "delete", topic))


def test_places(bmq: Bmq, topic: str) -> None:
    """Ten records a second apart, in one partition."""
    for number in range(10):
        done(bmq("produce", topic, "--partition", "0", "--timestamp", f"@{number * 1_000}", data=b"%d" % number))
    expected = {
        ("--from", "-3"): "789",
        ("--from", "@4500"): "56789",
        ("--from", "1970-01-01T00:00:02", "--to", "1970-01-01T00:00:05"): "234",
        ("--from", "2", "--to", "4"): "23",
        ("--from", "latest"): "",
    }
    for words, digits in expected.items():
        words = words if "--to" in words else (*words, "--to", "latest")
        assert done(bmq("consume", topic, "--partition", "0", "--format", "raw", *words)).decode() == digits, words


def _line(process: subprocess.Popen[bytes]) -> bytes:
    """Return the next line of the process's output; kill a process that prints none in `TIMEOUT_S`."""
    assert process.stdout is not None
    timer = threading.Timer(TIMEOUT_S, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_following_until_a_signal(
    number: signal.Signals, status: int, bmq: Bmq, topic: str, environment: dict[str, str]
) -> None:
    """Records that come later are printed; the member leaves its group with what it printed committed."""
    words = [str(BMQ), "consume", topic, "--group", topic]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        done(bmq("produce", topic, data=b"one\n"))
        assert _line(process) == b"one\n"
        done(bmq("produce", topic, data=b"two\n"))
        assert _line(process) == b"two\n"
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == status
        assert process.stderr.read() == b""
    described = json.loads(done(bmq("group", "describe", topic, "--json")))
    assert described["members"] == []
    assert sum(each["committed"] or 0 for each in described["offsets"]) == 2


def test_a_reader_that_goes_ends_it(bmq: Bmq, topic: str, environment: dict[str, str]) -> None:
    """`bmq consume | head -1` ends although no further record comes."""
    done(bmq("produce", topic, data=b"one\n"))
    with subprocess.Popen(
        [BMQ, "consume", topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert _line(process) == b"one\n"
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 141
        assert process.stderr.read() == b""


def test_what_the_server_refuses(bmq: Bmq, topic: str) -> None:
    """The record is named by its place; those before it are there."""
    result = bmq("produce", topic, "--partition", "0", data=b"small\n" + b"x" * 2_000_000 + b"\nlater\n")
    assert result.returncode == 1
    assert b"standard input, record 2: " in result.stderr
    assert b"MESSAGE_TOO_LARGE" in result.stderr
    printed = done(bmq("consume", topic, "--to", "latest")).splitlines()
    assert printed[0] == b"small"
    assert set(printed) <= {b"small", b"later"}
    missing = bmq("produce", "there-is-no-such-topic", data=b"x\n")
    assert (missing.returncode, b"there is no topic" in missing.stderr) == (1, True)

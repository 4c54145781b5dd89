"""Story that every client is put through. A test file of a client is this class with a driver.

Names are new in each test, so that tests neither see nor clean up one another's; waiting is for conditions, bounded by
the driver's time-out.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Sequence

import pytest

from tests.integration.clients.drivers.base import CODECS, Driver, GroupState, Message, Record
from tests.integration.clients.endpoint import Endpoint
from tests.integration.clients.wire import batch_headers
from tests.services.processes import wait_for

PARTITIONS = 3
MESSAGES = 60  # a partition
BLOCK = 20  # messages in a row with the same headers, for kcat's sake, whose headers belong to a whole run
LARGE_BYTES = 200_000
STEP_MS = 1_000
WAIT_S = 20.0
WORDS = [b"partition", b"leader", b"segment", b"offset", b"epoch", b"replica", b"\x00\xff\x80", "größe".encode()]
HEADERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
    (),
    (("trace", b"a1"), ("content-type", b"text/plain")),
    (("trace", b"1"), ("trace", b"2"), ("nothing", None)),
)


def messages_for(driver: Driver, *, seed: str, count: int = MESSAGES, partitions: int = PARTITIONS) -> list[Message]:
    """Return messages of every kind that this driver can send, the same for a seed, times rising in each partition.

    Keys and values may be null; they are text that compresses: a client may send what does not compress as it is.
    """
    chance = random.Random(seed)
    first_time = int(time.time() * 1000) - 3_600_000
    found = []
    for partition in range(partitions):
        for number in range(count):
            value: bytes | None = b" ".join(chance.choices(WORDS, k=chance.randrange(20, 60)))
            if number % 17 == 3:
                value = None
            elif number % 17 == 5 and "empty value" not in driver.cannot_send:
                value = b""
            elif number == 7:
                value = b"large " * (LARGE_BYTES // 6)
            key: bytes | None = f"key-{chance.randrange(10)}".encode()
            if number % 5 == 4 and (value is not None or "null message" not in driver.cannot_send):
                key = None
            headers = HEADERS[number // BLOCK % len(HEADERS)]
            if "null header" in driver.cannot_send:
                headers = tuple((name, text) for name, text in headers if text is not None)
            found.append(Message(partition, key, value, headers, first_time + number * STEP_MS))
    return found


def new_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def require_same(sent: Sequence[Message], received: Sequence[Record], driver: Driver, topic: str) -> None:
    """Require each message once, in order, with equal bytes, and with equal times if the driver can choose them."""
    for partition in sorted({message.partition for message in sent}):
        wanted = [message for message in sent if message.partition == partition]
        found = [each for each in received if each.topic == topic and each.message.partition == partition]
        assert [each.offset for each in found] == list(range(len(wanted))), f"offsets of {topic}-{partition}"
        for message, each in zip(wanted, found, strict=True):
            seen = (each.message.key, each.message.value, each.message.headers)
            assert seen == (message.key, message.value, message.headers), f"{topic}-{partition} at {each.offset}"
            if "timestamp" not in driver.cannot_send:
                assert each.message.timestamp == message.timestamp, f"{topic}-{partition} at {each.offset}"
    assert len(received) == len({(each.topic, each.message.partition, each.offset) for each in received})


def require_offsets_for_time(driver: Driver, topic: str, sent: Sequence[Message]) -> None:
    """Require the offsets at a time, between two times, before all and after all, which are equal in all partitions."""
    times = [message.timestamp for message in sent if message.partition == 0]
    expected = {times[0] - 5 * STEP_MS: 0, times[11]: 11, times[11] + STEP_MS // 2: 12, times[-1] + 1: -1}
    for timestamp, offset in expected.items():
        assert driver.offsets_for_time(topic, timestamp) == dict.fromkeys(range(PARTITIONS), offset)


class Story:
    """The tests; a subclass names its driver in ``kind``, which the conftest's fixture ``driver`` makes."""

    kind: type[Driver]

    @pytest.fixture
    def topic(self, driver: Driver) -> str:
        """Return the name of a new topic, which the client itself has created."""
        topic = new_name(driver.name)
        driver.create_topic(topic, PARTITIONS)
        wait_for(lambda: driver.partitions(topic) == PARTITIONS, topic, timeout_s=WAIT_S)
        return topic

    @pytest.fixture(autouse=True)
    def skip_lacking(self, request: pytest.FixtureRequest) -> None:
        """Skip a test of something that this library does not have."""
        reason = request.cls.kind.lacks.get(request.node.originalname.removeprefix("test_"))
        if reason:
            pytest.skip(reason)

    @pytest.mark.parametrize("codec", CODECS)
    def test_produce_consume(self, driver: Driver, endpoint: Endpoint, topic: str, codec: str) -> None:
        """An idempotent producer with this codec: a group reads back everything, and the log holds it as was asked."""
        if codec not in driver.codecs:
            pytest.skip(f"{driver.name} has no {codec}")
        sent = messages_for(driver, seed=codec)
        driver.produce(topic, sent, codec)
        require_same(sent, driver.consume([topic], new_name("group"), len(sent)), driver, topic)
        for partition in range(PARTITIONS):
            headers = batch_headers(endpoint.bootstrap, topic, partition)
            assert {header.codec for header in headers} == {codec}
            assert all(header.producer_id >= 0 for header in headers), "no producer id: not idempotent"

    def test_produce_plain(self, driver: Driver, endpoint: Endpoint, topic: str) -> None:
        """A producer without idempotence."""
        sent = messages_for(driver, seed="plain")
        driver.produce(topic, sent, "none", is_idempotent=False)
        require_same(sent, driver.consume([topic], new_name("group"), len(sent)), driver, topic)
        assert {header.producer_id for header in batch_headers(endpoint.bootstrap, topic, 0)} == {-1}

    def test_continue(self, driver: Driver, topic: str) -> None:
        """A second consumer goes on exactly where the first one committed; another group starts at the beginning."""
        sent = messages_for(driver, seed="continue")
        driver.produce(topic, sent, "zstd" if "zstd" in driver.codecs else "gzip")
        group, part = new_name("group"), len(sent) // 3
        first = driver.consume([topic], group, part)
        second = driver.consume([topic], group, len(sent) - part)
        assert len(first) == part
        require_same(sent, [*first, *second], driver, topic)
        require_same(sent, driver.consume([topic], new_name("group"), len(sent)), driver, topic)

    def test_rebalance(self, driver: Driver, topic: str, assignor: str) -> None:
        """One member has all; with a second one they share; when the first leaves, the second has all."""
        moves = driver.rebalance(topic, new_name("group"), assignor)
        everything = frozenset(range(PARTITIONS))
        assert moves.alone == moves.left == everything
        assert moves.first
        assert moves.second
        assert moves.first | moves.second == everything
        assert not moves.first & moves.second

    def test_describe_group(self, driver: Driver, topic: str) -> None:
        """A group whose member has left is listed, and empty."""
        sent = messages_for(driver, seed="group", count=BLOCK)
        driver.produce(topic, sent, "none")
        group = new_name("group")
        driver.consume([topic], group, len(sent))
        wait_for(lambda: driver.describe_group(group) == GroupState("Empty", 0), "an empty group", timeout_s=WAIT_S)
        assert group in driver.groups()

    def test_delete_group(self, driver: Driver, topic: str) -> None:
        """A deleted group is gone, and with it its offsets."""
        sent = messages_for(driver, seed="group", count=BLOCK)
        driver.produce(topic, sent, "none")
        group = new_name("group")
        driver.consume([topic], group, len(sent))
        wait_for(lambda: driver.describe_group(group) == GroupState("Empty", 0), "an empty group", timeout_s=WAIT_S)
        driver.delete_group(group)
        assert group not in driver.groups()
        require_same(sent, driver.consume([topic], group, len(sent)), driver, topic)

    def test_offsets_for_time(self, driver: Driver, topic: str) -> None:
        """The first offset at a time, between two times, before all, and after all."""
        sent = messages_for(driver, seed="times")
        driver.produce(topic, sent, "gzip")
        require_offsets_for_time(driver, topic, sent)

    def test_delete_records(self, driver: Driver, topic: str) -> None:
        """Deleted records are gone: the first offset has moved, and a new group starts there."""
        sent = messages_for(driver, seed="delete")
        driver.produce(topic, sent, "none")
        assert driver.first_offsets(topic) == dict.fromkeys(range(PARTITIONS), 0)
        before = {0: 10, 1: 0, 2: MESSAGES}
        driver.delete_records(topic, before)
        assert driver.first_offsets(topic) == before
        rest = driver.consume([topic], new_name("group"), 2 * MESSAGES - 10)
        assert {each.message.partition: each.offset for each in reversed(rest)} == {0: 10, 1: 0}

    def test_delete_topic(self, driver: Driver, topic: str) -> None:
        """Delete a topic and create it again under its name: the new one holds only what is sent to it."""
        sent = messages_for(driver, seed="topic", count=BLOCK)
        driver.produce(topic, sent, "none")
        driver.delete_topic(topic)
        wait_for(lambda: driver.partitions(topic) == 0, f"end of {topic}", timeout_s=WAIT_S)
        driver.create_topic(topic, PARTITIONS)
        wait_for(lambda: driver.partitions(topic) == PARTITIONS, topic, timeout_s=WAIT_S)
        driver.produce(topic, sent, "none")
        require_same(sent, driver.consume([topic], new_name("group"), len(sent)), driver, topic)

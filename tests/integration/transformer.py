"""Consume-transform-produce application in a process of its own, to be killed and started again by tests.

    python -m tests.integration.transformer LIBRARY BOOTSTRAP SOURCE SINK GROUP ID PARTITIONS

LIBRARY is `confluent` or `aiokafka`; with `franz` and `java` a `Transformer` is a program of another language that does
the same (tests/clients/go/franz/application.go, tests/clients/java/Application.java).  Each record of the source goes
to the same partition of the sink, with its partition and offset before its value, in one transaction with the group's
offset.  After an error that the library calls abortable the application aborts and goes on from the committed offsets;
after any other error it builds its clients anew.  After a call of librdkafka that outlives its own time-out
(docs/clients.md) the process begins again.  It writes a line for each such event, and ends only by a signal.

``Transformer`` is the test's end of it.  ``check_sink`` compares what committed readers see with the source.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.services.clients import go_program, java_program
from tests.services.processes import ServiceProcess

BATCH = 50
"""The largest number of records in a transaction."""
CALL_S = 20.0
HANGING_S = CALL_S + 5.0
"""Time after which a call hangs: librdkafka may lose one as a proxy leaves (its issue 5511), past any time-out."""
REQUEST_TIMEOUT_MS = 10_000
SESSION_TIMEOUT_MS = 10_000
TRANSACTION_TIMEOUT_MS = 30_000
LIMIT_S = 120.0


class Work(NamedTuple):
    """The application's arguments."""

    library: str
    bootstrap: str
    source: str
    sink: str
    group: str
    transactional_id: str
    partitions: int


def transformed(partition: int, offset: int, value: bytes) -> bytes:
    return b"%d/%d " % (partition, offset) + value


class Transformer(ServiceProcess):
    """The application, as a test starts, kills and pauses it."""

    def __init__(self, work: Work, folder: Path) -> None:
        arguments = (work.bootstrap, work.source, work.sink, work.group, work.transactional_id)
        match work.library:
            case "franz":
                command = [str(go_program("franz")), *arguments]
            case "java":
                command = [*java_program("Application"), *arguments]
            case _:
                command = [sys.executable, "-m", "tests.integration.transformer", *map(str, work)]
        super().__init__(work.transactional_id, command, log=folder / f"{work.transactional_id}.log")


# --------------------------------------------------------------------------------------------------------- librdkafka


class Confluent:
    """The loop with librdkafka: a group whose members share the partitions, fenced by its generation (KIP-447)."""

    def __init__(self, work: Work) -> None:
        self._work = work
        common = {"bootstrap.servers": work.bootstrap, "socket.timeout.ms": REQUEST_TIMEOUT_MS, "log_level": 0}
        self._producer = Producer(
            common
            | {
                "transactional.id": work.transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 5,
            }
        )
        self._producer.init_transactions(CALL_S)
        tell("is initialized", work.transactional_id)
        self._consumer = Consumer(
            common
            | {
                "group.id": work.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "partition.assignment.strategy": "range",
            }
        )
        self._consumer.subscribe([work.source])

    def run(self) -> None:
        """Run until an error that ends the producer."""
        try:
            while True:
                messages = [each for each in self._consumer.consume(BATCH, 0.2) if each.error() is None]
                if messages:
                    try:
                        self._transaction(messages)
                    except KafkaException as error:
                        self._recover(error.args[0])
        finally:
            self._consumer.close()

    def _transaction(self, messages: Sequence[Any]) -> None:
        self._producer.begin_transaction()
        offsets: dict[int, int] = {}
        for each in messages:
            value = transformed(each.partition(), each.offset(), each.value())
            self._producer.produce(self._work.sink, value, partition=each.partition())
            offsets[each.partition()] = each.offset() + 1
        places = [TopicPartition(self._work.source, place, offset) for place, offset in offsets.items()]
        self._retried(
            lambda: self._producer.send_offsets_to_transaction(places, self._consumer.consumer_group_metadata(), CALL_S)
        )
        self._retried(lambda: self._producer.commit_transaction(CALL_S))

    @staticmethod
    def _retried(call: Any) -> None:
        """Repeat what the library calls retriable."""
        while True:
            hanging = threading.Timer(HANGING_S, begin_again)
            hanging.start()
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                tell("retries", error)
            else:
                return
            finally:
                hanging.cancel()

    def _recover(self, error: KafkaError) -> None:
        """Abort, and go back to the committed offsets.  Raises KafkaException for an error that no abort mends."""
        if not error.txn_requires_abort():
            raise KafkaException(error)
        tell("aborts", error)
        self._retried(lambda: self._producer.abort_transaction(CALL_S))
        assigned = self._consumer.assignment()
        if not assigned:
            return
        for each in self._consumer.committed(assigned, CALL_S):
            place = TopicPartition(each.topic, each.partition, each.offset if each.offset >= 0 else OFFSET_BEGINNING)
            with contextlib.suppress(KafkaException):  # it was revoked meanwhile
                self._consumer.seek(place)


def begin_again() -> None:
    """Replace this process by a new one with the same arguments; the library's call cannot be ended otherwise."""
    tell("begins again", f"a call took more than {HANGING_S:.0f} s")
    os.execv(sys.executable, [sys.executable, "-m", "tests.integration.transformer", *sys.argv[1:]])


def run_confluent(work: Work) -> None:
    while True:
        try:
            Confluent(work).run()
        except KafkaException as error:
            tell("begins anew", error)


# ----------------------------------------------------------------------------------------------------------- aiokafka


async def aio(work: Work) -> None:
    """Run the loop with aiokafka until an error.

    Its commits carry no generation, so it assigns its partitions itself.  Its producer is initialized before offsets
    are fetched: what the process before it left is decided and written then.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=work.bootstrap.split(","),
        transactional_id=work.transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        linger_ms=5,
    )
    consumer = AIOKafkaConsumer(
        bootstrap_servers=work.bootstrap.split(","),
        group_id=work.group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )
    try:
        await producer.start()
        tell("is initialized", work.transactional_id)
        await consumer.start()
        consumer.assign([AioPartition(work.source, place) for place in range(work.partitions)])
        while True:
            found = await consumer.getmany(timeout_ms=200, max_records=BATCH)
            if not found:
                continue
            async with producer.transaction():
                for place, records in found.items():
                    for each in records:
                        value = transformed(each.partition, each.offset, each.value or b"")
                        await producer.send(work.sink, value, partition=place.partition)
                offsets = {place: records[-1].offset + 1 for place, records in found.items()}
                await producer.send_offsets_to_transaction(offsets, work.group)
    finally:
        for client in (consumer, producer):
            with contextlib.suppress(AioError, TimeoutError):
                async with asyncio.timeout(CALL_S):
                    await client.stop()


def run_aio(work: Work) -> None:
    while True:
        try:
            asyncio.run(aio(work))
        except (AioError, TimeoutError) as error:
            tell("begins anew", error)


def tell(what: str, about: object) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {what}: {about!r}\n")
    sys.stdout.flush()


# ------------------------------------------------------------------------------------------------------ the test's end


def committed(bootstrap: str, group: str, topic: str, partitions: int, *, require_stable: bool = True) -> list[int]:
    """Return the group's committed offset of each partition, 0 for none.

    With ``require_stable`` a partition has none while a transaction with an offset of it is open.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, place) for place in range(partitions)])]
    found = admin.list_consumer_group_offsets(wanted, require_stable=require_stable, request_timeout=CALL_S)[group]
    offsets = {each.partition: each.offset for each in found.result(2 * CALL_S).topic_partitions}
    return [max(0, offsets[place]) for place in range(partitions)]


def read(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[list[bytes]]:
    """Return the values of each partition up to its end at this isolation level."""
    return [[value for _, value in pairs] for pairs in read_pairs(bootstrap, topic, partitions, isolation)]


def read_pairs(bootstrap: str, topic: str, partitions: int, isolation: str) -> list[list[tuple[bytes, bytes]]]:
    """Return the keys and values of each partition up to its end at this isolation level, b"" for null."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, place, OFFSET_BEGINNING) for place in range(partitions)])
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in range(partitions)]
    ended: set[int] = set()
    end = time.monotonic() + LIMIT_S
    while len(ended) < partitions:
        assert time.monotonic() < end, f"read {sum(map(len, found))}, ended {ended}"
        for message in consumer.consume(1000, 0.5):
            error, place = message.error(), message.partition()
            assert place is not None
            if error is None:
                found[place].append((message.key() or b"", message.value() or b""))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(place)
    consumer.close()
    return found


def check_sink(work: Work, source: Sequence[Sequence[bytes]]) -> int:
    """Check that committed readers of the sink see each record of the source once, in order.

    Return how many records they do not see: of aborted transactions.
    """
    models = [
        [transformed(place, offset, value) for offset, value in enumerate(values)]
        for place, values in enumerate(source)
    ]
    left_out = check_values(work.bootstrap, work.sink, models)
    offsets = committed(work.bootstrap, work.group, work.source, work.partitions)
    assert offsets == [len(values) for values in source]
    return left_out


def check_values(bootstrap: str, topic: str, models: Sequence[Sequence[bytes]]) -> int:
    """Check that committed readers see exactly these values in each partition, in order.

    Return how many records they do not see: of aborted transactions.
    """
    found = read(bootstrap, topic, len(models), "read_committed")
    for place, model in enumerate(models):
        assert found[place] == model, f"{topic}-{place}: {_difference(found[place], model)}"
    everything = read(bootstrap, topic, len(models), "read_uncommitted")
    return sum(map(len, everything)) - sum(map(len, found))


def _difference(found: Sequence[bytes], model: Sequence[bytes]) -> str:
    at = next((at for at, pair in enumerate(zip(found, model, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        at = min(len(found), len(model))
    near = [value[:40] for value in found[max(0, at - 2) : at + 3]]
    missing, more = set(model) - set(found), len(found) - len(set(found))
    return f"{len(found)} of {len(model)} records, {len(missing)} missing, {more} twice; they differ at {at}: {near}"


if __name__ == "__main__":
    library, servers, source, sink, group, transactional_id, partitions = sys.argv[1:]
    given = Work(library, servers, source, sink, group, transactional_id, int(partitions))
    tell("starts", given)
    {"confluent": run_confluent, "aiokafka": run_aio}[given.library](given)

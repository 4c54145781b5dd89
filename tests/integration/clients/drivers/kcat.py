"""kcat: librdkafka from the command line. It has no admin calls, so confluent-kafka, the same library, makes those."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import BinaryIO

from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    ClientError,
    GroupState,
    Headers,
    Message,
    Rebalance,
    Record,
    is_shared,
    poll_until,
)
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.drivers.login import Login
from tests.services import clients

KEY_END, MESSAGE_END = b"\x01\x02\x03", b"\x03\x02\x01"  # not in the story's bytes
POLL_S = 0.01
# topic, partition, offset, time, sizes of key and value (-1 is null), headers; then the bytes of both
FORMAT = r"%t %p %o %T %K %S %h\n%k%s\n"
NO_ADMIN = "kcat has no admin calls"


class Kcat(Confluent):
    name = "kcat"
    assignors = ("range", "roundrobin", "cooperative-sticky")
    cannot_send = frozenset({"timestamp", "empty value"})
    lacks = {  # noqa: RUF012 - the base declares it
        "describe_group": NO_ADMIN,
        "delete_group": NO_ADMIN,
        "delete_records": NO_ADMIN,
        "delete_topic": NO_ADMIN,
    }

    def __init__(self, bootstrap: str, login: Login | None = None, admin: Login | None = None) -> None:
        """Make a client of ``login``; who makes topics may be somebody else, since confluent-kafka has no GSSAPI."""
        super().__init__(bootstrap, admin or login)
        # By IPv4 alone: kcat ends with the first refused connection, though the name has another address.
        self._command = [clients.kcat(), "-b", bootstrap, "-X", "broker.address.family=v4"]
        for name, value in (login.librdkafka() if login is not None else {}).items():
            self._command += ["-X", f"{name}={value}"]
        self._environment = os.environ | (login.environment if login is not None else {})

    def produce(self, topic: str, messages: Sequence[Message], codec: str, *, is_idempotent: bool = True) -> None:
        """Run kcat once for each partition and set of headers, since both are options of a run."""
        for (partition, headers), run in itertools.groupby(messages, lambda each: (each.partition, each.headers)):
            data = b"".join((each.key or b"") + KEY_END + (each.value or b"") + MESSAGE_END for each in run)
            options = [f"-H{name}" if value is None else f"-H{name}={value.decode()}" for name, value in headers]
            self._run(
                "-P", "-t", topic, "-p", str(partition), "-z", codec, "-Z", *options,
                "-K", _escaped(KEY_END), "-D", _escaped(MESSAGE_END), "-X", "linger.ms=20",
                "-X", f"enable.idempotence={str(is_idempotent).lower()}", "-X", "acks=all", stdin=data,
            )  # fmt: skip

    def consume(self, topics: Sequence[str], group: str, count: int) -> list[Record]:
        output = self._run("-q", "-c", str(count), "-f", FORMAT, *self._member(group, topics))
        return list(_records(output))

    def offsets_for_time(self, topic: str, timestamp: int) -> dict[int, int]:
        return self._query(topic, timestamp)

    def first_offsets(self, topic: str) -> dict[int, int]:
        return self._query(topic, -2)

    def _query(self, topic: str, timestamp: int) -> dict[int, int]:
        asked = [f"-t{topic}:{partition}:{timestamp}" for partition in range(self.partitions(topic))]
        found = re.findall(rb"\[(\d+)\] offset (-?\d+)", self._run("-Q", *asked))
        return {int(partition): int(offset) for partition, offset in found}

    def rebalance(self, topic: str, group: str, assignor: str) -> Rebalance:
        everything = frozenset(range(self.partitions(topic)))
        # Without `-q` kcat prints its assignment on standard error.
        command = [*self._command, "-X", f"partition.assignment.strategy={assignor}", *self._member(group, [topic])]
        with _Running(command) as first:
            first.wait(lambda: first.assigned() == everything)
            alone = first.assigned()
            with _Running(command) as second:
                second.wait(lambda: is_shared(first.assigned(), second.assigned(), everything))
                both = first.assigned(), second.assigned()
                first.leave()
                second.wait(lambda: second.assigned() == everything)
                return Rebalance(alone, *both, second.assigned())

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        raise ClientError(NO_ADMIN)

    def describe_group(self, group: str) -> GroupState:
        raise ClientError(NO_ADMIN)

    def delete_group(self, group: str) -> None:
        raise ClientError(NO_ADMIN)

    def _member(self, group: str, topics: Sequence[str]) -> list[str]:
        settings = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
        }
        options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        return [*options, "-G", group, *topics]

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = [*self._command, *arguments]
        try:
            result = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                check=False,
                timeout=OPERATION_TIMEOUT_S,
                env=self._environment,
            )
        except subprocess.TimeoutExpired as error:
            raise ClientError(f"{command} takes too long: {error.stderr!r}") from None
        if result.returncode != 0:
            raise ClientError(f"{command}: code {result.returncode}, {result.stderr!r}")
        return result.stdout


class _Running:
    """A kcat that goes on consuming; what it has is what it said last."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._said
        )

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.leave()
        self._said.close()

    def leave(self) -> None:
        """Send SIGTERM, at which kcat leaves its group, and wait until it has ended."""
        self._process.terminate()
        self._process.wait(timeout=OPERATION_TIMEOUT_S)

    def assigned(self) -> frozenset[int]:
        """Return the partitions held now: those assigned less those revoked, by kcat's lines about rebalances."""
        self._said.seek(0)
        held: set[int] = set()
        for line in self._said.read().decode().splitlines():
            if line.startswith("% Group") and "rebalanced" in line:
                partitions = {int(number) for number in re.findall(r"\[(\d+)\]", line)}
                held = held - partitions if "revoke" in line else held | partitions
        return frozenset(held)

    def wait(self, condition: Callable[[], bool]) -> None:
        def step() -> bool:
            if self._process.poll() is not None:
                raise ClientError(f"kcat ended with code {self._process.returncode}")
            time.sleep(POLL_S)
            return condition()

        poll_until(step, self.assigned)


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def _records(output: bytes) -> list[Record]:
    records = []
    position = 0
    while position < len(output):
        end = output.index(b"\n", position)
        topic, *numbers, headers = output[position:end].decode().split(" ", 6)
        partition, offset, timestamp, key_bytes, value_bytes = map(int, numbers)
        key = None if key_bytes < 0 else output[end + 1 : end + 1 + key_bytes]
        value_start = end + 1 + max(0, key_bytes)
        value = None if value_bytes < 0 else output[value_start : value_start + value_bytes]
        records.append(Record(topic, offset, Message(partition, key, value, _headers(headers), timestamp)))
        position = value_start + max(0, value_bytes) + 1
    return records


def _headers(text: str) -> Headers:
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return tuple((name, None if value == "NULL" else value.encode()) for name, _, value in pairs)

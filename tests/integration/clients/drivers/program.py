"""Clients in other languages: a small program speaks for each, one JSON object a line in and one out.

A request is ``{"op": name, ...}``, an answer ``{"ok": result}`` or ``{"error": text}``; bytes are base64, null is null.
The program ends when its standard input does, so it cannot outlive the test run.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import tempfile
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.integration.clients.drivers.base import (
    HEARTBEAT_MS,
    OPERATION_TIMEOUT_S,
    SESSION_TIMEOUT_MS,
    ClientError,
    Driver,
    GroupState,
    Message,
    Rebalance,
    Record,
)
from tests.integration.clients.drivers.login import Login
from tests.services import clients

ANSWER_TIMEOUT_S = OPERATION_TIMEOUT_S + 10.0  # the program has a time-out of its own, and says more
STDERR_BYTES = 4_000


class Program(Driver):
    """A client behind a program."""

    def __init__(self, bootstrap: str, login: Login | None = None) -> None:
        super().__init__(bootstrap, login)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the program
        settings: dict[str, Any] = {
            "bootstrap": bootstrap,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_ms": HEARTBEAT_MS,
            "timeout_ms": int(OPERATION_TIMEOUT_S * 1000),
        }
        if login is not None:
            settings |= {"login": asdict(login), "properties": login.java()}
        self._process = subprocess.Popen(
            [*self.command(), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=os.environ | (login.environment if login is not None else {}),
        )  # fmt: skip
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @staticmethod
    @abstractmethod
    def command() -> list[str]:
        """Return the command that starts the program; the settings are appended as one JSON argument."""

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout=OPERATION_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        report = self._stderr()
        self._errors.close()
        if code != 0:
            raise ClientError(f"{self.name}: the program ended with code {code}\n{report}")

    def call(self, operation: str, **arguments: Any) -> Any:
        """Return the result of one operation.  Raises ClientError, with what the program wrote, if it failed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ClientError(f"{self.name} {operation}: the program has ended\n{self._stderr()}") from None
        try:
            line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            raise ClientError(f"{self.name} {operation}: no answer\n{self._stderr()}") from None
        if not line:
            raise ClientError(f"{self.name} {operation}: the program has ended\n{self._stderr()}")
        response = json.loads(line)
        if "error" in response:
            raise ClientError(f"{self.name} {operation}: {response['error']}\n{self._stderr()}")
        return response["ok"]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _stderr(self) -> str:
        self._errors.flush()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-STDERR_BYTES:]

    # --- topics ---

    def create_topic(self, topic: str, partitions: int) -> None:
        self.call("create_topic", topic=topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        self.call("delete_topic", topic=topic)

    def partitions(self, topic: str) -> int:
        return int(self.call("partitions", topic=topic))

    # --- data ---

    def produce(self, topic: str, messages: Sequence[Message], codec: str, *, is_idempotent: bool = True) -> None:
        self.call(
            "produce",
            topic=topic,
            codec=codec,
            idempotent=is_idempotent,
            messages=[_to_json(each) for each in messages],
        )

    def stream(self, topic: str, seconds: float) -> int:
        return int(self.call("stream", topic=topic, seconds=seconds))

    def consume(self, topics: Sequence[str], group: str, count: int) -> list[Record]:
        found = self.call("consume", topics=list(topics), group=group, count=count)
        return [Record(each["topic"], each["offset"], _from_json(each)) for each in found]

    def offsets_for_time(self, topic: str, timestamp: int) -> dict[int, int]:
        return _offsets(self.call("offsets_for_time", topic=topic, timestamp=timestamp))

    def first_offsets(self, topic: str) -> dict[int, int]:
        return _offsets(self.call("first_offsets", topic=topic))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        self.call("delete_records", topic=topic, before={str(place): offset for place, offset in before.items()})

    # --- groups ---

    def rebalance(self, topic: str, group: str, assignor: str) -> Rebalance:
        found = self.call("rebalance", topic=topic, group=group, assignor=assignor)
        return Rebalance(*(frozenset(found[name]) for name in ("alone", "first", "second", "left")))

    def groups(self) -> set[str]:
        return set(self.call("groups"))

    def describe_group(self, group: str) -> GroupState:
        found = self.call("describe_group", group=group)
        return GroupState(found["state"], found["members"])

    def delete_group(self, group: str) -> None:
        self.call("delete_group", group=group)


class Sarama(Program):
    name = "sarama"
    assignors = ("range", "roundrobin", "sticky")

    @staticmethod
    def command() -> list[str]:
        return [str(clients.go_program("sarama"))]


class Franz(Program):
    name = "franz-go"
    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    @staticmethod
    def command() -> list[str]:
        return [str(clients.go_program("franz"))]

    def exchange(self, topic: str) -> int:
        """Produce a record to partition 0, consume it, refresh metadata; with one client in the program's life.

        Return the node id of the partition's leader, by that metadata.
        """
        return int(self.call("exchange", topic=topic))


class KafkaJs(Program):
    name = "kafkajs"
    assignors = ("roundrobin",)
    cannot_send = frozenset({"null header"})

    @staticmethod
    def command() -> list[str]:
        return clients.node_program()


class Java(Program):
    name = "java"
    assignors = ("range", "roundrobin", "sticky", "cooperative-sticky")

    @staticmethod
    def command() -> list[str]:
        return clients.java_program()


def _to_json(message: Message) -> dict[str, Any]:
    return {
        "partition": message.partition,
        "key": _encode(message.key),
        "value": _encode(message.value),
        "headers": [{"name": name, "value": _encode(value)} for name, value in message.headers],
        "timestamp": message.timestamp,
    }


def _from_json(found: Mapping[str, Any]) -> Message:
    headers = tuple((header["name"], _decode(header["value"])) for header in found["headers"])
    return Message(found["partition"], _decode(found["key"]), _decode(found["value"]), headers, found["timestamp"])


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _offsets(found: Mapping[str, int]) -> dict[int, int]:
    return {int(partition): offset for partition, offset in found.items()}

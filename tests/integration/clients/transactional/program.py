"""Libraries in other languages with transactions: the programs of the drivers, by operations that begin with `txn`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any, ClassVar

from tests.integration.clients.drivers.base import ClientError
from tests.integration.clients.drivers.program import Franz, Java, Program
from tests.integration.clients.transactional.base import (
    ABORT_EVERY,
    SENTINEL,
    TIMEOUT_MS,
    Fenced,
    Loop,
    Transactional,
    Transactor,
)

FENCED = re.compile(r"ProducerFenced|InvalidProducerEpoch|PRODUCER_FENCED|INVALID_PRODUCER_EPOCH")


class ProgramTransactor(Transactor):
    """A transactional producer in a program, known there by its number."""

    def __init__(self, program: Program, number: int, transactional_id: str, timeout_ms: int) -> None:
        self._program = program
        self._number = number
        self._call("txn_open", id=transactional_id, txn_timeout_ms=timeout_ms)

    def _call(self, operation: str, **arguments: Any) -> None:
        try:
            self._program.call(operation, producer=self._number, **arguments)
        except ClientError as error:
            raise (Fenced if FENCED.search(str(error).partition("\n")[0]) else ClientError)(str(error)) from None

    def begin(self) -> None:
        self._call("txn_begin")

    def send(self, topic: str, values: Mapping[int, Sequence[bytes]]) -> None:
        texts = {str(partition): [value.decode() for value in each] for partition, each in values.items()}
        self._call("txn_send", topic=topic, values=texts)

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {str(partition): offset for partition, offset in offsets.items()}
        self._call("txn_offsets", group=group, topic=topic, offsets=wanted)

    def commit(self) -> None:
        self._call("txn_end", commit=True)

    def abort(self) -> None:
        self._call("txn_end", commit=False)

    def close(self) -> None:
        self._call("txn_close")


class ProgramTransactional(Transactional):
    """A client behind a program."""

    kind: ClassVar[type[Program]]

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._program = self.kind(bootstrap)
        self._numbers = count()

    def close(self) -> None:
        self._program.close()

    def transactor(self, transactional_id: str, timeout_ms: int = TIMEOUT_MS) -> ProgramTransactor:
        return ProgramTransactor(self._program, next(self._numbers), transactional_id, timeout_ms)

    def read(self, topic: str, partitions: int, *, is_committed: bool) -> dict[int, list[bytes]]:
        found = self._program.call(
            "txn_read", topic=topic, partitions=partitions, committed=is_committed, sentinel=SENTINEL.decode()
        )
        return {int(partition): [text.encode() for text in texts] for partition, texts in found.items()}

    def transform(self, loop: Loop) -> int:
        return int(self._program.call("txn_transform", abort_every=ABORT_EVERY, **asdict(loop)))


class JavaTransactional(ProgramTransactional):
    name = "java"
    kind = Java


class FranzTransactional(ProgramTransactional):
    name = "franz-go"
    kind = Franz
    lacks = {  # noqa: RUF012 - the base declares it
        "offsets_move_with_the_transaction": "franz-go commits offsets in a transaction by a group's session alone"
    }

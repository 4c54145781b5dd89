"""The acknowledged batches and the log, compared: the log is read by rule 5 of docs/design/rules.md alone.

A ``Transcript`` follows the file into which a driver process writes what happened, one JSON line each.  ``read_log``
knows names and batch headers, not the code under test.  ``check`` holds one against the other:

* *acked stays*: every acknowledged batch stands at the offset that was answered, whoever answered, whenever.
* *dense*: offsets have no gap (``read_log``), and every CRC is right.
* *once, in order*: the batches of an idempotent producer stand in order, each once, none left out.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from bmq.broker.broker import Broker, new_incarnation
from bmq.broker.config import BrokerConfig
from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch
from bmq.meta.kv import KeyValue
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem
from bmq.storage.layout import PartitionPath
from bmq.storage.open import open_filesystem
from tests.harness.members import lone_broker
from tests.simulation.world import decode

READ_BYTES = 4 << 20


class Ack(NamedTuple):
    """Acknowledgement of batch ``number`` of ``producer`` at ``offset``, at this time (seconds, monotonic)."""

    partition: int
    producer: int
    number: int
    offset: int
    at_s: float


class Stored(NamedTuple):
    """One batch of the log."""

    offset: int
    producer: int
    number: int
    size: int


class Transcript:
    """A driver's file.  ``refresh`` reads what was added; a line that is not whole yet waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acks: list[Ack] = []
        self.events: list[dict[str, Any]] = []
        self._position = 0

    def refresh(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._position += len(whole) + len(newline)
        for line in whole.splitlines():
            item = json.loads(line)
            if isinstance(item, list):
                self.acks.append(Ack(*item))
            else:
                self.events.append(item)

    def of(self, kind: str, *, since: int = 0) -> list[dict[str, Any]]:
        """Return the events of this kind, of those from number ``since`` on."""
        return [event for event in self.events[since:] if event["event"] == kind]

    def acked(self, partition: int = 0) -> dict[int, int]:
        """Return the next number of each producer: one more than the highest acknowledged."""
        following: dict[int, int] = {}
        for ack in self.acks:
            if ack.partition == partition:
                following[ack.producer] = max(following.get(ack.producer, 0), ack.number + 1)
        return following

    def longest_gap_ms(self, since_s: float = 0.0, partition: int | None = None) -> float:
        """Return the longest time, in ms, without an acknowledgement, of those that ended after ``since_s``."""
        times = [ack.at_s for ack in self.acks if partition is None or ack.partition == partition]
        gaps = [after - before for before, after in pairwise(times) if after >= since_s]
        return max(gaps, default=0.0) * 1000


async def read_log(fs: FileSystem, path: PartitionPath, end_offset: int) -> list[Stored]:
    """Return all batches below ``end_offset``: segments by (epoch, n), each up to the base of a later one."""
    names = [name async for name in segment_names(fs, path)]
    names.sort(key=lambda name: (name.epoch, name.n))
    stored: list[Stored] = []
    following = 0
    for at, name in enumerate(names):
        end = min([end_offset, *(later.base for later in names[at + 1 :])])
        if name.base >= end:
            continue
        assert name.base == following, f"{name} begins where {following} should stand"
        following = await _read_segment(fs, path.log(name), name, end, stored.append)
    assert following == end_offset, f"the log ends at {following}, it should reach {end_offset}"
    return stored


async def segment_names(fs: FileSystem, path: PartitionPath) -> AsyncIterator[SegmentName]:
    async for status in fs.list(path.folder):
        parsed = layout.parse_segment(layout.base_name(status.path))
        if parsed is not None and parsed[1] == "log":
            yield parsed[0]


async def _read_segment(
    fs: FileSystem, path: str, name: SegmentName, end: int, on_batch: Callable[[Stored], None]
) -> int:
    offset, position = name.base, 0
    data = memoryview(b"")
    while offset < end:
        if len(data) < HEADER_BYTES or len(data) < Batch(data).size:
            more = await fs.read(path, position + len(data), READ_BYTES)
            assert more, f"{path} ends at offset {offset}, it should reach {end}"
            data = memoryview(bytes(data) + more)
            continue
        batch = Batch(data)
        batch = Batch(data[: batch.size])
        assert batch.has_valid_crc, f"bad CRC in {path} at {position}"
        assert batch.base_offset == offset, f"{batch!r} at {position} of {path}, where {offset} should stand"
        on_batch(Stored(offset, *decode(batch), batch.size))
        position, data, offset = position + batch.size, data[batch.size :], batch.next_offset
    return offset


def check(stored: Sequence[Stored], acks: Iterable[Ack]) -> None:
    """Check one partition's log against the acknowledgements: none is lost or moved, no number doubled or skipped."""
    at = {batch.offset: (batch.producer, batch.number) for batch in stored}
    end = stored[-1].offset + 1 if stored else 0
    for ack in acks:
        found = at.get(ack.offset)
        assert found is not None, f"{ack} is gone: the log ends at {end}"
        assert found == (ack.producer, ack.number), f"{ack}, but {found} stands there"
    following: dict[int, int] = {}
    for batch in stored:
        expected = following.get(batch.producer, 0)
        assert batch.number == expected, f"{batch} where number {expected} should stand: doubled, lost or out of order"
        following[batch.producer] = batch.number + 1


async def check_partition(root: str, path: PartitionPath, end_offset: int, acks: Iterable[Ack]) -> list[Stored]:
    """Read the log with a client of its own, and check it."""
    fs = await open_filesystem(root, holder=f"reader-{uuid.uuid4().hex[:8]}")
    try:
        stored = await read_log(fs, path, end_offset)
    finally:
        await fs.close()
    check(stored, acks)
    return stored


@asynccontextmanager
async def broker_on(
    root: str,
    kv: KeyValue,
    *,
    config: BrokerConfig | None = None,
    watch: Callable[[FileSystem], FileSystem] = lambda fs: fs,
) -> AsyncIterator[Broker]:
    """Run a broker in this process, on its own file system."""
    incarnation = new_incarnation()
    fs = await open_filesystem(root, holder=incarnation)
    try:
        async with lone_broker(watch(fs), kv, incarnation=incarnation, config=config) as broker:
            yield broker
    finally:
        await fs.close()


def spread(values: Sequence[float]) -> str:
    """Return minimum, median and maximum as text."""
    return f"{min(values):.1f} / {median(values):.1f} / {max(values):.1f}"


def report(request: pytest.FixtureRequest, line: str) -> None:
    """Report a measurement: in the test's properties, and on the terminal, whatever is captured."""
    request.node.user_properties.append(("figures", line))
    terminal = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    if terminal is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            terminal.ensure_newline()
            terminal.write_line(f"  {request.node.name}: {line}")

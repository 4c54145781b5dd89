"""The record of what was sent and what was found in the log, and the comparison of the two.  Pure.

Consumers may get a record again: they were cut off between taking it and committing its offset.  So the records that
they take are booked under partition and offset, where a second time changes nothing; taking and booking are one step,
which is how a consumer counts exactly once.  The log itself has no such excuse: every record must be in it once, at the
place that its acknowledgement named, after the one before it of the same key.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

NOWHERE = -1
PROBLEMS_MAX = 10
"""Problems of each kind that are listed; a log that lost one record may have lost a million."""


class Sent:
    """The records sent, by their number in the file: key, position within the key, checksum, acknowledged place."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.sequences = array("l")
        self.checksums = array("L")
        self.partitions = array("l")
        self.offsets = array("q")
        self.by_carrier: Counter[str] = Counter()
        self.bytes = 0
        self.acked = 0
        self._by_key: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.keys)

    def add(self, key: str, carrier: str, value: bytes) -> tuple[int, int]:
        """Add a record; return (row, sequence): its number, and its number among those of its key, from 1."""
        self._by_key[key] += 1
        self.keys.append(key)
        self.sequences.append(self._by_key[key])
        self.checksums.append(zlib.crc32(value))
        self.partitions.append(NOWHERE)
        self.offsets.append(NOWHERE)
        self.by_carrier[carrier] += 1
        self.bytes += len(key) + len(value)
        return len(self.keys) - 1, self._by_key[key]

    def acknowledge(self, row: int, partition: int, offset: int) -> None:
        """Note that a record is stored; ``offset`` is NOWHERE if the client does not know where."""
        self.acked += 1
        self.partitions[row] = partition
        self.offsets[row] = offset


class Ledger:
    """The records found in the log.  Not thread-safe."""

    def __init__(self, sent: Sent, partitions: int) -> None:
        self._sent = sent
        self._rows: list[dict[int, int]] = [{} for _ in range(partitions)]  # by offset
        self._wrong: list[str] = []
        self.by_carrier: Counter[str] = Counter()
        self.records = 0
        self.redelivered = 0

    def take(
        self,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Mapping[str, str | bytes | None],
    ) -> None:
        """Book a record.  One that differs from the record sent under its number is kept as a problem."""
        row = _number(headers.get("row"))
        known = self._rows[partition].get(offset)
        if known is not None:
            self.redelivered += 1
            if known != row:
                self._blame(f"{_place(partition, offset)} held row {known} at first and row {row} later")
            return
        self._rows[partition][offset] = row
        self.records += 1
        sent = self._sent
        if not 0 <= row < len(sent):
            self._blame(f"{_place(partition, offset)} holds row {row}, which was never sent")
            return
        is_same = key == sent.keys[row].encode() and _number(headers.get("seq")) == sent.sequences[row]
        if not is_same or value is None or zlib.crc32(value) != sent.checksums[row]:
            self._blame(f"{_place(partition, offset)} is not what was sent as row {row}")
            return
        self.by_carrier[json.loads(value)["carrier"]] += 1

    def _blame(self, text: str) -> None:
        if len(self._wrong) < PROBLEMS_MAX:
            self._wrong.append(text)

    def problems(self, ends: Sequence[int]) -> list[str]:
        """Return a text for each fault, given where each partition ends; none if nothing was lost, doubled or moved."""
        found = list(self._wrong)
        if self._sent.acked != len(self._sent):
            found.append(f"{len(self._sent) - self._sent.acked} records were never acknowledged")
        for partition, end in enumerate(ends):
            missing = [offset for offset in range(end) if offset not in self._rows[partition]]
            found += [f"{_place(partition, offset)} was never delivered" for offset in missing[:PROBLEMS_MAX]]
            past = [offset for offset in self._rows[partition] if offset >= end]
            found += [f"{_place(partition, offset)} is past the log's end {end}" for offset in past[:PROBLEMS_MAX]]
        if self.by_carrier != self._sent.by_carrier:
            found.append("the flights by carrier differ from the file's")
        return found + self._misplaced() + self._out_of_order()

    def _misplaced(self) -> list[str]:
        """Return texts about records that are lost, doubled, or not where the acknowledgement said."""
        places: dict[int, tuple[int, int]] = {}
        doubled, moved = [], []
        for partition, rows in enumerate(self._rows):
            for offset, row in rows.items():
                first = places.setdefault(row, (partition, offset))
                if first != (partition, offset):
                    doubled.append(f"row {row} is in the log twice: {_place(*first)} and {_place(partition, offset)}")
        lost = [f"row {row} was lost" for row in range(len(self._sent)) if row not in places]
        for row, place in places.items():
            if row < len(self._sent) and self._sent.offsets[row] != NOWHERE:
                acked = self._sent.partitions[row], self._sent.offsets[row]
                if acked != place:
                    moved.append(f"row {row} was acknowledged at {_place(*acked)} and is at {_place(*place)}")
        return [*_some(lost), *_some(doubled), *_some(moved)]

    def _out_of_order(self) -> list[str]:
        last: dict[str, tuple[int, int]] = {}
        found = []
        for partition, rows in enumerate(self._rows):
            for offset in sorted(rows):
                row = rows[offset]
                if not 0 <= row < len(self._sent):
                    continue
                key = self._sent.keys[row]
                home, sequence = last.get(key, (partition, 0))
                if home != partition:
                    found.append(f"key {key} is in partitions {home} and {partition}")
                elif self._sent.sequences[row] != sequence + 1:
                    found.append(
                        f"key {key}: number {self._sent.sequences[row]} follows {sequence}, {_place(partition, offset)}"
                    )
                last[key] = (partition, self._sent.sequences[row])
        return _some(found)


def _number(text: str | bytes | None) -> int:
    """Return the header as a number, NOWHERE if it is not one."""
    return int(text) if text is not None and text.isdigit() else NOWHERE


def _some(problems: list[str]) -> list[str]:
    more = len(problems) - PROBLEMS_MAX
    return problems[:PROBLEMS_MAX] + ([f"... and {more} more of these"] if more > 0 else [])


def _place(partition: int, offset: int) -> str:
    return f"partition {partition}, offset {offset}"

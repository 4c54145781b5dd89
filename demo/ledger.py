"""What was sent, what was found in the log, and whether the two are the same.  Pure.

Consumers may see a record again: they were cut off between taking it and committing its offset.  So what they take is
booked under its place, partition and offset, where a second time changes nothing; taking and booking are one act, which
is how a consumer counts exactly once.  What no consumer's commit may excuse is the log itself: every record must stand
in it at one place, at the place that its acknowledgement named, behind the one before it of the same key.
"""

from __future__ import annotations

import json
import zlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

NOWHERE = -1
PROBLEMS_MAX = 10
"""Told of each kind; a log that lost one record may have lost a million."""


class Sent:
    """The records, by their number in the file: key, position within the key, checksum, acknowledged place."""

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
        """(row, sequence): the record's number, and its number among those of its key, from 1."""
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
        """``offset`` is NOWHERE when the client knows only that the record is stored."""
        self.acked += 1
        self.partitions[row] = partition
        self.offsets[row] = offset


class Ledger:
    """What was found.  Not for several threads at once."""

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
        """Book a record.  One that is not what was sent under its number is remembered as a problem."""
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
        """Everything that is wrong, given where each partition ends; empty when nothing was lost, doubled or moved."""
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
        """Lost, doubled, or not where the acknowledgement said."""
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
    """The header as a number, NOWHERE when it is none."""
    return int(text) if text is not None and text.isdigit() else NOWHERE


def _some(problems: list[str]) -> list[str]:
    more = len(problems) - PROBLEMS_MAX
    return problems[:PROBLEMS_MAX] + ([f"... and {more} more of these"] if more > 0 else [])


def _place(partition: int, offset: int) -> str:
    return f"partition {partition}, offset {offset}"

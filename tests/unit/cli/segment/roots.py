"""Folders with one topic, built byte by byte, and `bmq segment` run over them."""

from __future__ import annotations

import json
import uuid
from array import array
from pathlib import Path
from typing import Any

import pytest

from bmq.cli.main import main
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.segment import encode_idx
from tests.unit.core.records.test_reader import built_by_kafka

TOPIC_ID = uuid.UUID(int=7)
KEY = PartitionKey(TOPIC_ID, 0)
NOW = 1_700_000_000_000


def batch(base: int, count: int = 3, *, codec: int = 0, epoch: int = 1, value: bytes = b"v" * 40) -> bytes:
    """``count`` records from ``base``, built by kafka-python, numbered as an owner does."""
    data = bytearray(built_by_kafka([(NOW + base + i, b"k%d" % (base + i), value, []) for i in range(count)], codec))
    Batch(memoryview(data)).assign(base, epoch)
    return bytes(data)


class Root:
    """A folder with one topic."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.partition = folder / "topics" / "orders" / str(TOPIC_ID) / "0"
        self.partition.mkdir(parents=True)
        self._capsys = capsys

    def log(self, base: int, *data: bytes, epoch: int = 1, n: int = 0) -> Path:
        path = self.partition / f"{SegmentName(base, epoch, n)}.log"
        path.write_bytes(b"".join(data))
        return path

    def idx(self, checkpoint: Checkpoint, name: SegmentName | None = None) -> Path:
        path = self.partition / f"{name or checkpoint.segment}.idx"
        path.write_bytes(encode_idx(checkpoint))
        return path

    def journal(self, *records: bytes, name: str = "broker-00000001.jnl") -> Path:
        path = self.folder / "journals" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(records))
        return path

    def within(self, path: Path) -> str:
        return f"/{path.relative_to(self.folder)}"

    def run(self, *arguments: str) -> tuple[int, str, str]:
        status = main(["segment", arguments[0], "--root", self.folder.as_uri(), *arguments[1:]])
        out, err = self._capsys.readouterr()
        return status, out, err

    def run_json(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        status, out, _ = self.run(*arguments, "--json")
        return status, [json.loads(line) for line in out.splitlines()]

    def verify(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit status, and each finding as one line."""
        status, lines = self.run_json("verify", *(arguments or ("--topic", "orders")))
        found = [line for line in lines if line["kind"] in ("fault", "note")]
        assert [line["kind"] for line in lines][-1] == "summary"
        assert all(line["meaning"] for line in found)
        names = [line["file"].rsplit("/", 1)[1].replace("00000000000000", "") for line in found]
        return status, [
            f"{f['kind']} {name} @{f['position']} #{f['offset']}: {f['what']}"
            for f, name in zip(found, names, strict=True)
        ]


def described(name: SegmentName, *data: bytes, **changes: Any) -> Checkpoint:
    """Return the closed checkpoint of a segment of these batches, with an index entry for each but the first."""
    index, position, highest, highest_at = array("q"), 0, -1, -1
    epochs: list[tuple[int, int]] = []
    for raw in data:
        b = Batch(memoryview(raw))
        if position:
            index.extend((b.base_offset, position, highest))
        if b.max_timestamp > highest:
            highest, highest_at = b.max_timestamp, b.base_offset
        if not epochs or epochs[-1][0] != b.leader_epoch:
            epochs.append((b.leader_epoch, b.base_offset))
        position += len(raw)
    end = Batch(memoryview(data[-1])).next_offset if data else name.base
    fields: dict[str, Any] = {
        "segment": name, "position": position, "end_offset": end,
        "log_start": 0, "is_closed": True, "max_timestamp": highest, "max_timestamp_offset": highest_at,
        "index": index, "epochs": tuple(epochs),
    }  # fmt: skip
    return Checkpoint(key=KEY, **{**fields, **changes})


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


THREE = [batch(0), batch(3), batch(6)]
SIZE = len(THREE[0])
FIRST = SegmentName(0, 1, 0)

"""The records of the matrix: of the size that is asked for, lines of a file, and as compressible as events are."""

from __future__ import annotations

import hashlib
import json
import random
from itertools import islice
from pathlib import Path

import pytest

from bench.payloads import RECORDS_LEAST, RECORDS_MOST, SEED, compressed_share, count_of, events, records, write


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 1000, 10_000, 1_000_000])
def test_each_record_has_exactly_its_size_and_is_one_line(size: int) -> None:
    made = records(size, 3)
    assert [len(value) for value in made] == [size] * 3
    assert all(b"\n" not in value and value.isascii() for value in made)
    assert len(set(made)) == 3


def test_the_same_bytes_are_made_in_every_run() -> None:
    digest = hashlib.sha256(b"\n".join(records(100, 1000))).hexdigest()
    assert digest == "7327fd6b8c47797c050deb79cbbd1447365f7285eccba1436abc1d4074d3766e"


def test_events_are_json() -> None:
    for event in islice(events(random.Random(SEED)), 50):
        assert json.loads(event)["path"].startswith("/")


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "least", "most"), [("lz4", 0.2, 0.45), ("zstd", 0.1, 0.3)])
@pytest.mark.parametrize("size", [100, 1000, 10_000])
def test_a_batch_becomes_as_small_as_one_of_real_events(size: int, codec: str, least: float, most: float) -> None:
    assert least < compressed_share(records(size, 700), codec) < most


@pytest.mark.slow
def test_a_file_has_many_records_and_none_at_its_end(tmp_path: Path) -> None:
    written = write(tmp_path, 10_000)
    assert written.path.read_bytes().split(b"\n") == list(written.values)
    assert written.describe()["records"] == 1600


def test_the_number_of_different_records_is_bounded() -> None:
    assert count_of(100) == RECORDS_MOST
    assert count_of(10**9) == RECORDS_LEAST

"""``bmq consume``: which records it chooses, in which format, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.unit.cli.fake_admin import FakeAdmin
from tests.unit.cli.fake_clients import FakeConsumer

pytestmark = pytest.mark.slow

Run = Callable[..., int]
Told = pytest.CaptureFixture[str]


ALL = ["a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9", "b0", "b1", "b2", "b3"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ALL),
        (["--from", "latest"], []),
        (["--from", "5"], ["a5", "a6", "a7", "a8", "a9"]),
        (["--from", "-2"], ["a8", "a9", "b2", "b3"]),
        (["--from", "@5000"], ["a5", "a6", "a7", "a8", "a9"]),
        (["--partition", "1"], ["b0", "b1", "b2", "b3"]),
        (["--partition", "0-1"], ALL),
        (["--partition", "0", "--to", "4"], ["a2", "a3"]),
        (["--partition", "0", "--to", "@5000"], ["a2", "a3", "a4"]),
        (["--max-records", "2"], ["a2", "a3"]),
        (["--max-records", "9"], [*ALL[:8], "b0"]),
    ],
    ids=" ".join,
)
def test_positions_and_limits_choose_the_records(
    words: list[str], expected: list[str], bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    if "--to" not in words:
        words = [*words, "--to", "latest"]
    assert bmq("consume", "orders", *words) == 0
    assert capsys.readouterr().out.splitlines() == expected
    assert consumer.is_closed
    assert consumer.committed == {}
    assert consumer.configs["group_id"] is None


def test_an_offset_outside_the_partition_is_printed_as_a_note(bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "orders", "--from", "1", "--to", "latest") == 0
    assert "note: partition 0 of topic orders has offsets 2 to 10: begins at 2\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (["--to", "latest"], True),
        (["--partition", "0", "--to", "9"], True),
        (["--to", "@6000"], True),
        (["--partition", "0", "--to", "7"], False),
        (["--partition", "1", "--to", "latest"], False),
        (["--to", "latest", "--isolation-level", "read_uncommitted"], False),
        (["--max-records", "1"], False),
    ],
)
def test_records_that_an_open_transaction_holds_back_are_noted(
    words: list[str], is_noted: bool, admin: FakeAdmin, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    """A copy by ``bmq consume --to latest`` is not whole then, and must not look whole."""
    admin.topics["orders"][0].stable = 7
    assert bmq("consume", "orders", *words) == 0
    note = "note: partition 0 of topic orders: a transaction is open from offset 7 on, and holds back the records"
    assert (note in capsys.readouterr().err) == is_noted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--key-separator", "\\t"], "k0\tb0\n"),
        (["--delimiter", "\\0", "--value-encoding", "hex"], "6230\0"),
        (["--format", "raw"], "b0"),
        (["--format", "fields"], "1\t0\t1970-01-01T00:00:00.000Z\tk0\tb0\t\n"),
    ],
)
def test_each_format_is_written(
    words: list[str], expected: str, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    assert bmq("consume", "orders", "--partition", "1", "--max-records", "1", *words) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"], ["--json", "--format", "json"]])
def test_json_has_two_spellings(words: list[str], bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    assert bmq("consume", "orders", "--partition", "1", "--max-records", "1", *words) == 0
    assert json.loads(capsys.readouterr().out)["value"] == "b0"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--json", "--format", "raw"], "--json is --format json"),
        (["--json", "--key-separator", ":"], "belong to --format text"),
        (["--format", "raw", "--value-encoding", "hex"], "writes values as they are"),
        (["--no-commit"], "--no-commit belongs to --group"),
        (["--group", "g", "--partition", "1"], "leave out --partition, or --group"),
        (["--group", "g", "--from", "7"], "`bmq group reset-offsets`"),
        (["--to", "earliest"], "--to is latest, an offset or a time"),
        (["--to", "-5"], "--to is latest, an offset or a time"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    words: list[str], why: str, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    assert bmq("consume", "orders", *words) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,", "-1", "0-1000000", "9999999999"])
def test_malformed_partitions_are_refused(text: str, bmq: Run, consumer: FakeConsumer, capsys: Told) -> None:
    with pytest.raises(SystemExit):
        bmq("consume", "orders", f"--partition={text}")
    capsys.readouterr()


def test_topics_partitions_and_leaders_that_are_missing_are_named(
    admin: FakeAdmin, bmq: Run, consumer: FakeConsumer, capsys: Told
) -> None:
    assert bmq("consume", "missing") == 1
    assert "topic missing: there is no such topic or partition" in capsys.readouterr().err
    assert bmq("consume", "orders", "--partition", "0,7") == 1
    assert "topic orders has no partition 7; it has 2, from 0 up" in capsys.readouterr().err
    admin.topics["orders"][1].leader = -1
    assert bmq("consume", "orders", "--timeout", "0.001") == 1
    assert "partition 1 of topic orders has no leader now: no live broker serves it" in capsys.readouterr().err

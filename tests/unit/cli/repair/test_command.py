"""`bmq segment repair`: its text of a partition that is whole, and what it says of places that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.cli.main import main
from bmq.cli.parsers.tree import build_parser
from bmq.cli.repair.command import lines


@pytest.mark.parametrize(
    ("start", "end", "holds"),
    [
        (5, 9, "offsets 5 to 8"),
        (0, 0, "it is empty, its next offset is 0"),
        (7, 7, "it is empty, its next offset is 7"),
    ],
)
def test_a_whole_partition_is_one_line(start: int, end: int, holds: str) -> None:
    result = {"topic": "orders", "partition": 3, "log_start": start, "end_offset": end}
    result |= {"offline_reason": "", "segments": [], "notes": []}
    assert lines(result) == [f"orders-3: nothing is damaged; {holds}"]


@pytest.mark.parametrize("is_all", [False, True])
def test_closed_segments_that_were_not_read_are_named(*, is_all: bool) -> None:
    """A partition with damage in a closed segment must not look whole."""
    result = {"topic": "orders", "partition": 4, "log_start": 7, "end_offset": 4248}
    segment = {"base_offset": 4000, "is_changed": False, "notes": []}
    result |= {"offline_reason": "", "segments": [segment], "notes": []}
    if is_all:
        assert lines(result, is_all=True) == ["orders-4: nothing is damaged; offsets 7 to 4247"]
        return
    first, second = lines(result, is_all=False)
    assert first == "orders-4: nothing is damaged in the segments that may be open; offsets 7 to 4247"
    assert second == "  the closed segments, offsets 7 to 3999, were not read: add --all to check them too"


def test_a_partition_without_closed_segments_is_whole() -> None:
    result = {"topic": "orders", "partition": 4, "log_start": 7, "end_offset": 9}
    segment = {"base_offset": 5, "is_changed": False, "notes": []}
    result |= {"offline_reason": "", "segments": [segment], "notes": []}
    assert lines(result, is_all=False) == ["orders-4: nothing is damaged; offsets 7 to 8"]


def test_an_open_transaction_comes_with_the_command_that_aborts_it() -> None:
    result = {"topic": "orders", "partition": 4, "log_start": 7, "end_offset": 9}
    touched = {"producer_id": 3, "producer_epoch": 0, "first_offset": 8, "lost": [], "dropped": [], "is_open": True}
    result |= {"offline_reason": "", "segments": [], "notes": [], "is_done": False, "transactions": [touched]}
    command = "bmq transaction abort orders 4 --start-offset 8"
    assert lines(result)[-1] == f"  if a transaction stays open, --abort-hanging aborts it, or: {command}"
    arguments = build_parser("transaction").parse_args(command.split()[1:])
    assert (arguments.topic, arguments.partition, arguments.start_offset) == ("orders", 4, 8)


def test_a_servers_text_reaches_no_terminal_as_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"topic": "orders", "partition": 3, "log_start": 0, "end_offset": 0, "is_done": False}
    result |= {"offline_reason": "", "segments": [], "notes": ["a\x1b[2J"]}
    monkeypatch.setattr("bmq.cli.repair.command.Console.act", lambda console, name, body: result)
    assert main(["segment", "repair", "orders", "3", "--http", "http://127.0.0.1:1"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "  note: a\\x1b[2J"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "give --meta, the cluster's store"),
        (["--meta", "bogus://x"], "bogus"),
        (["--meta", "sqlite:///nowhere/meta.db"], "sqlite:///nowhere/meta.db: there is no such file"),
    ],
)
def test_a_missing_or_wrong_store_is_refused(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["segment", "repair", "orders", "3", "--root", f"file://{tmp_path}", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_password_comes_from_the_servers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty file of a password ends the command before it asks anybody."""
    password = tmp_path / "password"
    password.touch()
    monkeypatch.setenv("BMQ_META_PASSWORD_FILE", str(password))
    words = ["--root", f"file://{tmp_path}", "--meta", "etcd://me@127.0.0.1:1"]
    assert main(["segment", "repair", "orders", "3", *words]) == 2
    assert "BMQ_META_PASSWORD_FILE: the secret is empty" in capsys.readouterr().err

"""The command line: flags and names in any order, numbers, and texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from bmq.cli.parsers.tree import build_parser
from bmq.cli.usage import (
    UsageError,
    check_text,
    partition_count,
    partition_number,
    positive,
    replication_factor,
    whole_number,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("text", ["", "-1", "1.0", "+1", "1_000", " 1", "٣", "²", "1" * 20, "1" * 5000])
def test_what_is_not_a_number(text: str) -> None:
    """Read texts that are not numbers, and so many digits that Python itself refuses them, with another error."""
    for read in (whole_number, positive):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_numbers() -> None:
    assert whole_number("0") == 0
    assert whole_number("9223372036854775807") == (1 << 63) - 1
    assert positive("007") == 7
    with pytest.raises(argparse.ArgumentTypeError):
        positive("0")


@pytest.mark.parametrize(
    ("read", "bits"),
    [(whole_number, 63), (positive, 63), (partition_number, 31), (partition_count, 31), (replication_factor, 15)],
)
def test_the_largest_number_is_the_protocols(read: Callable[[str], int], bits: int) -> None:
    """Read the largest number of a field, and the next one, which a client could not send."""
    assert read(str((1 << bits) - 1)) == (1 << bits) - 1
    with pytest.raises(argparse.ArgumentTypeError, match="the largest that Kafka's protocol has"):
        read(str(1 << bits))


@pytest.mark.parametrize(
    "line",
    [
        "transaction abort orders 99999999999 --start-offset 0",
        "transaction abort orders 0 --start-offset 9999999999999999999",
        "transaction list --producer-id 9999999999999999999",
        "topic create orders --partitions 99999999999",
        "topic create orders --replication-factor 99999",
        "topic alter orders --partitions 99999999999",
        "group reset-offsets g orders --to-offset 9999999999999999999",
        "cluster move orders 99999999999 b",
        "produce orders --partition 99999999999",
    ],
)
def test_a_number_that_no_request_can_carry_is_wrong_usage(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Parse a command line whose request kafka-python would not encode, and wait for without an end."""
    with pytest.raises(SystemExit):
        build_parser().parse_args(line.split())
    assert "is more than" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["describe", "fence"])
def test_an_empty_transactional_id_is_wrong_usage(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["transaction", action, "orders-1", ""])
    assert "a transactional id has one character or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "produce images a b --key k",
        "produce images --key k a b",
        "produce images a --key k b",
        "produce --key k images a b",
        "produce --key k -- images a b",
    ],
)
def test_names_stand_before_between_and_after_flags(line: str) -> None:
    parsed = build_parser().parse_args(line.split())
    assert (parsed.topic, parsed.files, parsed.key) == ("images", ["a", "b"], "k")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics list", "there is no 'topics'; did you mean topic?"),
        ("cluster statsu", "there is no 'statsu'; did you mean status?"),
        ("xyzzy", "there is no 'xyzzy'; there are serve, topic,"),
        ("serve --num.partitions 3", "num.partitions has no flag: set BMQ_NUM_PARTITIONS"),
        ("serve --num-partitions=3", "num.partitions has no flag: set BMQ_NUM_PARTITIONS"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_one(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(line.split())
    assert said in capsys.readouterr().err


def test_what_follows_two_hyphens_is_no_flag() -> None:
    assert build_parser().parse_args(["produce", "--", "images", "--json"]).files == ["--json"]


@pytest.mark.parametrize(
    "line", ["produce images a --kez k b", "produce images --kez=k", "topic --json list", "serve x"]
)
def test_what_is_unknown_is_refused_with_the_usage_of_the_command(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        build_parser().parse_args(line.split())
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: bmq {line.split()[0]} ")
    assert "unrecognized arguments: " in said or "there is no " in said


@pytest.mark.parametrize("value", ["\udcff", ["a", "\udcff"], [("name", "\udcff")]])
def test_bytes_that_are_no_text(value: object) -> None:
    arguments = argparse.Namespace(number=1, nothing=None, delete_config=value)
    with pytest.raises(UsageError, match=r"delete-config: '\\udcff' is not UTF-8"):
        check_text(arguments)
    arguments.as_bytes = ("delete_config",)
    check_text(arguments)


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", "\udcff"],
        ["topic", "delete", "a", "\udcff"],
        ["topic", "alter", "a", "--config", "retention.ms=\udcff"],
        ["group", "describe", "\udcff"],
        ["produce", "\udcff"],
        ["consume", "a", "--group", "\udcff"],
        ["cluster", "log-level", "\udcff"],
    ],
    ids=" ".join,
)
def test_commands_refuse_them(words: list[str], bmq: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's client would wait for ever: its thread that writes requests has ended."""
    assert bmq(*words) == 2
    assert "'\\udcff' is not UTF-8" in capsys.readouterr().err

"""Output of commands: tables, sizes, times, and bytes for people and for programs."""

from __future__ import annotations

import pytest

from bmq.cli.output import Table, fail, format_size, format_time, json_bytes, print_table, printable, text_bytes


def test_tables_are_as_wide_as_their_cells(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "N", "IS"), [("a", 1, True), ("longer", None, False)])
    assert capsys.readouterr().out.splitlines() == ["NAME    N   IS", "a       1  yes", "longer  -   no"]
    print_table(("NAME",), [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("size", "expected"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1024 * 1024 - 1, "1.0 MiB"), (1536, "1.5 KiB"),
     (1 << 40, "1.0 TiB"), (1 << 62, "4096.0 PiB")],
)  # fmt: skip
def test_sizes_have_a_unit_of_1024(size: int | None, expected: str) -> None:
    assert format_size(size) == expected


def test_a_table_without_rows_is_a_notice_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [], if_none="there are no topics")
    assert capsys.readouterr() == ("", "there are no topics\n")


def test_a_cell_that_is_wider_than_its_column_moves_the_rest_of_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table((("NAME", -4), ("N", 3)))
    table.row("a", 1)
    table.row("longer", 22)
    assert capsys.readouterr().out.splitlines() == ["NAME    N", "a       1", "longer   22"]


@pytest.mark.parametrize(
    ("timestamp_ms", "text"),
    [
        (-1, "-"),
        (-2, "-2"),
        (0, "1970-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
    ],
)
def test_a_time_outside_the_years_1970_to_9999_is_a_number(timestamp_ms: int, text: str) -> None:
    assert format_time(timestamp_ms) == text


@pytest.mark.parametrize(
    ("data", "as_json", "as_text"),
    [
        (None, None, "null"),
        (b"", "", ""),
        ("ä".encode(), "ä", "ä"),
        (b"a\\b", "a\\b", "a\\\\b"),
        (b"a\tb\x1b\\", "a\tb\x1b\\", "a\\tb\\x1b\\\\"),
        (b"\xff", {"base64": "/w=="}, "base64:/w=="),
    ],
)
def test_bytes_are_text_where_they_are_utf_8(data: bytes | None, as_json: object, as_text: str) -> None:
    assert (json_bytes(data), text_bytes(data)) == (as_json, as_text)


def test_text_of_others_does_not_act_on_a_terminal() -> None:
    assert printable("a\x1b[2J\nb\u202e") == "a\\x1b[2J\\nb\\u202e"
    assert printable("groß, 日本") == "groß, 日本"


def test_an_error_has_neither_passwords_nor_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("cannot reach etcd://me:secret@e1:2379\x07\nsee --meta", status=2) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("bmq: cannot reach etcd://")
    assert printed.err.endswith("@e1:2379\\x07\nsee --meta\n")
    assert "secret" not in printed.err

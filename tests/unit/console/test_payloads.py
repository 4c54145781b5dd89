"""Keys and values as the API shows them, and reads them."""

from __future__ import annotations

import pytest

from bmq.console.operations import NotPossible
from bmq.console.payloads import parse, show


@pytest.mark.parametrize(
    ("data", "wanted", "shown"),
    [
        (None, "auto", ("null", None)),
        (b"", "auto", ("text", "")),
        (b"text", "auto", ("text", "text")),
        (b'{"a": 1}', "auto", ("json", '{"a": 1}')),
        (b"{not json", "auto", ("text", "{not json")),
        (b"7", "auto", ("text", "7")),
        (b"7", "json", ("json", "7")),
        (b"no", "json", ("text", "no")),
        (b"[" * 100_000, "auto", ("text", "[" * 100)),
        (b"\xff\x00", "auto", ("hex", "ff00")),
        (b"a\x00b", "auto", ("hex", "610062")),
        (b"a\x00b", "text", ("text", "a\x00b")),
        (b"\xff", "text", ("hex", "ff")),
        (b"\xff\xfe", "base64", ("base64", "//4=")),
        (b"ab", "hex", ("hex", "6162")),
    ],
)
def test_shown(data: bytes | None, wanted: str, shown: tuple[str, str | None]) -> None:
    found = show(data, wanted, 1 << 20)
    text = found["text"]
    assert (found["format"], text[:100] if text is not None else None) == shown
    assert found["bytes"] == len(data or b"")


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_cut_inside_a_character_shows_the_whole_ones(cut: int) -> None:
    found = show("aé€x".encode(), "auto", cut)
    assert found["format"] == "text"
    assert "aé€x".startswith(found["text"] or "")
    assert found["is_cut"]


@pytest.mark.parametrize(
    ("text", "written_as", "data"),
    [
        ("é", "text", "é".encode()),
        ('{"a":1}', "json", b'{"a":1}'),
        ("00ff", "hex", b"\0\xff"),
        ("//4=", "base64", b"\xff\xfe"),
        (None, "hex", None),
    ],
)
def test_read(text: str | None, written_as: str, data: bytes | None) -> None:
    assert parse(text, written_as, "key") == data


@pytest.mark.parametrize(("text", "written_as"), [("xx", "hex"), ("*", "base64"), ("{", "json"), ("\ud800", "text")])
def test_what_is_not_so_written_is_refused(text: str, written_as: str) -> None:
    with pytest.raises(NotPossible, match="key is not"):
        parse(text, written_as, "key")

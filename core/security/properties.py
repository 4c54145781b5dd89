"""Java's property files: ``key=value`` a line, as Kafka's tools read them (``java.util.Properties``).  Pure.

Text is UTF-8 here, and Latin-1 if it is not UTF-8: a file that Java reads right means the same.  (Java reads UTF-8 as
Latin-1; it wants ``\\u00e9``, which is read here, too.)
"""

from __future__ import annotations

import re

_LINE_END = re.compile(r"\r\n|\n|\r")
_BLANKS = " \t\f"
_KEY = re.compile(r"(?:[^\\ \t\f=:]|\\.)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*(?:[=:][ \t\f]*)?")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(data: bytes) -> dict[str, str]:
    """Return keys and values of a file.  The last value of a key counts.  Raises ValueError if it has a NUL."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if "\0" in text:
        raise ValueError("it has a NUL, so it is not a text")
    found = {}
    for line in _logical_lines(text):
        key = _KEY.match(line)
        assert key is not None, "the pattern matches the empty text"
        separator = _SEPARATOR.match(line, key.end())
        assert separator is not None, "the pattern matches the empty text"
        found[_unescaped(key[0])] = _unescaped(line[separator.end() :])
    return found


def _logical_lines(text: str) -> list[str]:
    """Return the lines without comments and blank lines; a line with a final backslash goes on in the next line."""
    lines: list[str] = []
    goes_on = False
    for natural in _LINE_END.split(text):
        line = natural.lstrip(_BLANKS)
        if not goes_on and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        ends_open = backslashes % 2 == 1
        part = line[:-1] if ends_open else line
        if goes_on:
            lines[-1] += part
        else:
            lines.append(part)
        goes_on = ends_open
    return lines


def _unescaped(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        what = found[1]
        return chr(int(what[1:], 16)) if len(what) == 5 else _ESCAPES.get(what, what)

    return _ESCAPE.sub(replace, text)

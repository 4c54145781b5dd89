"""The clock of a server, from the Date of its response."""

from __future__ import annotations

import pytest

from bmq.cli.doctor.clock import ahead_s


@pytest.mark.parametrize(
    ("date", "ahead"),
    [
        ("Thu, 01 Jan 1970 00:16:40 GMT", 0.0),  # 1000 s: within the request
        ("Thu, 01 Jan 1970 00:16:39 GMT", 0.0),  # the second 999 ends when the request begins
        ("Thu, 01 Jan 1970 00:16:42 GMT", 1.0),
        ("Thu, 01 Jan 1970 00:16:30 GMT", -9.0),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_clock_is_read_from_a_response(date: str | None, ahead: float | None) -> None:
    assert ahead_s(date, 1000.0, 1001.0) == ahead

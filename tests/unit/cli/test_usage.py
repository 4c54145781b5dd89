"""Numbers on a command line."""

from __future__ import annotations

import argparse

import pytest

from bmq.cli.usage import positive, whole_number


@pytest.mark.parametrize("text", ["", "-1", "1.0", "+1", "1_000", " 1", "٣", "²", "1" * 20, "1" * 5000])
def test_what_is_not_a_number(text: str) -> None:
    """Also so many digits that Python itself refuses them, with another error."""
    for read in (whole_number, positive):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_numbers() -> None:
    assert whole_number("0") == 0
    assert whole_number("9223372036854775807") == (1 << 63) - 1
    assert positive("007") == 7
    with pytest.raises(argparse.ArgumentTypeError):
        positive("0")

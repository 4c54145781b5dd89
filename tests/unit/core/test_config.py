"""An address is a host and a port, or is refused."""

from __future__ import annotations

import pytest

from bmq.core.config import ConfigError, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [("h:1", ("h", 1)), ("[::1]:9092", ("::1", 9092)), ("0.0.0.0:0", ("0.0.0.0", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text, "listen") == address


@pytest.mark.parametrize("text", ["", "h", "h:", ":1", "h:65536", "h:-1", "h:１"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text, "listen")

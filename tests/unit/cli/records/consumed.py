"""A consumed record and the values of its fields, for the tests of formats."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

BYTES = st.binary(max_size=40)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@dataclass(frozen=True)
class Consumed:
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    topic: str = "orders"
    partition: int = 3
    offset: int = 7
    timestamp: int = 1_000

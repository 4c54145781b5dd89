"""The amounts, durations and repetitions of the failover measurement.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

UNITS = {"KB": 1000, "MB": 1000**2, "GB": 1000**3}
STREAMED_MAX = 24
"""Partitions that get records, however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts, durations and repetitions of a run."""

    sizes: tuple[str, ...] = ("10MB", "10GB")
    partitions: int = 12
    rounds: int = 5
    every_ms: float = 20.0
    """Milliseconds between two records of a partition: what a pause is exact to."""
    timeout_ms: int = 2000
    """``socket.timeout.ms`` of the clients: how long they wait for a server that is silent."""
    warm_s: float = 20.0
    """Seconds of the stream before the first act."""
    steady_s: float = 2.0
    """Seconds for which the stream must flow before an act, and after it."""
    observe_s: float = 20.0
    """Seconds for which a part stays away at least: Kafka gives a silent node up after 9."""

    @property
    def streamed(self) -> int:
        """The number of partitions that get records."""
        return min(self.partitions, STREAMED_MAX)


FULL = Plan()
QUICK = Plan(sizes=("10MB",), partitions=8, rounds=1, warm_s=2.0, steady_s=0.5, observe_s=1.0)
AFFECTED = 3
"""A partition whose longest pause is this many times the time between two records, or less, was not affected."""


def bytes_of(text: str) -> int:
    """Return the bytes that a text such as ``10MB`` names.  Raises ValueError if it names none."""
    number, unit = text[:-2], text[-2:]
    if unit not in UNITS or not number.isdigit():
        raise ValueError(f"{text} is no size; write it like 10MB or 10GB")
    return int(number) * UNITS[unit]

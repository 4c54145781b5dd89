"""The seeds, examples and sizes of tests: small each time, large under ``BMQ_SOAK=1`` (`make soak`)."""

from __future__ import annotations

import os

IS_SOAK = bool(os.environ.get("BMQ_SOAK"))


def seeds(few: int, many: int) -> range:
    """Return the seeds of a run: ``few``, or ``many`` of a soak."""
    return range(many if IS_SOAK else few)


def example_count(few: int, many: int) -> int:
    """Return Hypothesis' ``max_examples``: ``few``, or ``many`` of a soak."""
    return many if IS_SOAK else few


def amount(few: int, many: int) -> int:
    """Return how much data or work a test has: ``few``, which is above the bound under test, or ``many`` of a soak."""
    return many if IS_SOAK else few

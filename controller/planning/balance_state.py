"""The state of balancing that a plan leaves for the next plan."""

from __future__ import annotations

from typing import NamedTuple


class BalanceState(NamedTuple):
    """The state of balancing after a plan.

    | field | meaning |
    |---|---|
    | ``evens_counts`` | partitions at rest are being moved, and go on until counts are within ``STOP`` |
    | ``evens_loads`` | partitions with a load are being moved, and go on until loads are within ``STOP`` |
    | ``uneven_since`` | when a plan first found a move of a partition with a load that would help, and each one since |
    """

    evens_counts: bool = False
    evens_loads: bool = False
    uneven_since: float | None = None

    @property
    def is_under_way(self) -> bool:
        """True while balancing has more to do."""
        return self.evens_counts or self.evens_loads


AT_REST = BalanceState()
"""The state in which there is nothing to do."""
ASKED = BalanceState(evens_counts=True, evens_loads=True)
"""The state that an operator's request to balance begins with: whatever helps is moved now."""

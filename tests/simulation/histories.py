"""Random histories by seed: how many a run plays, which of them one test plays, and how a failed one is replayed."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from tests.harness.loop import run

T = TypeVar("T")
ACTS_WITHIN = 8
"""Histories of which one at least does something: a single one may meet faults until its end."""
REPLAYED = os.environ.get("BMQ_SIM_SEED", "")
"""The one seed that is played, if any."""


def seeds_wanted(default: int = 100) -> int:
    """Return how many histories all modules together play; docs/design/simulation.md has their shares."""
    return int(os.environ.get("BMQ_SIM_SEEDS", default))


@dataclass(frozen=True, slots=True, kw_only=True)
class Histories:
    """The histories of one test module, dealt to several tests (blocks) that processes can share."""

    module: str
    """Its ``__name__``."""
    seeds: int
    blocks: int
    """Most tests that the seeds are dealt to; a run of fewer seeds has as many tests as seeds."""
    limit_s: float = 7200
    """Virtual seconds that one history may last."""

    @property
    def each_block(self) -> pytest.MarkDecorator:
        """Return the mark of a test that plays the seeds of its argument ``block``; no block is without a seed."""
        return pytest.mark.parametrize("block", range(1 if REPLAYED else self._dealt))

    @property
    def _dealt(self) -> int:
        return min(self.blocks, self.seeds)

    def seeds_of(self, block: int) -> Sequence[int]:
        """Return the seeds of a block."""
        return [int(REPLAYED)] if REPLAYED else range(block, self.seeds, self._dealt)

    def check_acted(self, block: int, acked: int) -> None:
        """Check that the histories of a block, with ``acked`` in all, did something, if there are enough of them."""
        assert acked > 0 or len(self.seeds_of(block)) < ACTS_WITHIN, "the histories did nothing"

    def check_one_acts(self, history: Callable[[int], Coroutine[Any, Any, int]]) -> None:
        """Check that one of the first histories does something, however few seeds the run is asked for."""
        seeds = [int(REPLAYED)] if REPLAYED else range(ACTS_WITHIN)
        assert any(self.play(history, seed) > 0 for seed in seeds) or REPLAYED, "the histories did nothing"

    def play(self, history: Callable[[int], Coroutine[Any, Any, T]], seed: int, *, test: str = "") -> T:
        """Run one history; what it raises says how to replay it.  ``test``: part of its name, if there are several."""
        try:
            return run(history(seed), seed, limit_s=self.limit_s)
        except BaseException as error:
            path = self.module.replace(".", "/") + ".py"
            error.add_note(f"replay with: BMQ_SIM_SEED={seed} pytest {path}{test and f' -k {test}'}")
            raise

"""The deal of random histories to tests, and the output for a failed one (tests/simulation/histories.py)."""

from __future__ import annotations

import pytest

from tests.simulation import histories
from tests.simulation.histories import Histories, seeds_wanted

HISTORIES = Histories(module=__name__, seeds=25, blocks=10)


def test_each_seed_is_played_by_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "REPLAYED", "")
    blocks = list(HISTORIES.each_block.args[1])
    assert sorted(seed for block in blocks for seed in HISTORIES.seeds_of(block)) == list(range(25))


@pytest.mark.parametrize("seeds", [1, 8, 10, 11])
def test_no_block_is_without_a_seed(monkeypatch: pytest.MonkeyPatch, seeds: int) -> None:
    """A block without a seed does nothing, so a check that the histories did something would fail there."""
    monkeypatch.setattr(histories, "REPLAYED", "")
    few = Histories(module=__name__, seeds=seeds, blocks=10)
    dealt = [list(few.seeds_of(block)) for block in few.each_block.args[1]]
    assert all(dealt)
    assert sorted(seed for block in dealt for seed in block) == list(range(seeds))


def test_a_block_of_few_histories_may_do_nothing_and_all_of_them_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "REPLAYED", "")

    async def idle(seed: int) -> int:
        return 0

    async def sixth(seed: int) -> int:
        return int(seed == 5)

    HISTORIES.check_acted(0, 0)
    HISTORIES.check_one_acts(sixth)
    with pytest.raises(AssertionError, match="did nothing"):
        HISTORIES.check_one_acts(idle)
    many = Histories(module=__name__, seeds=10 * histories.ACTS_WITHIN, blocks=10)
    many.check_acted(0, 1)
    with pytest.raises(AssertionError, match="did nothing"):
        many.check_acted(0, 0)


def test_one_seed_is_replayed_by_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "REPLAYED", "4711")
    assert [HISTORIES.seeds_of(block) for block in HISTORIES.each_block.args[1]] == [[4711]]


def test_a_failure_says_how_to_replay_it() -> None:
    async def history(seed: int) -> int:
        raise ValueError(seed)

    with pytest.raises(ValueError, match="7") as failed:
        HISTORIES.play(history, 7, test="planned")
    command = "replay with: BMQ_SIM_SEED=7 pytest tests/unit/simulation/test_histories.py -k planned"
    assert command in failed.value.__notes__


def test_seeds_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_SIM_SEEDS", raising=False)
    assert (seeds_wanted(), seeds_wanted(40)) == (100, 40)
    monkeypatch.setenv("BMQ_SIM_SEEDS", "2000")
    assert (seeds_wanted(), seeds_wanted(40)) == (2000, 2000)

"""The claim of cached blocks: only a block that is read again soon after its eviction shows that room is missing."""

from __future__ import annotations

import pytest

from bmq.storage.block_claim import HALVED_S, BlockClaim

LIMIT = 100


def claim_of(*evicted: str, limit: int = LIMIT) -> BlockClaim:
    """Return a claim that has seen these blocks, of 10 bytes each, evicted."""
    made = BlockClaim(limit)
    for key in evicted:
        made.evicted(key, 10)
    return made


def test_a_block_that_was_never_here_claims_nothing() -> None:
    claim = claim_of("a")
    assert not claim.is_read("b", 10, 30, 0.0)
    assert claim.at(0.0) == 0


def test_a_block_that_is_read_again_claims_more_than_there_is() -> None:
    claim = claim_of("a", "b", "c")
    assert claim.is_read("a", 10, 30, 0.0)
    assert claim.at(0.0) == 40
    assert claim.is_read("b", 10, 30, 0.0), "the room was not given yet"
    assert claim.at(0.0) == 50
    assert claim.is_read("c", 10, 95, 0.0)
    assert claim.at(0.0) == LIMIT
    assert not claim.is_read("a", 10, 30, 0.0), "it counts once for each eviction"


def test_evicted_blocks_are_remembered_up_to_the_limit() -> None:
    claim = claim_of(*map(str, range(11)))
    assert not claim.is_read("0", 10, 30, 0.0)
    assert claim.is_read("1", 10, 30, 0.0)


@pytest.mark.parametrize(("after_s", "left"), [(0.0, 64), (0.9, 64), (1.0, 32), (2.5, 16), (10.0, 0)])
def test_a_claim_is_halved_while_nothing_supports_it(after_s: float, left: int) -> None:
    claim = claim_of("a")
    claim.is_read("a", 10, 54, 5.0)
    assert claim.at(5.0 + after_s * HALVED_S) == left
    assert claim.is_any == (left > 0)


def test_a_claim_that_is_supported_again_is_not_halved_at_once() -> None:
    claim = claim_of("a", "b")
    claim.is_read("a", 10, 54, 0.0)
    claim.is_read("b", 10, 20, 0.9 * HALVED_S)
    assert claim.at(1.8 * HALVED_S) == 74
    assert claim.at(1.9 * HALVED_S) == 37

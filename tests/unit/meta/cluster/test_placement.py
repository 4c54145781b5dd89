"""The placement of items on proxies: even, the same everywhere, and little moves when a proxy comes or goes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from bmq.meta.cluster.placement import ITEMS_AT_ONCE, Places, _scores, place
from tests.harness.loop_stops import is_short, longest_step_s


@pytest.mark.parametrize("count", [1, 3, 7, 100, 1000])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_no_node_has_more_than_its_even_share(count: int, nodes: int) -> None:
    placed = place(b"seed", count, range(nodes))
    assert len(placed) == count
    assert max(placed.count(node) for node in range(nodes)) <= -(-count // nodes)


def test_the_order_of_the_nodes_does_not_matter() -> None:
    assert place(b"seed", 100, [3, 1, 2]) == place(b"seed", 100, [1, 2, 3])


def test_groups_of_items_are_placed_differently() -> None:
    assert place(b"one", 100, range(4)) != place(b"two", 100, range(4))


@pytest.mark.parametrize("seed", range(10))
def test_little_more_than_the_share_of_a_node_that_leaves_is_moved(seed: int) -> None:
    before, after = place(b"%d" % seed, 1000, range(8)), place(b"%d" % seed, 1000, range(7))
    moved = sum(one != other for one, other in zip(before, after, strict=True))
    assert 125 <= moved <= 200


def one_by_one(seed: bytes, count: int, nodes: list[int]) -> list[int]:
    """Return the same as ``place``, as its text says it: each item takes its first choice with room."""
    start = np.uint64(int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big"))
    room = dict.fromkeys(nodes, -(-count // len(nodes)))
    placed = []
    for scores in _scores(start, 0, count, np.array(nodes)):
        _, node = max((score, node) for score, node in zip(scores, nodes, strict=True) if room[node])
        room[node] -= 1
        placed.append(node)
    return placed


@pytest.mark.parametrize("count", [0, 1, 5, 100, ITEMS_AT_ONCE, ITEMS_AT_ONCE + 1, 3 * ITEMS_AT_ONCE])
@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_items_placed_together_are_where_each_of_them_would_be(count: int, nodes: int) -> None:
    assert place(b"seed", count, range(nodes)) == one_by_one(b"seed", count, list(range(nodes)))


def test_an_item_is_at_the_same_place_whichever_is_looked_at_first() -> None:
    places, all_placed = Places(b"seed", 10_000, range(3)), place(b"seed", 10_000, range(3))
    assert [places[each] for each in (9_999, 0, 5_000, -1)] == [all_placed[each] for each in (9_999, 0, 5_000, -1)]
    assert places[4_000:4_100] == all_placed[4_000:4_100]
    with pytest.raises(IndexError):
        places[10_000]


def test_very_many_items_are_placed_in_short_steps() -> None:
    places = Places(b"seed", 100_000, range(10))
    longest_s = longest_step_s(places[each] for each in range(0, 100_000, ITEMS_AT_ONCE))
    assert is_short(longest_s, 0.010), longest_s
    last = Places(b"seed", 100_000, range(10))
    longest_s = longest_step_s(last[each] for each in (99_999,))
    assert is_short(longest_s, 0.025), longest_s

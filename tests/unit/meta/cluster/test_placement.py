"""The placement of items on proxies: even, the same everywhere, and little moves when a proxy comes or goes."""

from __future__ import annotations

import pytest

from bmq.meta.cluster.placement import place


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

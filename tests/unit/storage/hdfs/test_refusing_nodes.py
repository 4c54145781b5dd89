"""Datanodes that live and refuse blocks: for how long they are waited for."""

from __future__ import annotations

from bmq.storage.hdfs.refusing_nodes import FORGET_S, RefusingNodes

HOPE_S = 30.0


def test_a_node_that_refuses_for_long_is_not_waited_for_until_it_takes_a_block() -> None:
    nodes = RefusingNodes(HOPE_S)
    assert nodes.refused({"b", "a"}, 0.0) == ["a", "b"]
    assert nodes.refused({"a"}, HOPE_S - 1) == ["a"]
    nodes.took({"b"})
    assert nodes.refused({"b", "a"}, HOPE_S) == ["b"], "a has refused for so long, b has just taken a block"
    assert nodes.refused({"a"}, HOPE_S + 1) == []
    nodes.took({"a"})
    assert nodes.refused({"a"}, HOPE_S + 2) == ["a"]
    assert nodes.refused({"a"}, 2 * HOPE_S + 2) == []
    assert nodes.refused({"a"}, 2 * HOPE_S + 3 + FORGET_S) == ["a"], "an old refusal is another matter"
    assert repr(nodes) == "<RefusingNodes ['a']>", "and is not kept"

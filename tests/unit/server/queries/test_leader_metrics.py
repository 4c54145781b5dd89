"""Numbers of the cluster's leader that /metrics shows: its term, and the room of storage."""

from __future__ import annotations

import pytest

from bmq.console.state import StorageFacts
from bmq.controller.planning.planner_view import Why
from bmq.controller.store_upkeep import RevisionHistory, StoreUpkeep
from bmq.meta.maintenance import StoreStatus
from bmq.server.roles.controller import ControllerRole
from tests.unit.server.queries.console_node import metrics, node_with


async def test_a_leader_counts_failovers_and_moves_by_their_cause() -> None:
    async with node_with("controller") as node:
        assert node.controller is not None
        term = node.controller.controller.leading
        assert term is not None
        term.watch.declared_dead.update({"lease_ended": 2, "no_answer": 1})
        term.pending_moves.moves[Why.DEAD] = 2
        numbers = metrics(node)
    assert numbers["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert numbers["members_declared_dead{lease_ended}"] == 2
    assert numbers["members_declared_dead{no_answer}"] == 1
    assert numbers["moves{dead}"] == 2
    assert numbers["moves_pending"] == 0
    assert (numbers["deleted_topics"], numbers["topics_access_under_way"]) == (0, 0)


async def test_the_leader_shows_the_room_of_storage_and_of_the_roots_quota() -> None:
    room: StorageFacts = {
        "root": "hdfs://n/bmq", "datanodes": 3, "is_in_safe_mode": False, "missing_blocks": 0, "error": "",
        "space": {"capacity_bytes": 1000, "used_bytes": 600, "remaining_bytes": 400},
        "usage": {"bytes": 90, "bytes_quota": 100, "names": 7, "names_quota": None},
    }  # fmt: skip
    async with node_with("controller") as node:
        node.storage_room.known = room
        numbers = metrics(node)
        assert (numbers["storage_capacity_bytes"], numbers["storage_remaining_bytes"]) == (1000, 400)
        assert (numbers["root_bytes"], numbers["root_quota_bytes"]) == (90, 100)
        assert (numbers["root_names"], numbers["root_quota_names"]) == (7, 0)
        node.storage_room.known = {**room, "space": None, "usage": None}
        assert metrics(node)["root_bytes"] == 0
    async with node_with("controller", starts=False) as other:
        other.storage_room.known = room
        assert "root_bytes" not in metrics(other), "the leader alone shows them"


async def test_the_leader_shows_the_size_of_etcds_database(monkeypatch: pytest.MonkeyPatch) -> None:
    upkeep = object.__new__(StoreUpkeep)
    upkeep.status = StoreStatus(bytes=9, bytes_in_use=4, quota_bytes=10, is_full=True)
    upkeep.history = RevisionHistory(1)
    upkeep.history.compacted = 7
    async with node_with("controller") as node:
        assert "etcd_database_bytes" not in metrics(node), "its store is in memory"
        monkeypatch.setattr(ControllerRole, "store_upkeep", upkeep)
        numbers = metrics(node)
    assert (numbers["etcd_database_bytes"], numbers["etcd_database_bytes_in_use"]) == (9, 4)
    assert (numbers["etcd_quota_bytes"], numbers["etcd_is_full"], numbers["etcd_compacted_revision"]) == (10, True, 7)

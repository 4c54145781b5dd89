"""Findings about storage: NameNodes, room and quotas, each with its remedy."""

from __future__ import annotations

import pytest

from bmq.cli.doctor.storage import check_namenodes, check_storage
from bmq.storage.health import NameNodeState, StorageHealth

NN1 = NameNodeState("nn1:8020", "active")
NN2 = NameNodeState("nn2:8020", "standby")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([], []),
        ([NN1, NN2], []),
        ([NameNodeState("nn1:8020")], []),
        ([NN1, NN2._replace(state="", error="refused")], ["the NameNode does not answer: refused"]),
        ([NN1._replace(state="standby"), NN2], ["none is active: nn1:8020 standby, nn2:8020 standby"]),
        ([NN1._replace(state="initializing")], ["none is active: nn1:8020 initializing"]),
        ([NN1, NN2._replace(state="active")], ["several are active: nn1:8020, nn2:8020"]),
    ],
)
def test_namenodes_without_one_active_are_found(states: list[NameNodeState], expected: list[str]) -> None:
    found = check_namenodes(states)
    assert [each.what for each in found] == expected
    assert all(each.remedy for each in found)


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (StorageHealth(), []),
        (StorageHealth(root_refusal="/zone is in an encryption zone"), ["/zone is in an encryption zone"]),
        (StorageHealth(capacity_bytes=1000, remaining_bytes=100), []),
        (StorageHealth(capacity_bytes=1000, remaining_bytes=99), ["99 B of 1000 B are left"]),
        (
            StorageHealth(is_in_safe_mode=True),
            ["the NameNode is in safe mode: nothing can be created, moved or deleted"],
        ),
        (StorageHealth(root_bytes=899, root_bytes_quota=1000, root_names=9, root_names_quota=-1), []),
        (
            StorageHealth(root_bytes=901, root_bytes_quota=1000),
            ["901 B of the quota of 1000 B are used, all copies counted"],
        ),
        (
            StorageHealth(root_names=95, root_names_quota=100),
            ["95 of 100 files and folders of the quota are used"],
        ),
        (StorageHealth(root_names=1, root_names_quota=0), ["1 of 0 files and folders of the quota are used"]),
        (StorageHealth(missing_blocks=2), ["2 blocks of this HDFS have no copy left"]),
    ],
)
def test_storage_that_is_full_or_damaged_is_found(health: StorageHealth, expected: list[str]) -> None:
    found = check_storage("hdfs://h", health)
    assert [each.what for each in found] == expected
    assert all(each.remedy for each in found)

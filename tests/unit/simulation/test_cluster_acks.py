"""The check of what owners acknowledge (tests/simulation/cluster_acks.py): each breach is told, and nothing else."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch, Record, build_batch
from tests.simulation.cluster_acks import OneOwner

KEY = PartitionKey(uuid.UUID(int=1), 0)
Ack = tuple[str, int, int]
"""An owner, its epoch, and the offset of a batch of one record."""


def batch(offset: int, epoch: int) -> Batch:
    data = build_batch([Record(value=b"v")], base_offset=offset, base_timestamp=1000, leader_epoch=epoch)
    return Batch(memoryview(data))


def after(acks: list[Ack]) -> tuple[list[str], OneOwner]:
    notified: list[str] = []
    checked = OneOwner(notified.append)
    for owner, epoch, offset in acks:
        checked.acknowledged(KEY, [batch(offset, epoch)], owner)
    return notified, checked


@pytest.mark.parametrize(
    ("acks", "owners", "late"),
    [
        ([], 0, 0),
        ([("a", 1, 0), ("a", 1, 1), ("a", 1, 5)], 1, 0),
        ([("a", 1, 0), ("b", 2, 1), ("b", 2, 2)], 2, 0),
        ([("a", 1, 0), ("a", 2, 1), ("b", 3, 2), ("a", 4, 3)], 3, 0),
        ([("a", 1, 0), ("b", 2, 3), ("a", 1, 1), ("a", 1, 2), ("b", 2, 4)], 2, 2),
        ([("b", 2, 3), ("a", 1, 2)], 2, 1),
    ],
    ids=["nothing", "one owner", "its successor", "back again", "late, and found", "late, and its only one"],
)
def test_what_owners_may_acknowledge_is_counted(acks: list[Ack], owners: int, late: int) -> None:
    breaches, checked = after(acks)
    assert (breaches, checked.owners, checked.late) == ([], owners, late)


@pytest.mark.parametrize(
    ("acks", "breach"),
    [
        ([("a", 1, 0), ("a", 1, 0)], "where"),
        ([("a", 1, 1), ("a", 1, 0)], "where"),
        ([("a", 1, 0), ("a", 1, 1), ("b", 2, 1)], "where"),
        ([("a", 1, 0), ("b", 1, 1)], "both have epoch 1"),
        ([("a", 1, 0), ("b", 2, 1), ("a", 1, 1)], "late"),
        ([("a", 1, 0), ("b", 2, 1), ("c", 3, 5), ("a", 1, 2)], "late"),
        ([("a", 1, 0), ("b", 2, 4), ("a", 1, 0)], "where"),
    ],
    ids=[
        "twice", "backwards", "over its predecessor's", "two owners of an epoch", "late, and not found",
        "late, and two have followed", "late, and twice",
    ],
)  # fmt: skip
def test_a_breach_is_told(acks: list[Ack], breach: str) -> None:
    breaches, _ = after(acks)
    assert len(breaches) == 1
    assert breach in breaches[0]

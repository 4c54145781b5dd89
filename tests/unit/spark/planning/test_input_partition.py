"""A pickled partition, as an executor gets it: with its token, of which it shows nothing."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from bmq.spark.planning.input_partition import BmqPartition, partitions_of
from bmq.spark.planning.slices import Range, Slice, slices
from bmq.storage.filesystem import Unsupported
from tests.unit.spark.planning.test_slices import facts, log, segment
from tests.unit.spark.planning.tokens import granted


def test_a_partition_carries_its_token_and_hides_it() -> None:
    token = granted(1)
    partition = BmqPartition([], token)
    assert pickle.loads(pickle.dumps(partition)).token == token
    assert BmqPartition([]).token is None
    assert repr(partition) == str(partition) == "BmqPartition(0 slices of 0 bytes)"


def planned(coding: str) -> list[Slice]:
    """Return the slices of a log whose second segment has ``coding``."""
    first, second = segment(0, 10), replace(segment(10, 20), coding=coding)
    whole = log(first, second)
    return slices(whole, Range(0, 20), [facts(first), facts(second)], spacing=1)


def test_an_erasure_coded_segment_is_refused_at_planning_if_executors_have_a_token_alone() -> None:
    """Name the file and the ways on in the driver: no task fails, and none is tried again."""
    tasks = [[piece] for piece in planned("RS-6-3-1024k")]
    with pytest.raises(
        Unsupported, match=r"partition 0 of t: the segment .* is erasure-coded by RS-6-3-1024k.*setPolicy -replicate"
    ):
        partitions_of(tasks, granted(1))
    assert len(partitions_of(tasks, None)) == 2, "an open cluster needs no log-in"
    assert len(partitions_of([[piece] for piece in planned("")], granted(1))) == 2

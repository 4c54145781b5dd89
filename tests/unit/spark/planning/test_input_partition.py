"""A pickled partition, as an executor gets it: with its token, of which it shows nothing."""

from __future__ import annotations

import pickle

from bmq.spark.planning.input_partition import BmqPartition
from tests.unit.spark.planning.tokens import granted


def test_a_partition_carries_its_token_and_hides_it() -> None:
    token = granted(1)
    partition = BmqPartition([], token)
    assert pickle.loads(pickle.dumps(partition)).token == token
    assert BmqPartition([]).token is None
    assert repr(partition) == str(partition) == "BmqPartition(0 slices of 0 bytes)"

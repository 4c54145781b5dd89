"""Calls to the NameNode, told apart by who makes them."""

from __future__ import annotations

from bench.hdfs_facts import of_methods, split_calls


def test_calls_of_datanodes_are_told_apart() -> None:
    counts = {"Create": 3.0, "GetFileInfo": 2.0, "SendHeartbeat": 10.0, "BlockReceivedAndDeleted": 5.0}
    assert split_calls(counts) == (5.0, 15.0)


def test_a_call_is_counted_once() -> None:
    bean = {"OverallCreateNumOps": 3, "CreateNumOps": 3, "CreateAvgTime": 0.5, "DeferredFsyncNumOps": 1,
            "FileNotFoundExceptionNumOps": 2, "name": "Hadoop"}  # fmt: skip
    assert of_methods(bean) == {"Create": 3, "FileNotFoundException": 2}

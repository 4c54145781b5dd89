"""The files of integration tests that one worker plays together."""

from __future__ import annotations

import pytest

from tests.harness.by_service import HDFS, ByService, scope_of

FOLDER = "tests/integration"


@pytest.mark.parametrize("file", ["test_hdfs_client.py", "test_log_kill9.py", "test_spark_batch.py"])
def test_files_with_hdfs_are_one_scope(file: str) -> None:
    assert scope_of(f"{FOLDER}/{file}::test_it[a::b]") == HDFS


@pytest.mark.parametrize("file", ["test_serve.py", "clients/test_commands.py", "test_logs_and_traces.py"])
def test_each_other_file_is_a_scope(file: str) -> None:
    assert scope_of(f"{FOLDER}/{file}::TestIt::test_it[a/test_hdfs_b]") == f"{FOLDER}/{file}"


def test_the_scheduler_deals_scopes() -> None:
    scheduler = ByService.__new__(ByService)
    assert scheduler._split_scope(f"{FOLDER}/test_spark_sink.py::test_it") == HDFS

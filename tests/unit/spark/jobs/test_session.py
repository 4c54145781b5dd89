"""The line that a job prints for an error of Spark (spark/jobs/session.py)."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from bmq.spark.jobs.session import _reason

TRACE = """\
An exception was thrown from the Python worker. Please see the stack trace below.
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
{error}

"""


@pytest.mark.parametrize(
    "name", ["OutOfSpace", "NotAllowed", "CorruptData", "StorageUnavailable", "PipelineFailed", "StorageError"]
)
def test_an_error_of_storage_in_a_task_is_the_cause(name: str) -> None:
    error = f"bmq.storage.filesystem.{name}: /topics/t: what is wrong"
    assert _reason(PySparkException(TRACE.format(error=error))) == "/topics/t: what is wrong"


def test_other_errors_are_not_of_spark() -> None:
    assert _reason(ValueError("no")) is None

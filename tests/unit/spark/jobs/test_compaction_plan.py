"""The tasks of `compact` in Spark (spark/jobs/compaction_plan.py), without Spark."""

from __future__ import annotations

import importlib.util
import traceback
from importlib.machinery import ModuleSpec
from unittest.mock import Mock

import pytest
from pyspark.errors import PySparkException

from bmq.spark.jobs.compaction_plan import DraftTask
from bmq.spark.jobs.session import _reason


@pytest.mark.parametrize("step", ["hashes", "places", "files"])
def test_an_executor_without_numba_is_told_what_to_install(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "numba" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    task = DraftTask(Mock(), b"secret", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        list(getattr(task, step)(iter(())))
    shown = _reason(PySparkException("".join(traceback.format_exception(caught.value))))
    assert shown is not None
    assert shown.startswith("the executors' Python has no numba (")
    assert "on every executor, install the wheel" in shown
    assert "-m pip install " in shown
    assert "docs/spark.md" in shown

"""Tests of features that the installed PySpark lacks are left out by name (tests/harness/spark_features.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
STANDS_IN = """
import pyspark
pyspark.__version__ = "{version}"
"""


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, version: str, source: str) -> pytest.RunResult:
    """Run tests in a process of their own, where PySpark says that it is of this version."""
    path = [str(ROOT / ".links"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.harness.spark_features --strict-markers -p no:cacheprovider")
    pytester.makeconftest(STANDS_IN.format(version=version))
    pytester.makepyfile(source)
    return pytester.runpytest_subprocess("-v", "-rs", "-W", "error")


NEEDS = """
import pytest

@pytest.mark.needs_spark("stream reader")
def test_reads(): pass

@pytest.mark.needs_spark("stream writer")
def test_writes(): pass

def test_neither(): pass
"""


@pytest.mark.parametrize(("version", "passed"), [("4.0.5", 1), ("4.1.4", 2), ("4.2.0", 3), ("4.10.1", 3)])
def test_tests_are_left_out_by_the_version(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, version: str, passed: int
) -> None:
    result = run(pytester, monkeypatch, version, NEEDS)
    result.assert_outcomes(passed=passed, skipped=3 - passed)
    if version == "4.0.5":
        result.stdout.fnmatch_lines(["*stream reader: needs PySpark 4.2*"])


def test_a_marker_without_a_feature_s_name_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, "4.2.0", NEEDS.replace("stream writer", "stream of consciousness"))
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*KeyError: 'stream of consciousness'*"])


SOCKET = """
import socket, warnings, pytest

@pytest.fixture
def spark(): pass

def test_with_a_session(spark): warnings.warn("unclosed <socket.socket fd=7, family=2>", ResourceWarning)

def test_of_another_warning(spark): warnings.warn("unclosed file", ResourceWarning)

def test_without_a_session(): warnings.warn("unclosed <socket.socket fd=7, family=2>", ResourceWarning)
"""


@pytest.mark.parametrize(("version", "passed"), [("4.1.4", 1), ("4.2.0", 0)])
def test_only_older_versions_may_leave_sockets_open(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, version: str, passed: int
) -> None:
    run(pytester, monkeypatch, version, SOCKET).assert_outcomes(passed=passed, failed=3 - passed)

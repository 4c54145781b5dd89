"""A pytest plugin for tests with Spark: it leaves out tests of features that the installed PySpark lacks.

`@pytest.mark.needs_spark("stream reader")` names the feature, one of `features()`.  `make spark-matrix` runs the tests
on several versions of PySpark; the reason of a skipped test names the feature and the first version that has it.
tests/conftest.py loads this plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bmq.spark.pyspark_version import Feature

MARKER = "needs_spark"
LEFT_SOCKETS = "ignore:unclosed <socket.socket fd=:ResourceWarning"
"""The warning of older versions of PySpark, which leave it to the garbage collector to close the sockets of results."""


def features() -> dict[str, Feature]:
    """Return the features of PySpark that tests need, by the names that markers have.

    Imports PySpark, so it is called for runs with Spark's tests alone.
    """
    from bmq.spark.pyspark_version import STREAM_READER, STREAM_WRITER, Feature

    return {
        "stream reader": STREAM_READER,
        "stream writer": STREAM_WRITER,
        "filter push-down": Feature("a filter that is pushed down to a source in Python", "4.1"),
        "kept plan": Feature("a plan that is kept for all queries of a load()", "4.1"),
        "closed sockets": Feature("a socket of results that is closed after its last row", "4.2"),
    }


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(feature): the test needs a feature that some versions of PySpark lack"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of missing features, and let tests with a session pass over sockets that PySpark leaves open.

    Raises KeyError if a marker names no feature.
    """
    for item in items:
        for marker in item.iter_markers(MARKER):
            feature = features()[marker.args[0]]
            if not feature.is_in():
                item.add_marker(pytest.mark.skip(reason=f"{marker.args[0]}: needs PySpark {feature.since}"))
        if "spark" in getattr(item, "fixturenames", ()) and not features()["closed sockets"].is_in():
            item.add_marker(pytest.mark.filterwarnings(LEFT_SOCKETS))

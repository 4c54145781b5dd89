"""A Spark data source, sink and jobs that read segments straight from storage.

``BmqDataSource`` is imported at its first use: planning and decoding need no Spark.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from bmq.core.extras import how_to_install

if TYPE_CHECKING:
    from bmq.spark.source import BmqDataSource as BmqDataSource

__all__ = ["BmqDataSource"]

EXTRA = frozenset({"pyspark", "pyarrow", "pandas", "numba", "confluent_kafka"})
"""Packages of ``bmq[spark]`` that the data source imports."""


def __getattr__(name: str) -> Any:
    if name == "BmqDataSource":
        try:
            from bmq.spark.source import BmqDataSource
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in EXTRA:
                raise
            hint = f"BmqDataSource needs the package {package}: {how_to_install('spark')}"
            raise ModuleNotFoundError(hint, name=error.name) from error
        _run_workers_here()
        return BmqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _run_workers_here() -> None:
    """Make Spark start its Python workers with this interpreter, unless the user has chosen one.

    Spark takes ``python3`` from the path, which in an environment that is not activated is another Python, without this
    package.  Under ``spark-submit`` nothing is set: it has its own settings.  Takes effect on sessions that are started
    later.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

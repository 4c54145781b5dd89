"""Spark reads segments straight from storage.

``BmqDataSource`` is imported when it is first asked for: planning and decoding need no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bmq.spark.source import BmqDataSource as BmqDataSource

__all__ = ["BmqDataSource"]


def __getattr__(name: str) -> Any:
    if name == "BmqDataSource":
        from bmq.spark.source import BmqDataSource

        return BmqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

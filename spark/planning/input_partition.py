"""An input partition: the slices that one task reads.

It stands apart from its reader, so that planning does not load the decoder: planning runs in a process of its own per
query.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from bmq.spark.planning.slices import Slice


class BmqPartition(InputPartition):
    """One task's byte ranges of segments, read one after the other."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(None)
        self.slices = tuple(slices)

    def __repr__(self) -> str:
        size = sum(piece.size for piece in self.slices)
        return f"BmqPartition({len(self.slices)} slices of {size} bytes)"

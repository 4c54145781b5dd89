"""An input partition: what one task reads.

Apart from what reads it, so that planning, in a process of its own for each query, does not load the decoder.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from bmq.spark.planning.slices import Slice


class BmqPartition(InputPartition):
    """What one task reads: byte ranges of segments, one after the other."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__(None)
        self.slices = tuple(slices)

    def __repr__(self) -> str:
        size = sum(piece.size for piece in self.slices)
        return f"BmqPartition({len(self.slices)} slices of {size} bytes)"

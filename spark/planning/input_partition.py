"""An input partition: the slices that one task reads.

It stands apart from its reader, so that planning does not load the decoder: planning runs in a process of its own per
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from bmq.spark.planning.slices import Slice
from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs.zones import needs_own_login

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken


class BmqPartition(InputPartition):
    """One task's byte ranges of segments, read one after the other.

    ``token`` is the task's log-in to HDFS, None if none is needed.  A pickled partition is the token's only way to an
    executor: options, plans and logs never have it.
    """

    def __init__(self, slices: Sequence[Slice], token: StorageToken | None = None) -> None:
        super().__init__(None)
        self.slices = tuple(slices)
        self.token = token

    def __repr__(self) -> str:
        size = sum(piece.size for piece in self.slices)
        return f"BmqPartition({len(self.slices)} slices of {size} bytes)"


def partitions_of(tasks: Sequence[Sequence[Slice]], token: StorageToken | None) -> list[InputPartition]:
    """Return the partitions of a plan.

    Raises Unsupported for erasure-coded files whose readers have a token alone: hdfs-native takes none.
    """
    if token is not None:
        for piece in (piece for task in tasks for piece in task if piece.coding):
            where = f"partition {piece.partition} of {piece.topic}: the segment {piece.segment}"
            raise Unsupported(needs_own_login(where, piece.coding))
    return [BmqPartition(task, token) for task in tasks]

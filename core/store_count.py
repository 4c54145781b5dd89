"""The count that shows whether a metadata store is older than the root that it is used with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCount:
    """A number of the metadata store that only rises, by each count of a leader.

    ``rebuild_count`` is that of the store, ``number`` counts within it.  ``id`` is random, of 32 hexadecimal digits:
    two stores that were copied from one give equal numbers, and different ids.
    """

    rebuild_count: int
    number: int
    id: str

    @property
    def order(self) -> tuple[int, int]:
        """The order of counting: rebuild count, then number."""
        return (self.rebuild_count, self.number)

    def __str__(self) -> str:
        return f"{self.rebuild_count}-{self.number}"

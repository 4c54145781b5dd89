"""The cells of the matrix: a version of PySpark, a part of Spark's tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bmq.spark.pyspark_version import STREAM_READER, Feature

VERSIONS = ("4.0.5", "4.1.4", "4.2.0", "4.3.0")
"""A release of each minor version that `pyproject.toml` allows, from the oldest to the newest.

The version of the extra `dev` is among them; the others are the newest of their minor versions.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of Spark's tests: ``title`` is its column's.  ``feature`` is what all its tests need, None for nothing."""

    name: str
    title: str
    paths: tuple[str, ...]
    feature: Feature | None = None


def _integration(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/integration/test_spark_{name}.py" for name in names)


PARTS = (
    Part("unit", "unit tests", ("tests/unit/spark",)),
    Part("batches", "reading batches", _integration("batch", "reuse", "times")),
    Part("streams", "reading streams", _integration("streaming"), STREAM_READER),
    Part("writing", "writing", _integration("sink")),
    Part("jobs", "`to_parquet`, `audit`", _integration("jobs")),
    Part("compact", "`compact`", _integration("compact")),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a part's tests on a version."""

    version: str
    part: Part

    @property
    def key(self) -> str:
        """The cell in the file of results."""
        return f"{self.version} {self.part.name}"

    def is_possible(self) -> bool:
        """Return whether the version has the feature that the part needs."""
        return self.part.feature is None or self.part.feature.is_in(self.version)


def all_cells() -> Iterator[Cell]:
    """Return the cells that can be run, in the order of the table."""
    cells = (Cell(version, part) for version in VERSIONS for part in PARTS)
    return (cell for cell in cells if cell.is_possible())

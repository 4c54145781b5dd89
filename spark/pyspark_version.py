"""The installed PySpark: the features that some versions lack, and the changes between versions."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from bmq.spark.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True, slots=True)
class Feature:
    """A part of PySpark that earlier versions lack.

    ``use`` names in errors what a user needs it for.  ``since`` is the first version that has it.
    """

    use: str
    since: str

    def is_in(self, version: str = pyspark.__version__) -> bool:
        """Return whether this version of PySpark has the feature."""
        return _minor(version) >= _minor(self.since)

    def require(self, version: str = pyspark.__version__) -> None:
        """Raise OptionError, which names the use and both versions, if this version of PySpark lacks the feature."""
        if not self.is_in(version):
            raise OptionError(
                f"{self.use} needs PySpark {self.since} or later, and this is PySpark {version}: read and write batches"
                " there, or upgrade PySpark"
            )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


STREAM_READER = Feature("a streaming query that reads bmq", "4.2")
"""The module ``pyspark.sql.streaming.datasource``: read limits of streaming queries."""
STREAM_WRITER = Feature("a streaming query that writes bmq", "4.1")
"""The class ``DataSourceStreamArrowWriter``."""
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
"""Before PySpark 4.2 timestamps are in UTC unless the caller says otherwise."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's schema of the same columns, with timestamps in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)


def arrow_type(kind: DataType) -> pa.DataType:
    """Return Arrow's type of the same values, with timestamps in UTC."""
    return to_arrow_type(kind, **_IN_UTC)

"""The installed PySpark: the required versions, and the changes between versions."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type

from bmq.spark.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

STREAM_READER = (4, 2)
"""The first version with ``pyspark.sql.streaming.datasource``: read limits of streaming queries."""
STREAM_WRITER = (4, 1)
"""The first version with ``DataSourceStreamArrowWriter``."""
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
"""Before PySpark 4.2 timestamps are in UTC unless the caller says otherwise."""


def require(what: str, least: tuple[int, int], found: str = pyspark.__version__) -> None:
    """Raise OptionError, which names ``what`` and both versions, if version ``found`` is older than ``least``."""
    numbers = tuple(int(each) for each in re.findall(r"\d+", found)[:2])
    if numbers < least:
        raise OptionError(
            f"{what} needs PySpark {least[0]}.{least[1]} or later, and this is PySpark {found}: read and write batches"
            " there, or upgrade PySpark"
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return Arrow's schema of the same columns, with timestamps in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)


def arrow_type(kind: DataType) -> pa.DataType:
    """Return Arrow's type of the same values, with timestamps in UTC."""
    return to_arrow_type(kind, **_IN_UTC)

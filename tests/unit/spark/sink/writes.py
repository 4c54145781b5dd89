"""Schemas and options of writes to a topic."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql.types import StructType

from bmq.spark.sink.options import SinkOptions, sink_of

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
HEADERS = "headers array<struct<key:string,value:binary>>"


def schema(ddl: str) -> StructType:
    fields = []
    for column in re.split(r", (?=\w+ )", ddl):
        name, _, kind = column.partition(" ")
        fields.append({"name": name, "type": _TYPES[kind], "nullable": True, "metadata": {}})
    return StructType.fromJson({"type": "struct", "fields": fields})


_TYPES: dict[str, Any] = {
    "string": "string",
    "binary": "binary",
    "int": "integer",
    "bigint": "long",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "array<struct<key:string,value:binary>>": {
        "type": "array",
        "containsNull": True,
        "elementType": {
            "type": "struct",
            "fields": [
                {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
            ],
        },
    },
}


def options(ddl: str = "value string", **given: str) -> SinkOptions:
    return sink_of(SERVERS | given, schema(ddl), overwrite=False)

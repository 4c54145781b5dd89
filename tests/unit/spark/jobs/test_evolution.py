"""Schemas that a table may get, and those that it may not."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from bmq.spark.jobs.evolution import refusal


def struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


ID = struct(("id", LongType()))
MORE = struct(("name", StringType()), ("id", LongType()))


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        (ID, ID),
        (ID, MORE),
        (struct(("inner", ID)), struct(("inner", MORE))),
        (struct(("list", ArrayType(ID))), struct(("list", ArrayType(MORE)))),
        (struct(("map", MapType(StringType(), ID))), struct(("map", MapType(StringType(), MORE)))),
    ],
)
def test_columns_may_be_added(known: StructType, wanted: StructType) -> None:
    assert refusal(known.json(), wanted.json()) is None


@pytest.mark.parametrize(
    ("known", "wanted", "says"),
    [
        (MORE, ID, "the table has value.name, which --schema does not have"),
        (ID, struct(("ID", LongType())), "the table has value.id, which"),
        (ID, struct(("id", IntegerType())), "value.id is long in the table and integer in --schema"),
        (ID, struct(("id", ID)), "value.id is long in the table and struct in --schema"),
        (struct(("l", ArrayType(MORE))), struct(("l", ArrayType(ID))), "the table has value.l[].name, which"),
        (
            struct(("m", MapType(StringType(), ID))),
            struct(("m", MapType(LongType(), ID))),
            "value.m's key is string in the table and long in --schema",
        ),
        (
            ID,
            StructType([*ID.fields, StructField("new", LongType(), nullable=False)]),
            "value.new is new and NOT NULL",
        ),
    ],
)
def test_other_changes_are_refused(known: StructType, wanted: StructType, says: str) -> None:
    found = refusal(known.json(), wanted.json())
    assert found is not None
    assert found.startswith(says)

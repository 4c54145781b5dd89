"""Values that are read by the schema whose id is in front of them, of folders and of a registry."""

from __future__ import annotations

import base64
import io
import json
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from bmq.spark.jobs import JobError
from bmq.spark.jobs.avro_values import FramedAvroReader
from bmq.spark.jobs.protobuf_values import ProtobufReader
from bmq.spark.jobs.worker_decoding import UnreadableValue, WorkerDecoding
from bmq.spark.jobs.writer_schemas import Registry, RegistryError, SchemaFolder, UnknownId, writer_schemas
from bmq.spark.reading.storage_loop import storage_loop
from tests.unit.console.test_schema_registry import FakeRegistry, serving_registry


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    known = [
        {"name": field, "type": kind, **({"default": None} if isinstance(kind, list) else {})}
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "namespace": "shop", "fields": known}


OPTIONAL = ["null", "string"]
ORDER = record("Order", id="long", name=OPTIONAL)
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
SCHEMAS = {
    1: ORDER,
    2: record("Order", name=OPTIONAL, id="long"),
    3: record("Order", id="int"),
    4: record("Order", id="long", name=OPTIONAL, note=OPTIONAL),
    5: record("Refund", cents="long", note="string"),
    6: record("Order", name=OPTIONAL),
}


def framed(number: int, body: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + body


def avro(number: int, value: dict[str, Any], schema: dict[str, Any] | None = None) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema or SCHEMAS[number]), value)
    return framed(number, stream.getvalue())


def folder(schemas: dict[int, dict[str, Any]] = SCHEMAS) -> SchemaFolder:
    return SchemaFolder({number: json.dumps(schema).encode() for number, schema in schemas.items()})


def test_avro_values_are_resolved_from_their_writers_schemas() -> None:
    read = pickle.loads(pickle.dumps(FramedAvroReader(json.dumps(ORDER), folder())))()
    assert read(avro(1, {"id": 1, "name": "a"})) == ({"id": 1, "name": "a"}, False)
    assert read(avro(2, {"id": 2, "name": "b"})) == ({"id": 2, "name": "b"}, False)
    assert read(avro(3, {"id": 3})) == ({"id": 3, "name": None}, False)
    assert read(avro(4, {"id": 4, "name": None, "note": "n"})) == ({"id": 4, "name": None}, True)


@pytest.mark.parametrize(
    "value",
    [
        avro(5, {"cents": 9900, "note": "late"}),
        avro(6, {"name": "no id"}),
        framed(9, b"\2\0"),
        avro(1, {"id": 1, "name": None}) + b"more",
        b"\1\0\0\0\1\2\0",
        framed(1, b"\xff"),
    ],
)
def test_avro_values_of_other_schemas_are_refused(value: bytes) -> None:
    read = FramedAvroReader(json.dumps(ORDER), folder())()
    with pytest.raises(Exception):  # noqa: B017 - fastavro's own, too
        read(value)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("long", MILLIS), (MILLIS, "long"), (MILLIS, {"type": "long", "logicalType": "timestamp-micros"})],
)
def test_another_logical_type_is_refused(written: Any, wanted: Any) -> None:
    """Milliseconds would be read as microseconds: the reader takes numbers as the writer's schema says."""
    schemas = {1: record("Event", at=["null", written])}
    read = FramedAvroReader(json.dumps(record("Event", at=["null", wanted])), folder(schemas))()
    with pytest.raises(ValueError, match=r"the value\.at was written as .*, and is read as "):
        read(framed(1, b"\2\2"))


def test_a_schema_that_refers_to_itself_is_compared_once() -> None:
    tree = record("Tree", kids={"type": "array", "items": "Tree"}, x="long")
    flat = record("Tree", kids={"type": "array", "items": "Tree"})
    assert FramedAvroReader(json.dumps(flat), folder({1: tree}))()(avro(1, {"kids": [], "x": 1}, tree)) == (
        {"kids": []},
        True,
    )


# ------------------------------------------------------------------------------------------------------------- protobuf

FIELD = descriptor_pb2.FieldDescriptorProto


def proto(*, has_note: bool = False, quantity: Any = FIELD.TYPE_INT64) -> descriptor_pb2.FileDescriptorProto:
    """Return a file with the messages Order and Refund, which have the same numbers, and Order.Line."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name in ("Order", "Refund"):
        message = file.message_type.add(name=name)
        message.field.add(name="id", number=1, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)
        message.field.add(name="qty", number=2, type=quantity, label=FIELD.LABEL_OPTIONAL)
    order = file.message_type[0]
    line = order.nested_type.add(name="Line")
    line.field.add(name="n", number=1, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)
    order.field.add(
        name="lines", number=3, type=FIELD.TYPE_MESSAGE, type_name=".shop.Order.Line", label=FIELD.LABEL_REPEATED
    )
    if has_note:
        line.field.add(name="note", number=2, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    return file


def files(file: descriptor_pb2.FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def message(file: descriptor_pb2.FileDescriptorProto, name: str, **fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    from google.protobuf import timestamp_pb2

    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**fields).SerializeToString()


def test_protobuf_values_are_the_wanted_message() -> None:
    newer = proto(has_note=True)
    schemas = SchemaFolder({1: files(proto()), 2: files(newer), 3: files(proto(quantity=FIELD.TYPE_STRING))})
    read = pickle.loads(pickle.dumps(ProtobufReader(files(proto()), "shop.Order", schemas)))()
    order = message(proto(), "shop.Order", id=42, qty=9, lines=[{"n": 1}])
    found = {"id": 42, "qty": 9, "lines": [{"n": 1}]}
    assert read(framed(1, b"\0" + order)) == (found, False)
    assert read(framed(1, b"\2\0" + order)) == (found, False)
    added = message(newer, "shop.Order", id=42, qty=9, lines=[{"n": 1, "note": "new"}])
    assert read(framed(2, b"\0" + added)) == (found, True)
    for value, says in (
        (framed(1, b"\2\2" + order), "it is a shop.Refund, not a shop.Order"),
        (framed(1, b"\4\0\0" + order), "it is a shop.Order.Line, not a shop.Order"),
        (framed(1, b"\2\4" + order), r"no message at \[2\]"),
        (framed(1, b"\2\1" + order), r"no message at \[-1\]"),
        (framed(3, b"\0" + order), "shop.Order.qty was written with another type"),
        (framed(9, b"\0" + order), "no schema of id 9"),
        (order, "no schema registry's head"),
    ):
        with pytest.raises(ValueError, match=says):
            read(value)


def test_unknown_fields_of_unframed_protobuf_values_are_seen() -> None:
    newer = proto(has_note=True)
    read = ProtobufReader(files(proto()), "shop.Order")()
    assert read(message(newer, "shop.Order", lines=[{"n": 1, "note": "new"}]))[1]
    assert not read(message(newer, "shop.Order", lines=[{"n": 1}]))[1]


# -------------------------------------------------------------------------------------------------------------- folders


def test_a_folder_of_schemas(tmp_path: Path) -> None:
    (tmp_path / "7.avsc").write_text('"string"')
    (tmp_path / "README.md").write_text("not a schema")
    schemas = writer_schemas("AVRO", str(tmp_path), None)
    assert schemas == SchemaFolder({7: b'"string"'})
    with pytest.raises(UnknownId, match="no schema of id 8"):
        schemas.open()(8)
    with pytest.raises(JobError, match=r"has no file <id>\.desc"):
        writer_schemas("PROTOBUF", str(tmp_path), None)
    (tmp_path / "7.proto").touch()
    with pytest.raises(JobError, match=r"7\.proto must be compiled: protoc .*descriptor_set_out=7\.desc"):
        writer_schemas("PROTOBUF", str(tmp_path), None)
    with pytest.raises(JobError, match="No such file"):
        writer_schemas("AVRO", str(tmp_path / "missing"), None)


def test_one_source_of_schemas_is_given() -> None:
    for given in ((None, None), ("x", "http://x")):
        with pytest.raises(JobError, match="give --schemas DIR or --schema-registry URL, one of them"):
            writer_schemas("AVRO", *given)
    with pytest.raises(JobError, match="--schema-registry is not like") as refused:
        writer_schemas("AVRO", None, "ftp://user:secret@x")
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(writer_schemas("AVRO", None, "http://user:secret@x"))


# ------------------------------------------------------------------------------------------------------------- registry


@contextmanager
def registered(answers: dict[str, Any]) -> Iterator[FakeRegistry]:
    """Serve a registry on the loop that workers use."""
    fake = FakeRegistry()
    fake.answers = answers
    serving = serving_registry(fake)
    storage_loop().run(serving.__aenter__())
    try:
        yield fake
    finally:
        storage_loop().run(serving.__aexit__(None, None, None))


def test_schemas_of_a_registry_are_asked_for_once() -> None:
    answers = {f"/schemas/ids/{number}": {"schema": json.dumps(schema)} for number, schema in SCHEMAS.items()}
    with registered(answers) as fake:
        read = pickle.loads(pickle.dumps(FramedAvroReader(json.dumps(ORDER), Registry(fake.url, "AVRO"))))()
        for _ in range(3):
            assert read(avro(2, {"id": 2, "name": "b"})) == ({"id": 2, "name": "b"}, False)
            with pytest.raises(ValueError, match=r"the registry has no schema of id 99: .*Schema not found"):
                read(framed(99, b""))
        assert fake.asked == ["/schemas/ids/2", "/schemas/ids/99"]


def test_a_protobuf_schema_of_a_registry() -> None:
    text = base64.b64encode(proto().SerializeToString()).decode()
    answers = {
        "/schemas/ids/1": {"schemaType": "PROTOBUF", "schema": "syntax ..."},
        "/schemas/ids/1?format=serialized": {"schemaType": "PROTOBUF", "schema": text},
        "/schemas/ids/2": {"schema": '"string"'},
    }
    with registered(answers) as fake:
        read = ProtobufReader(files(proto()), "shop.Order", Registry(fake.url, "PROTOBUF"))()
        order = message(proto(), "shop.Order", id=1)
        assert read(framed(1, b"\0" + order))[0] == {"id": 1, "qty": 0, "lines": []}
        with pytest.raises(ValueError, match=r"it is a shop\.Refund"):
            read(framed(1, b"\2\2" + order))
        with pytest.raises(ValueError, match="of type AVRO, not PROTOBUF"):
            read(framed(2, b"\0" + order))


# -------------------------------------------------------------------------------------------------------------- workers


def batch(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "partition": [3] * count,
            "offset": list(range(100, 100 + count)),
            "timestamp": [0] * count,
            "key": [b""] * count,
            "value": pa.array(values, pa.binary()),
            "headers": [None] * count,
        }
    )


def decoding(schemas: Any, *, is_strict: bool = False) -> WorkerDecoding:
    kind = pa.struct([("id", pa.int8()), ("name", pa.string())])
    return WorkerDecoding(FramedAvroReader(json.dumps(ORDER), schemas), kind, "orders", is_strict=is_strict)


def test_values_that_cannot_be_read_are_told_apart() -> None:
    values = [
        avro(1, {"id": 1, "name": None}),
        avro(5, {"cents": 1, "note": ""}),
        None,
        avro(4, {"id": 2, "name": "x", "note": "n"}),
        avro(4, {"id": 1000, "name": "does not fit", "note": "n"}),
    ]
    (found,) = decoding(folder())(iter([batch(*values)]))
    rows = found.to_pylist()
    assert [row["value"] for row in rows] == [{"id": 1, "name": None}, None, None, {"id": 2, "name": "x"}, None]
    assert [row["_corrupt"] for row in rows] == [None, values[1], None, None, values[4]]
    assert [row["__unknown"] for row in rows] == [False, False, False, True, False]
    assert [row["raw"] for row in rows] == values


@pytest.mark.parametrize("value", [framed(9, b""), avro(1, {"id": 1000, "name": None})])
def test_failfast_names_the_record(value: bytes) -> None:
    """Name it too if the value was read, and does not fit its column."""
    good = avro(1, {"id": 1, "name": None})
    with pytest.raises(UnreadableValue, match="topic orders, partition 3, offset 101: the value cannot be read: "):
        list(decoding(folder(), is_strict=True)(iter([batch(good, value)])))


def test_a_registry_that_cannot_be_reached_makes_no_value_corrupt() -> None:
    with pytest.raises(RegistryError, match=r"--schema-registry: schema 1: .*cannot be reached"):
        list(decoding(Registry("http://127.0.0.1:1", "AVRO"))(iter([batch(framed(1, b""))])))

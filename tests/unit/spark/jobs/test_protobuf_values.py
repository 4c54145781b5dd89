"""Protobuf descriptors and values that no table can hold."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from bmq.spark.jobs import JobError
from bmq.spark.jobs.protobuf_values import ProtobufReader, protobuf_schema


def test_a_descriptor_that_no_table_can_hold_is_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
    tree = file.message_type.add(name="Tree")
    field = descriptor_pb2.FieldDescriptorProto
    tree.field.add(name="left", number=1, type=field.TYPE_MESSAGE, type_name=".p.Tree", label=field.LABEL_OPTIONAL)
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    for message, says in (("p.Tree", "may hold another one"), ("p.Bush", "has p.Tree"), (None, "--message is missing")):
        with pytest.raises(JobError, match=says):
            protobuf_schema(data, message)
    with pytest.raises(JobError, match="not a complete descriptor set"):
        protobuf_schema(b"\xff", "p.Tree")


@pytest.mark.parametrize(
    ("seconds", "nanos", "micros"),
    [
        (0, 0, 0),
        (1, 999_999_999, 1_999_999),
        (-62_135_596_800, 0, -62_135_596_800_000_000),
        (253_402_300_799, 999_999_999, 253_402_300_799_999_999),
        (-62_135_596_801, 0, None),
        (253_402_300_800, 0, None),
        (1_700_000_000_000, 0, None),  # milliseconds, given as seconds
        (2**62, 0, None),
        (0, 1_000_000_000, None),
        (0, -1, None),
    ],
)
def test_a_timestamp_outside_of_protobufs_bounds_is_corrupt(seconds: int, nanos: int, micros: int | None) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    field = descriptor_pb2.FieldDescriptorProto
    event = file.message_type.add(name="Event")
    at = ".google.protobuf.Timestamp"
    event.field.add(name="at", number=1, type=field.TYPE_MESSAGE, type_name=at, label=field.LABEL_OPTIONAL)
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    read = ProtobufReader(data, "p.Event")()
    body = timestamp_pb2.Timestamp(seconds=seconds, nanos=nanos).SerializeToString()
    value = b"\x0a" + bytes([len(body)]) + body
    if micros is None:
        with pytest.raises(ValueError, match="outside of the years 1 to 9999"):
            read(value)
    else:
        assert read(value) == ({"at": micros}, False)

"""Protobuf descriptors that no table can hold."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2

from bmq.spark.jobs import JobError
from bmq.spark.jobs.protobuf_values import protobuf_schema


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

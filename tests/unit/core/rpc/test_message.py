"""The internal messages: what one side writes the other reads, and what is none is refused before anything is made."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.controller.admin import messages as admin
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.features import FeatureUpdate
from bmq.core.rpc import message_fields
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse, Message
from bmq.core.rpc.message_fields import APART_LEAST
from bmq.core.rpc.messages import broker, controller, coordinator, markers, member, proxy
from bmq.core.rpc.messages.broker import (
    CleanedGroup,
    CleaningRow,
    HandedOverRequest,
    NotServedPartition,
    OwnerAnswer,
    PartitionLoad,
    PartitionQuestion,
    Question,
    Release,
)
from bmq.core.rpc.messages.controller import QuotaDemand
from bmq.core.rpc.messages.markers import MarkerRow
from bmq.core.rpc.messages.member import ErrorResponse, PingRequest, PingResponse, Unregistered
from bmq.core.rpc.messages.proxy import PartitionTraffic
from bmq.meta.config_changes import ConfigChange, Operation
from tests.unit.core.wire.profile import examples

ONE = uuid.UUID(int=1)
MODULES = (member, broker, proxy, coordinator, controller, markers, admin)
MESSAGES = [
    each
    for module in MODULES
    for each in vars(module).values()
    if isinstance(each, type) and issubclass(each, Message) and each.__module__ == module.__name__
]
REQUESTS: list[type[InternalRequest[Any]]] = [each for each in MESSAGES if issubclass(each, InternalRequest)]
RESPONSES = [each for each in MESSAGES if issubclass(each, InternalResponse)]

int8, int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (7, 15, 31, 63))
buffers = st.binary(max_size=300) | st.just(b"x" * APART_LEAST) | st.just(b"y" * (3 * APART_LEAST))
numbers = st.floats(allow_nan=False, allow_infinity=False)
replicas = st.lists(int32, max_size=3).map(tuple)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    message_fields.Bool: st.booleans(),
    message_fields.Int16: int16,
    message_fields.Int32: int32,
    message_fields.Int64: int64,
    message_fields.Float64: numbers,
    message_fields.Code: st.sampled_from(ErrorCode),
    message_fields.Id: st.uuids(),
    message_fields.Text: st.text(),
    message_fields.Bytes: buffers,
    message_fields.Slice: buffers,
    message_fields.Late: buffers,
    message_fields.Pieces: buffers.map(lambda data: (data,)),
    message_fields.Range: st.tuples(int16, int16),
    message_fields.Int64s: st.lists(int64, max_size=200).map(tuple),
    message_fields.Numbers: st.lists(st.tuples(int32, int64), max_size=5).map(tuple),
    message_fields.Partitions: st.lists(st.tuples(st.uuids(), int32), max_size=5).map(tuple),
    broker.Loads: st.lists(st.builds(PartitionLoad, st.uuids(), int32, int64, int64, int64)).map(tuple),
    proxy.Traffics: st.lists(st.builds(PartitionTraffic, st.uuids(), int32, int64, int64, int64), max_size=5).map(
        tuple
    ),
    controller.QuotaDemands: st.lists(
        st.builds(QuotaDemand, st.text(), numbers, numbers, numbers, st.booleans()), max_size=5
    ).map(tuple),
    controller.Floats: st.lists(st.tuples(numbers), max_size=5).map(tuple),
    controller.Credits: st.lists(st.tuples(numbers), max_size=5).map(tuple),
    broker.TopicSizes: st.lists(st.tuples(st.uuids(), int64), max_size=5).map(tuple),
    broker.NotServedPartitions: st.lists(st.builds(NotServedPartition, st.text(), int32, st.text()), max_size=5).map(
        tuple
    ),
    broker.CleaningRows: st.lists(
        st.builds(CleaningRow, int32, st.text(), numbers, int64, int64, int64), max_size=5
    ).map(tuple),
    message_fields.Reasons: st.lists(st.tuples(int32, st.text()), max_size=5).map(tuple),
    broker.Releases: st.lists(st.builds(Release, int64, buffers, buffers), max_size=5).map(tuple),
    member.CallerNonce: st.binary(max_size=40),
    member.CallerProof: st.binary(max_size=40),
    member.CalleeNonce: st.binary(max_size=40),
    member.CalleeProof: st.binary(max_size=40),
    member.UnregisteredCaller: st.none()
    | st.builds(Unregistered, int64, st.frozensets(st.text(max_size=20), max_size=4)),
    broker.PartitionQuestions: st.lists(
        st.builds(PartitionQuestion, st.uuids(), int32, st.integers(-128, 127), int64), max_size=5
    ).map(tuple),
    broker.OwnerAnswers: st.lists(
        st.builds(OwnerAnswer, int16, st.integers(-1, 4), int64, int64, int64, int64), max_size=5
    ).map(tuple),
    broker.CleanedGroups: st.lists(
        st.builds(CleanedGroup, st.text(), int64, st.text(), st.text(), st.text()), max_size=5
    ).map(tuple),
    coordinator.LagSamples: st.lists(st.tuples(int64, int64), max_size=5).map(tuple),
    broker.Asked: st.sampled_from(Question),
    markers.MarkerRows: st.lists(st.builds(MarkerRow, int64, int16, int32, int8, int8, int32), max_size=5).map(tuple),
    broker.AbortedSince: int64,
    broker.AbortedFrom: int64,
    broker.Aborted: buffers,
    message_fields.NullableId: st.none() | st.uuids().filter(lambda value: value.int != 0),
    admin.LaterCount: int32,
    message_fields.LaterText: st.text(),
    message_fields.LaterTopicIds: st.lists(st.tuples(st.text(), st.uuids()), max_size=3).map(tuple),
    admin.Configs: st.lists(st.tuples(st.text(), st.none() | st.text()), max_size=5).map(tuple),
    admin.Overrides: st.lists(st.tuples(st.text(), st.text()), max_size=5).map(tuple),
    admin.Assignments: st.lists(st.tuples(int32, replicas), max_size=5).map(tuple),
    admin.NewAssignments: st.none() | st.lists(replicas, max_size=5).map(tuple),
    admin.FeatureUpdates: st.lists(st.builds(FeatureUpdate, st.text(), int32, int32), max_size=5).map(tuple),
    admin.ConfigChanges: st.lists(
        st.builds(ConfigChange, st.text(), st.sampled_from(Operation), st.none() | st.text()), max_size=5
    ).map(tuple),
}


def a_message(kind: type[Message]) -> st.SearchStrategy[Message]:
    hints = get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{each.name: VALUES[hints[each.name]] for each in fields(kind)})  # type: ignore[arg-type]


VALUES[admin.Members] = st.lists(a_message(admin.MemberStatus), max_size=3).map(tuple)
VALUES[admin.Moves] = st.lists(a_message(admin.MoveStatus), max_size=3).map(tuple)


def bytes_of(message: Message) -> memoryview:
    return memoryview(bytearray(b"".join(message.encode())))


@pytest.mark.slow
@examples(few=200, many=5_000)
@given(st.sampled_from(MESSAGES).flatmap(a_message))
def test_a_message_is_read_as_written(message: Message) -> None:
    assert type(message).decode(bytes_of(message)) == message


@pytest.mark.slow
@examples(few=50, many=500)
@given(st.sampled_from(MESSAGES).flatmap(a_message))
def test_a_message_that_is_cut_is_refused(message: Message) -> None:
    data = bytes_of(message)
    for size in {*range(min(len(data), 200)), *range(max(0, len(data) - 200), len(data))}:
        with pytest.raises(FormatError, match=type(message).__name__):
            type(message).decode(data[:size])


@pytest.mark.slow
@examples(few=300, many=10_000)
@given(st.sampled_from(MESSAGES), st.binary(max_size=120))
def test_any_bytes_are_a_message_or_refused(kind: type[Message], data: bytes) -> None:
    try:
        message = kind.decode(memoryview(data))
    except FormatError:
        return
    assert kind.decode(bytes_of(message)) == message


def test_every_api_has_one_request_of_its_name_and_a_response() -> None:
    names = {key: "".join(word.capitalize() for word in key.name.split("_")) for key in InternalKey}
    assert {kind.KEY: kind.__name__ for kind in REQUESTS} == {key: f"{name}Request" for key, name in names.items()}
    assert len(REQUESTS) == len(InternalKey)
    assert {kind.RESPONSE for kind in REQUESTS} | {ErrorResponse} == set(RESPONSES)
    assert sorted({*InternalKey, 10_008}) == list(range(10_000, 10_042)), "10008 was another one"


def test_responses_begin_with_their_error() -> None:
    """Any request can be refused with an error alone, which a peer can read that does not have the rest of the
    schema."""
    for kind in RESPONSES:
        refused = kind(ErrorCode.NOT_CONTROLLER)
        assert refused.error is ErrorCode.NOT_CONTROLLER
        assert bytes(bytes_of(refused)[:2]) == b"\0\x29"


def test_tagged_fields_of_later_versions_are_skipped() -> None:
    data = bytes_of(PingResponse(is_serving=True))
    later = bytes(data[:-1]) + b"\x02" + b"\x07\x03abc" + b"\x08\0"
    assert PingResponse.decode(memoryview(later)) == PingResponse(is_serving=True)


def test_an_earlier_version_reads_a_message_with_added_fields() -> None:
    plain = HandedOverRequest(((ONE, 3),))
    handover = HandedOverRequest(((ONE, 3),), (Release(7, b"record", b"index"),))
    assert bytes(bytes_of(handover)).startswith(bytes(bytes_of(plain)[:-1])), "the fields of before lie as before"
    assert HandedOverRequest.decode(bytes_of(plain)).releases == ()


def test_an_added_field_that_does_not_fill_its_tag_is_refused() -> None:
    handover = HandedOverRequest((), (Release(7, b"record", b"index"),))
    data = bytes(bytes_of(handover))
    longer = data[:2] + bytes((data[2], data[3] + 1)) + data[4:] + b"x"
    with pytest.raises(FormatError, match="tag 0: 1 bytes behind its end"):
        HandedOverRequest.decode(memoryview(longer))


def test_bytes_behind_the_end_are_refused() -> None:
    with pytest.raises(FormatError, match="1 bytes behind its end"):
        PingRequest.decode(memoryview(b"\0\0"))

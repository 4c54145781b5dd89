"""Request and response headers, against kio's and by hand."""

from __future__ import annotations

import io
import struct

import pytest
from kio.schema.request_header.v1.header import RequestHeader as HeaderV1
from kio.schema.request_header.v2.header import RequestHeader as HeaderV2
from kio.serial import entity_writer
from kio.static.primitive import i16, i32

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import Header, parse_header, response_is_flexible
from tests.unit.core.wire import oracle

pytestmark = pytest.mark.slow


def frame(key: int, version: int, client_id: str | None, *, flexible: bool, body: bytes = b"body") -> memoryview:
    kind = HeaderV2 if flexible else HeaderV1
    out = io.BytesIO()
    entity_writer(kind)(
        out,
        kind(request_api_key=i16(key), request_api_version=i16(version), correlation_id=i32(-7), client_id=client_id),
    )
    return memoryview(bytearray(out.getvalue() + body))


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "größe" * 60])
def test_headers_of_all_versions_are_read(client_id: str | None) -> None:
    for api in (*oracle.SERVED, *oracle.HAND_WRITTEN):
        for version in oracle.versions(api):
            key = oracle.api_key(api)
            flexible = oracle.kio_class(api + "Request", version).__flexible__
            whole = frame(key, version, client_id, flexible=flexible)
            header = parse_header(whole)
            assert header == Header(key, version, -7, client_id, len(whole) - 4)
            for size in range(header.body_start):
                with pytest.raises(FormatError):
                    parse_header(whole[:size])


def test_response_headers_are_kios() -> None:
    for api in (*oracle.SERVED, *oracle.HAND_WRITTEN):
        for version in oracle.versions(api):
            schema = oracle.kio_class(api + "Response", version).__header_schema__
            assert response_is_flexible(oracle.api_key(api), version) == schema.__flexible__, (api, version)


def test_the_response_header_of_api_versions_is_never_flexible() -> None:
    assert not any(response_is_flexible(ApiKey.API_VERSIONS, version) for version in range(5))


def test_tagged_fields_of_the_header_are_passed_over() -> None:
    data = struct.pack(">hhih", ApiKey.HEARTBEAT, 4, 1, -1) + b"\x01\x05\x03abc" + b"body"
    assert parse_header(memoryview(data)) == Header(ApiKey.HEARTBEAT, 4, 1, None, len(data) - 4)


@pytest.mark.parametrize(("key", "version"), [(18, 5), (18, 99), (18, -1), (9_999, 0), (-1, 3), (12, 77)])
def test_of_what_is_unknown_the_correlation_id_is_read(key: int, version: int) -> None:
    """ApiVersions of any version gets a response, so nothing behind the id may matter (KIP-511)."""
    data = struct.pack(">hhi", key, version, 42) + b"\xff\xff\xff"
    assert parse_header(memoryview(data)) == Header(key, version, 42, None, 8)


@pytest.mark.parametrize(
    "tail",
    [
        b"\x00\x02\xff\xfe\x00",  # a client id that is not UTF-8
        b"\x7f\xff",  # a client id longer than the frame
        b"\xff\xff\xff\xff\xff\xff\xff\xff",  # a varint without end
        b"\xff\xff\xff\xff\xff\xff\x0f",  # four billion tagged fields
        b"\xff\xff\x01\x00\xff\xff\xff\xff\x0f",  # a tagged field of four gigabytes
    ],
)
def test_malformed_headers(tail: bytes) -> None:
    with pytest.raises(FormatError):
        parse_header(memoryview(struct.pack(">hhi", ApiKey.HEARTBEAT, 4, 1) + tail))

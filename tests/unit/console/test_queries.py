"""Parameters and bodies of requests: their checks, defaults and bounds."""

from __future__ import annotations

import asyncio
import json

import pytest

from bmq.console import queries
from bmq.console.http import HttpServer
from bmq.console.listing import Order, Page
from bmq.console.operations import NotPossible
from bmq.console.queries import (
    BODY_BYTES_MAX,
    FLAG,
    INTEGER,
    LONG_MAX,
    NAMES,
    NUMBER,
    PAGE,
    PAGE_MAX,
    TEXT,
    TEXTS,
    BodyField,
    Query,
    choice_of,
    parse_number,
    read_body,
)
from tests.unit.console.asked import get, refused
from tests.unit.console.asked import post as post_to_handler
from tests.unit.console.posting import MOVE, post
from tests.unit.console.states import FakeOperations, state

COLUMNS = ("name", "partitions", "bytes")


def query(text: str, *allowed: str) -> Query:
    return Query(get(f"/?{text}"), allowed)


# ---------------------------------------------------------------------------------------------------------- parameters


def test_an_unknown_parameter_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(NotPossible, match="unknown parameter 'c'; allowed are: a, b"):
        query("a=1&c=2", "b", "a")
    with pytest.raises(NotPossible, match="allowed are: none"):
        query("a=1")


@pytest.mark.parametrize("text", ["", "-", "x", "1.5", "1e9", "+1", " 1", "٣", "-1", "11", "9" * 5_000, "--1"])
def test_a_number_has_only_digits_and_is_within_its_bounds(text: str) -> None:
    with pytest.raises(NotPossible, match="is not a number from 0 to 10") as raised:
        parse_number("limit", text, 0, 10)
    assert (raised.value.status, raised.value.error) == (400, "wrong_parameter")
    assert len(str(raised.value)) < 200


def test_the_bounds_of_a_number_are_allowed() -> None:
    assert [parse_number("a", text, -5, 10) for text in ("-5", "10", "-0", "007")] == [-5, 10, 0, 7]
    assert parse_number("a", str(LONG_MAX), 0, LONG_MAX) == LONG_MAX


def test_parameters_that_are_left_out_have_defaults() -> None:
    found = query("", "search", "lag", "limit")
    assert (found.text("search"), found.is_given("search"), found.number("limit", 7, 1, 10)) == ("", False, 7)
    assert (found.flag("lag"), found.flag("lag", default=True), found.choice("format", ("auto", "hex"))) == (
        False,
        True,
        "auto",
    )
    assert found.page() == Page("", PAGE)


def test_a_flag_is_true_or_false() -> None:
    assert query("lag=true", "lag").flag("lag") is True
    assert query("lag=false", "lag").flag("lag", default=True) is False
    with pytest.raises(NotPossible, match="lag='1'; choose from false, true"):
        query("lag=1", "lag").flag("lag")


@pytest.mark.parametrize(
    ("text", "order", "page"),
    [
        ("", Order("name"), Page("", 100)),
        ("sort=-bytes&limit=5&skip=10", Order("bytes", is_down=True), Page("", 5, 10)),
        ("after=orders", Order("name"), Page("orders", 100)),
        (f"limit={PAGE_MAX}", Order("name"), Page("", PAGE_MAX)),
    ],
)
def test_an_order_and_a_page_are_chosen(text: str, order: Order, page: Page) -> None:
    assert query(text, "sort", "limit", "skip", "after").ordered_page(COLUMNS) == (order, page)


def test_a_list_may_have_an_order_of_its_own() -> None:
    assert query("").ordered_page(COLUMNS, sort="-bytes")[0] == Order("bytes", is_down=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sort=size", "choose from name, partitions, bytes"),
        ("sort=--bytes", "choose from"),
        ("sort=-name&after=a", "is for the order by name; use skip in others"),
        ("limit=0", "is not a number from 1"),
        (f"limit={PAGE_MAX + 1}", "is not a number from 1"),
        ("skip=-1", "is not a number from 0"),
    ],
)
def test_a_wrong_order_or_page_is_refused(text: str, why: str) -> None:
    with pytest.raises(NotPossible, match=why):
        query(text, "sort", "limit", "skip", "after").ordered_page(COLUMNS)


# -------------------------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("field", "right", "wrong"),
    [
        (FLAG, [True, False], [0, 1, "true", None]),
        (TEXT, ["a"], ["", 7, None]),
        (NUMBER, [0, (1 << 31) - 1], [-1, 1 << 31, 1.0, True, "1"]),
        (INTEGER, [-(1 << 63), (1 << 63) - 1], [1 << 63, -(1 << 63) - 1, 1.0, False]),
        (TEXTS, [{}, {"a": "b"}], [{"a": 1}, [], None]),
        (NAMES, [[], ["a"]], [["a", 1], "a", None]),
        (choice_of("a", "b"), ["a", "b"], ["c", "", None]),
    ],
)
def test_each_kind_of_field_has_its_values(field: BodyField, right: list[object], wrong: list[object]) -> None:
    assert [value for value in right if not field.is_met(value)] == []
    assert [value for value in wrong if field.is_met(value)] == []
    assert field.optional().is_met(None)


@pytest.mark.usefixtures("without_connection")
async def test_fields_that_are_left_out_or_null_have_defaults() -> None:
    fields = {"to": TEXT, "value": INTEGER.optional(), "dry_run": FLAG.optional(True)}
    assert await read_body(post_to_handler({"to": "latest"}), fields) == {
        "to": "latest",
        "value": None,
        "dry_run": True,
    }
    given = {"to": "latest", "value": 5, "dry_run": None}
    assert await read_body(post_to_handler(given), fields) == {"to": "latest", "value": 5, "dry_run": True}


@pytest.mark.usefixtures("without_connection")
async def test_a_required_field_is_not_null() -> None:
    assert await refused(read_body(post_to_handler({"to": None}), {"to": TEXT})) == (400, "wrong_value")


@pytest.mark.usefixtures("without_connection")
@pytest.mark.parametrize("body", [{}, {"to": "a", "more": 1}, [], 7])
async def test_a_body_names_each_required_field_and_no_unknown_one(body: object) -> None:
    assert await refused(read_body(post_to_handler(body), {"to": TEXT})) == (400, "wrong_fields")


@pytest.mark.usefixtures("without_connection")
async def test_half_of_a_surrogate_pair_is_refused() -> None:
    """JSON can escape what no text of UTF-8 can have, and what no Kafka string can hold."""
    assert await refused(read_body(post_to_handler({"to": "\ud800"}), {"to": TEXT})) == (400, "no_json")


@pytest.mark.usefixtures("without_connection")
async def test_a_body_may_have_just_the_bytes_allowed() -> None:
    size = len('{"to": "latest"}')
    assert await read_body(post_to_handler({"to": "latest"}), {"to": TEXT}, size) == {"to": "latest"}
    assert await refused(read_body(post_to_handler({"to": "latest"}), {"to": TEXT}, size - 1)) == (413, "too_large")


# ----------------------------------------------------------------------------------------------- bodies over a socket


@pytest.mark.slow
@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(
    ("act", "data", "error", "message"),
    [
        ("move", b"", "no_json", "not JSON"),
        ("move", b"{", "no_json", "not JSON"),
        ("move", b"\xff", "no_json", "not JSON"),
        ("move", b"[" * BODY_BYTES_MAX, "no_json", "not JSON"),
        ("move", b"[]", "wrong_fields", '"topic", "partition", "member"'),
        ("move", json.dumps({**MOVE, "force": True}).encode(), "wrong_fields", "exactly these fields"),
        ("drain", b"{}", "wrong_fields", '"member"'),
        ("balance", b'{"now": 1}', "wrong_fields", "none"),
        ("drain", b'{"member": 7}', "wrong_value", '"member" is 7, not a text'),
        ("drain", b'{"member": ""}', "wrong_value", "not a text"),
        ("move", json.dumps({**MOVE, "partition": -1}).encode(), "wrong_value", "not a number from 0 to 2147483647"),
        ("move", json.dumps({**MOVE, "partition": 1 << 31}).encode(), "wrong_value", "not a number from 0"),
        ("move", json.dumps({**MOVE, "partition": True}).encode(), "wrong_value", "not a number from 0"),
        ("move", json.dumps({**MOVE, "partition": 1.5}).encode(), "wrong_value", "not a number from 0"),
    ],
)
async def test_a_body_with_wrong_fields_or_values_is_refused(act: str, data: bytes, error: str, message: str) -> None:
    operations = FakeOperations()
    reply = await post(operations, act, data=data)
    assert (reply.status, reply.json["error"], operations.asked) == (400, error, [])
    assert message in reply.json["message"]


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_body_that_is_too_large_is_refused() -> None:
    operations = FakeOperations()
    reply = await post(operations, "drain", data=b" " * (BODY_BYTES_MAX + 1))
    assert (reply.status, reply.json["error"], operations.asked) == (413, "too_large", [])


@pytest.mark.slow
@pytest.mark.loops("asyncio")
@pytest.mark.leaves_tasks  # the request whose body does not come
async def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "BODY_TIMEOUT_S", 0.05)
    server = HttpServer(state(), "127.0.0.1", 0)
    await server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = "POST /api/v1/cluster/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 9\r\n\r\n{{".encode())
        assert b" 408 " in await reader.readline()
        writer.close()
    finally:
        await server.stop()

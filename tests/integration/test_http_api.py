"""The HTTP API of a live server under requests drawn from openapi.json: right ones, wrong ones and hostile ones.

Each response must be one that openapi.json has for its operation: its status, and a body that matches the schema.  A
5xx is a fault unless it is described.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from confluent_kafka import Producer
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.services.bmq import BmqServer
from tests.unit.console.test_http import OPENAPI, faults

IS_SOAK = os.environ.get("BMQ_SOAK") == "1"
EXAMPLES = 500 if IS_SOAK else 40
TIMEOUT_S = 30.0
OPERATIONS = [
    pytest.param(method, path, id=f"{method} {path}")
    for path, operations in OPENAPI["paths"].items()
    for method in operations
]
PLACES = {
    "name": ["orders", "empty", "none", "__consumer_offsets", "a b", "..", "ü/ö", "%2e", "x" * 300],
    "id": ["billing", "none", "a/b", "", "\x01"],
    "partition": ["0", "1", "9", "-1", "0x", "99999999999999999999"],
    "member": ["node", "none", "0"],
}
"""Values from which the parts of paths are drawn: things that exist, and things that cannot."""
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
KNOWN = st.sampled_from(["orders", "empty", "billing", "retention.ms", "1000", "latest", "earliest", "0", "node"])


class Sent(NamedTuple):
    """One request."""

    method: str
    url: str
    body: bytes | None
    headers: dict[str, str]


def of_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values of a schema, as openapi.json writes them."""
    if "$ref" in schema:
        return of_schema(OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    if "oneOf" in schema:
        return st.one_of(*map(of_schema, schema["oneOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of(*(_of_kind(kind, schema) for kind in kinds))


def _of_kind(kind: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    match kind:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            least, most = schema.get("minimum", 0), schema.get("maximum", 1 << 63)
            small = st.integers(least, min(most, 3))
            return small | small | st.sampled_from([least, most])  # nothing between: 50,000 partitions take their time
        case "number":
            return st.floats(allow_nan=False, allow_infinity=False)
        case "string":
            return KNOWN | st.text(max_size=30)
        case "array":
            return st.lists(of_schema(schema["items"]), max_size=3)
        case "object":
            return _of_object(schema)
    raise AssertionError(f"openapi.json has the type {kind}")


def _of_object(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    fields = {name: of_schema(each) for name, each in schema.get("properties", {}).items()}
    required = {name: fields[name] for name in schema.get("required", ())}
    optional = {name: each for name, each in fields.items() if name not in required}
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        return st.dictionaries(KNOWN | st.text(max_size=10), of_schema(more), max_size=3)
    return st.fixed_dictionaries(required, optional=optional)


@st.composite
def requests(draw: st.DrawFn, method: str, path: str) -> Sent:
    described = OPENAPI["paths"][path][method]
    filled = path
    query: list[tuple[str, str]] = []
    for parameter in described.get("parameters", ()):
        name = parameter["name"]
        if parameter["in"] == "path":
            filled = filled.replace(f"{{{name}}}", quote(draw(st.sampled_from(PLACES[name])), safe=""))
        elif draw(st.booleans()):
            value = draw(of_schema(parameter["schema"]) | st.text(max_size=10) | st.integers())
            query.append((name, str(value)))
    for name, values in PLACES.items():
        filled = filled.replace(f"{{{name}}}", quote(draw(st.sampled_from(values)), safe=""))
    if draw(st.integers(0, 9)) == 0:
        query.append((draw(st.text(max_size=5)), "x"))
    url = filled + (f"?{urlencode(query, errors='surrogatepass')}" if query else "")
    if "requestBody" not in described:
        return Sent(method.upper(), url, None, {})
    schema = described["requestBody"]["content"]["application/json"]["schema"]
    body = draw(of_schema(schema) | of_schema(schema) | anything)
    data = json.dumps(body).encode("utf-8", "surrogatepass")
    data = draw(st.sampled_from([data] * 8 + [data[:-1], b"\xff" + data]))
    kind = draw(st.sampled_from(["application/json"] * 9 + ["text/plain"]))
    return Sent(method.upper(), url, data, {"Content-Type": kind})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    folder = tmp_path_factory.mktemp("server")
    with BmqServer((folder / "root").as_uri(), folder=folder) as made:
        producer = Producer({"bootstrap.servers": made.bootstrap})
        for number in range(20):
            producer.produce("orders", b"\0\0\0\0\7" + str(number).encode(), str(number).encode())
        producer.produce("empty", b"")
        assert producer.flush(30) == 0
        yield made


def ask(server: BmqServer, sent: Sent) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=TIMEOUT_S)
    try:
        connection.request(sent.method, sent.url, sent.body, sent.headers)
        response = connection.getresponse()
        return response.status, response.headers.get_content_type(), response.read()
    finally:
        connection.close()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_response_is_one_that_is_described(method: str, path: str, server: BmqServer) -> None:
    described = OPENAPI["paths"][path][method]["responses"]
    (own,) = json.loads(ask(server, Sent("GET", "/api/v1/cluster/status", None, {}))[2])["members"]

    @settings(max_examples=EXAMPLES, derandomize=True, database=None)
    @given(requests(method, path))
    def check(sent: Sent) -> None:
        assume(not (path.endswith("/drain") and _names(sent, own)))  # the server would end
        status, kind, data = ask(server, sent)
        if not _is_the_operation(status, data):
            return
        assert str(status) in described, (sent, status, data[:500])
        ((expected, content),) = described[str(status)]["content"].items()
        assert kind == expected
        if kind == "application/json":
            assert faults(json.loads(data), content["schema"]) == [], (sent, data[:500])

    check()
    assert ask(server, Sent("GET", "/healthz", None, {}))[0] == 200


def _names(sent: Sent, member: dict[str, Any]) -> bool:
    """Return whether the request's body names the member."""
    try:
        named = json.loads(sent.body or b"null")["member"]
    except (ValueError, TypeError, KeyError):
        return False
    return isinstance(named, str) and (
        named in (member["kafka"], member["http"]) or str(member["incarnation"]).startswith(named)
    )


def _is_the_operation(status: int, data: bytes) -> bool:
    """Return whether the path led to an operation: dots and empty parts lead elsewhere."""
    return not (status in (404, 405) and json.loads(data)["error"] in ("not_found", "method_not_allowed"))

"""A client of a Confluent schema registry: schemas by id, with the schemas that they refer to.

The registry's address is a setting of the operator; no request can name one, and redirects are not followed.  All is
bounded: bytes and time of a response, references of a schema.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote

import aiohttp

from bmq.core.urls import split_url

REQUEST_S = 5.0
RESPONSE_BYTES_MAX = 1 << 20
REFERENCES_MAX = 50
"""Most schemas that one refers to, directly and through others."""
AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"


class SchemaError(Exception):
    """A schema that cannot be fetched or used, or a value that does not match its schema."""


class NoSuchSchema(SchemaError):
    """A schema that the registry does not have."""


class Reference(NamedTuple):
    """A schema that another one refers to, by ``name`` in its text: an Avro type, or a Protobuf file."""

    name: str
    subject: str
    version: int


class SchemaSource(NamedTuple):
    """A schema as the registry has it.  ``name`` is that of the reference to it."""

    name: str
    kind: str
    text: str
    references: Sequence[Reference] = ()


class RegistryClient:
    """A client of one registry, without a cache."""

    def __init__(self, url: str) -> None:
        """``url`` may have a user and a password.  Raises ValueError if it is not http or https."""
        parts = _parts_of(url)
        self.base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        """The URL without user and password."""
        self.responses = 0
        """Responses so far."""
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections to the registry."""
        if self._session is not None:
            await self._session.close()

    async def schema(self, number: int) -> tuple[SchemaSource, list[SchemaSource]]:
        """Return the schema of id ``number`` and all schemas that it refers to, directly or not, references first.

        Raises NoSuchSchema or another SchemaError, and TimeoutError.
        """
        source = await self._source(f"schemas/ids/{number}")
        return source, await self._references(source)

    async def _references(self, source: SchemaSource) -> list[SchemaSource]:
        """Return all schemas that ``source`` refers to, directly or not, references first."""
        ordered: dict[Reference, SchemaSource] = {}
        under_way: set[Reference] = set()

        async def add(reference: Reference) -> None:
            if reference in ordered:
                return
            if reference in under_way or len(under_way) >= REFERENCES_MAX:
                raise SchemaError(f"the schema refers to itself, or to more than {REFERENCES_MAX} others")
            under_way.add(reference)
            path = f"subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            found = (await self._source(path))._replace(name=reference.name)
            for each in found.references:
                await add(each)
            ordered[reference] = found

        for each in source.references:
            await add(each)
        return list(ordered.values())

    async def _source(self, path: str) -> SchemaSource:
        """Return a schema as the registry has it; for Protobuf as a serialized descriptor, which needs no compiler."""
        source = _parse_source(await self._get(path))
        if source.kind != PROTOBUF:
            return source
        return _parse_source(await self._get(f"{path}?format=serialized"))

    async def _get(self, path: str) -> Any:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=REQUEST_S)
            self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        try:
            async with self._session.get(f"{self.base}/{path}", allow_redirects=False) as response:
                data = await response.content.read(RESPONSE_BYTES_MAX + 1)
                while len(data) <= RESPONSE_BYTES_MAX and (piece := await response.content.read(RESPONSE_BYTES_MAX)):
                    data += piece
                self.responses += 1
                if len(data) > RESPONSE_BYTES_MAX:
                    raise SchemaError(f"the schema registry's response is over {RESPONSE_BYTES_MAX} bytes")
                if response.status == 404:
                    raise NoSuchSchema(f"the schema registry responded 404{_message(data)}")
                if response.status != 200:
                    raise SchemaError(f"the schema registry responded {response.status}{_message(data)}")
                return json.loads(data)
        except aiohttp.ClientError as error:
            raise SchemaError(f"the schema registry cannot be reached: {error}") from None
        except (ValueError, RecursionError):
            raise SchemaError("the schema registry's response is not JSON") from None


def _parts_of(url: str) -> SplitResult:
    """Return the parts of a registry's ``url``.  Raises ValueError if it is wrong; its text has no user or password."""
    try:
        parts = split_url(url)
        is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the host or the port is malformed
        is_http = False
    if not is_http or parts.query or parts.fragment:
        raise ValueError("schema_registry_url is not like http://host:8081 or https://user:password@host/path")
    return parts


def _message(data: bytes) -> str:
    try:
        return f": {str(json.loads(data)['message'])[:200]}"
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""


def _parse_source(response: Any) -> SchemaSource:
    try:
        references = response.get("references") or []
        return SchemaSource(
            name="",
            kind=str(response.get("schemaType") or "AVRO"),
            text=str(response["schema"]),
            references=tuple(
                Reference(str(each["name"]), str(each["subject"]), int(each["version"])) for each in references
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise SchemaError("the schema registry's response has no schema") from None

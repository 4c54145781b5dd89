"""Schemas of a Confluent schema registry, by the id in front of a key or a value (Confluent's wire format).

The registry's address is a setting of the operator; no request can name one, and redirects are not followed.  All is
bounded: bytes and time of a response, cached schemas, parallel requests, references of a schema.  The schema of an id
never changes, so it is cached until others evict it; a failure is cached for `FAILED_S`.  If a request times out and
the registry has sent no other response meanwhile, it gets no requests for as long, so that records are shown without
waiting for it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, unquote

import aiohttp

from bmq.console.schemas import Reference, Schema, SchemaError, SchemaSource, compile_schema
from bmq.core.aio.lru import LruCache
from bmq.core.urls import split_url

REQUEST_S = 5.0
RESPONSE_BYTES_MAX = 1 << 20
SCHEMAS_MAX = 1_000
FAILED_S = 30.0
PARALLEL = 4
REFERENCES_MAX = 50
"""Most schemas that one refers to, directly and through others."""
PROTOBUF = "PROTOBUF"


class SchemaRegistry:
    """Client of one registry, with a cache of schemas."""

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        """`url` may have a user and a password.  Raises ValueError if it is not http or https."""
        parts = _parts_of(url)
        self._base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(account.encode()).decode()}"
        self._now = now
        self._schemas: LruCache[int, tuple[Schema | SchemaError, float]] = LruCache(SCHEMAS_MAX)
        self._session: aiohttp.ClientSession | None = None
        self._turns = asyncio.Semaphore(PARALLEL)
        self._answered = 0
        """Responses so far."""
        self._silent_until = -math.inf

    def __repr__(self) -> str:
        return f"<SchemaRegistry {self._base} schemas={len(self._schemas)}>"

    async def close(self) -> None:
        """Close the connections to the registry."""
        if self._session is not None:
            await self._session.close()

    async def find(self, ids: Iterable[int]) -> Mapping[int, Schema | SchemaError]:
        """Return the schema of each id, or the error why it cannot be used."""
        wanted = dict.fromkeys(ids)
        found = {number: known for number in wanted if (known := self._known(number)) is not None}
        missing = [number for number in wanted if number not in found]
        fetched = await asyncio.gather(*(self._fetch(number) for number in missing))
        return found | dict(zip(missing, fetched, strict=True))

    def _known(self, number: int) -> Schema | SchemaError | None:
        entry = self._schemas.get(number)
        if entry is None or (isinstance(entry[0], SchemaError) and self._now() - entry[1] > FAILED_S):
            return None
        return entry[0]

    async def _fetch(self, number: int) -> Schema | SchemaError:
        found: Schema | SchemaError
        silence = SchemaError(f"the schema registry did not answer within {REQUEST_S:g} s")
        answered = self._answered
        try:
            async with self._turns:
                if self._now() < self._silent_until:
                    return silence
                answered = self._answered
                async with asyncio.timeout(REQUEST_S):
                    source = await self._source(f"schemas/ids/{number}")
                    references = await self._references(source)
            found = await asyncio.to_thread(compile_schema, source, references)
        except SchemaError as error:
            found = error
        except TimeoutError:
            found = silence
            if self._answered == answered:
                self._silent_until = self._now() + FAILED_S
        self._schemas.put(number, (found, self._now()))
        return found

    async def _references(self, source: SchemaSource) -> list[SchemaSource]:
        """Return all schemas that `source` refers to, directly or not, each before those that refer to it."""
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
            async with self._session.get(f"{self._base}/{path}", allow_redirects=False) as response:
                data = await response.content.read(RESPONSE_BYTES_MAX + 1)
                while len(data) <= RESPONSE_BYTES_MAX and (piece := await response.content.read(RESPONSE_BYTES_MAX)):
                    data += piece
                self._answered += 1
                if len(data) > RESPONSE_BYTES_MAX:
                    raise SchemaError(f"the schema registry's response is over {RESPONSE_BYTES_MAX} bytes")
                if response.status != 200:
                    raise SchemaError(f"the schema registry responded {response.status}{_message(data)}")
                return json.loads(data)
        except aiohttp.ClientError as error:
            raise SchemaError(f"the schema registry cannot be reached: {error}") from None
        except (ValueError, RecursionError):
            raise SchemaError("the schema registry's response is not JSON") from None


def _parts_of(url: str) -> SplitResult:
    """Return the parts of a registry's `url`.  Raises ValueError if it is wrong; its text has no user or password."""
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

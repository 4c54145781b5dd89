"""Schemas of a Confluent schema registry, by the id in front of a key or a value (Confluent's wire format).

The registry's address is a setting of the operator; no request can name one, and redirects are not followed.  All is
bounded: bytes and time of a response, cached schemas, parallel requests, references of a schema.  The schema of an id
never changes, so it is cached until others evict it; a failure is cached for ``FAILED_S``.  If a request times out and
the registry has sent no other response meanwhile, it gets no requests for as long, so that records are shown without
waiting for it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping

from bmq.console.schemas import Schema, compile_schema
from bmq.core.aio.lru import LruCache
from bmq.core.schema_registry import REQUEST_S, RegistryClient, SchemaError

SCHEMAS_MAX = 1_000
FAILED_S = 30.0
PARALLEL = 4


class SchemaRegistry:
    """Client of one registry, with a cache of schemas."""

    def __init__(self, url: str, now: Callable[[], float] = time.monotonic) -> None:
        """``url`` may have a user and a password.  Raises ValueError if it is not http or https."""
        self._client = RegistryClient(url)
        self._now = now
        self._schemas: LruCache[int, tuple[Schema | SchemaError, float]] = LruCache(SCHEMAS_MAX)
        self._turns = asyncio.Semaphore(PARALLEL)
        self._silent_until = -math.inf

    def __repr__(self) -> str:
        return f"<SchemaRegistry {self._client.base} schemas={len(self._schemas)}>"

    async def close(self) -> None:
        """Close the connections to the registry."""
        await self._client.close()

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
        answered = self._client.responses
        try:
            async with self._turns:
                if self._now() < self._silent_until:
                    return silence
                answered = self._client.responses
                async with asyncio.timeout(REQUEST_S):
                    source, references = await self._client.schema(number)
            found = await asyncio.to_thread(compile_schema, source, references)
        except SchemaError as error:
            found = error
        except TimeoutError:
            found = silence
            if self._client.responses == answered:
                self._silent_until = self._now() + FAILED_S
        self._schemas.put(number, (found, self._now()))
        return found

"""The schemas that values were written with, by the id in front of each value: from a folder, or a schema registry.

A folder is read on the driver and sent to the workers.  A registry is asked by each worker process, once for an id.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from google.protobuf import descriptor_pb2

from bmq.core.aio.lru import LruCache
from bmq.core.schema_registry import (
    AVRO,
    PROTOBUF,
    REQUEST_S,
    NoSuchSchema,
    RegistryClient,
    SchemaError,
    SchemaSource,
)
from bmq.spark.jobs import JobError
from bmq.spark.reading.storage_loop import storage_loop

SCHEMAS_MAX = 1_000
"""Schemas that a worker process keeps."""
_ENDINGS = {AVRO: "avsc", PROTOBUF: "desc"}
_NUMBERED = re.compile(r"(\d+)\.(\w+)\Z", re.ASCII)


T = TypeVar("T")


class UnknownId(ValueError):
    """An id without a schema: the value that begins with it cannot be read."""


class RegistryError(Exception):
    """The registry cannot be reached, or its response is no schema.  It says nothing about the value, and ends the
    run."""


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """A schema as text (Avro), or as a descriptor set whose last file has the message (Protobuf).

    ``references`` are texts of Avro schemas; a schema comes before the schemas that refer to it.
    """

    data: bytes
    references: tuple[bytes, ...] = ()


Find = Callable[[int], WriterSchema]
"""A function from an id to its schema.  Raises UnknownId or RegistryError."""


@dataclass(frozen=True, slots=True)
class SchemaFolder:
    """Schemas by id, as a folder has them."""

    by_id: Mapping[int, bytes]

    def open(self) -> Find:
        """Return the function that finds schemas, in a worker."""

        def find(number: int) -> WriterSchema:
            if number not in self.by_id:
                raise UnknownId(f"--schemas has no schema of id {number}")
            return WriterSchema(self.by_id[number])

        return find


@dataclass(frozen=True, slots=True)
class Registry:
    """Schemas of the registry at ``url``.  ``kind`` is the registry's name of the format."""

    url: str
    kind: str

    def __repr__(self) -> str:
        return f"<Registry of {self.kind}>"  # the URL may have a password

    def open(self) -> Find:
        """Return the function that finds schemas, in a worker."""

        async def fetch(number: int) -> tuple[SchemaSource, list[SchemaSource]]:
            client = RegistryClient(self.url)
            try:
                async with asyncio.timeout(REQUEST_S):
                    return await client.schema(number)
            finally:
                await client.close()

        def find(number: int) -> WriterSchema:
            try:
                source, references = storage_loop().run(fetch(number))
                if source.kind != self.kind:
                    raise UnknownId(f"the schema of id {number} is of type {source.kind}, not {self.kind}")
                return _written(source, references)
            except NoSuchSchema as error:
                raise UnknownId(f"the registry has no schema of id {number}: {error}") from error
            except TimeoutError:
                raise RegistryError(f"--schema-registry: no response within {REQUEST_S:g} s") from None
            except SchemaError as error:
                raise RegistryError(f"--schema-registry: schema {number}: {error}") from error

        return find


WriterSchemas = SchemaFolder | Registry


def remembered(find: Callable[[int], T]) -> Callable[[int], T]:
    """Return ``find`` with a memory of its results and of unknown ids, of ``SCHEMAS_MAX`` ids."""
    known: LruCache[int, T | ValueError] = LruCache(SCHEMAS_MAX)

    def look_up(number: int) -> T:
        found = known.get(number)
        if found is None:
            try:
                found = find(number)
            except ValueError as error:
                found = error
            known.put(number, found)
        if isinstance(found, ValueError):
            raise found
        return found

    return look_up


def writer_schemas(kind: str, folder: str | None, url: str | None) -> WriterSchemas:
    """Return the schemas of ``--schemas`` or ``--schema-registry``, of the format ``kind``.

    Raises JobError if both or none are given, or if they cannot be used.
    """
    if (folder is None) == (url is None):
        raise JobError(
            "--framing confluent needs the schemas that values were written with: give --schemas DIR or"
            " --schema-registry URL, one of them"
        )
    if url is not None:
        try:
            RegistryClient(url)
        except ValueError:
            raise JobError(
                "--schema-registry is not like http://host:8081 or https://user:password@host/path"
            ) from None
        return Registry(url, kind)
    assert folder is not None
    return SchemaFolder(_read_folder(Path(folder), _ENDINGS[kind]))


def _read_folder(folder: Path, ending: str) -> dict[int, bytes]:
    try:
        names = sorted(path.name for path in folder.iterdir())
        numbered = [match for name in names if (match := _NUMBERED.match(name)) is not None]
        if ending == "desc" and (source := next((match for match in numbered if match[2] == "proto"), None)):
            raise JobError(
                f"--schemas: {source[0]} must be compiled: protoc --include_imports"
                f" --descriptor_set_out={source[1]}.desc {source[0]}"
            )
        found = {int(match[1]): (folder / match[0]).read_bytes() for match in numbered if match[2] == ending}
    except OSError as error:
        raise JobError(f"--schemas {folder}: {error.strerror}") from error
    if not found:
        raise JobError(f"--schemas {folder} has no file <id>.{ending}")
    return found


def _written(source: SchemaSource, references: list[SchemaSource]) -> WriterSchema:
    """Return the registry's schema in the form that a folder has.  Raises SchemaError."""
    if source.kind != PROTOBUF:
        return WriterSchema(source.text.encode(), tuple(each.text.encode() for each in references))
    files = [_file(each, each.name) for each in references]
    return WriterSchema(
        descriptor_pb2.FileDescriptorSet(file=[*files, _file(source, "bmq-value.proto")]).SerializeToString()
    )


def _file(source: SchemaSource, name: str) -> descriptor_pb2.FileDescriptorProto:
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(source.text, validate=True))
    except Exception as error:
        raise SchemaError(f"the registry does not serialize Protobuf schemas (format=serialized): {error}") from error
    file.name = name
    return file

"""A table's content, by the entries of its commit log.  Pure.
::

    <table>/_bmq/log/<number, 20 digits>.json          entries, from 1 up without a gap
    <table>/_bmq/log/<number, 20 digits>.state.json    the table after that entry; the entries up to it may be gone
    <table>/_bmq/staging/<number>-<part>/              files of the run that began with that entry, not yet in place
    <table>/date=2026-11-01/...parquet                 files in place

An entry is one of three:

* **Begin**: a run starts.  A run commits at the numbers that follow its own begin and nowhere else.  An entry's name is
  taken by a rename that never overwrites.  So a run with the next number has stopped every earlier run, dead or only
  slow: there is no lock, and no time limit.
* **Append**: a range of offsets of each partition, and the files that hold it.  The entry is the commit: before it
  nothing counts, after it everything does.
* **FileRewrite**, of kind "merge" in the log: files that replace others, with the same records.

Files are renamed from staging into place after the entry that names them, and always before the next entry.  So work
that a crash leaves undone belongs to the last entry, and doing it again changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bmq.spark.jobs.evolution import refusal

FORMAT = 1
_NAME = re.compile(r"(\d{20})(\.state)?\.json\Z", re.ASCII)


class ManifestError(Exception):
    """The log contradicts itself, or the entry to be added contradicts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The topic and form of a table, the same for all its life.

    ``schema`` is Spark's JSON of the values, None for raw ones.  Runs may add columns to it.
    """

    topic: str
    topic_id: str
    layout: str
    """Kind of folders: ``date``, or ``hour`` for date and hour."""
    format: str
    schema: str | None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table.  ``path`` is its place, ``staged`` where it was written; both within the table.  ``size`` in
    bytes."""

    path: str
    staged: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The start of a run."""

    identity: Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A commit of offset ranges by partition, and of the files with their ``rows`` records.

    ``corrupt`` values could not be read; ``unknown`` values have fields that the schema does not have.
    """

    ranges: Mapping[int, tuple[int, int]]
    files: tuple[DataFile, ...]
    rows: int
    corrupt: int = 0
    unknown: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRewrite:
    """A replacement of the files at paths ``removed`` by ``files`` with the same records."""

    files: tuple[DataFile, ...]
    removed: tuple[str, ...]


Entry = Begin | Append | FileRewrite


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The table after entry ``number``.  ``last`` is the last entry with files, which may not be in place yet."""

    number: int = 0
    identity: Identity | None = None
    reached: Mapping[int, int] = field(default_factory=dict)
    """By partition: the first offset that the table does not have."""
    files: Mapping[str, int] = field(default_factory=dict)
    """Path to size in bytes."""
    rows: int = 0
    corrupt: int = 0
    unknown: int = 0
    """``corrupt`` and ``unknown`` as in ``Append``, of all commits that counted them."""
    last: Append | FileRewrite | None = None


def advance(state: TableState, number: int, entry: Entry) -> TableState:
    """Return ``state`` after its next entry.  Raises ManifestError if the entry contradicts it."""
    if number != state.number + 1:
        raise ManifestError(f"entry {number} follows {state.number}")
    match entry:
        case Begin(identity=identity):
            check_same(state.identity, identity)
            return replace(state, number=number, identity=identity)  # ``last`` stays: its files may not be in place
        case Append(ranges=ranges, files=files, rows=rows, corrupt=corrupt, unknown=unknown):
            for partition, (start, end) in ranges.items():
                if start < state.reached.get(partition, 0) or start >= end:
                    raise ManifestError(
                        f"entry {number} has offsets {start} to {end} of partition {partition}, of which the table has"
                        f" all below {state.reached.get(partition, 0)}"
                    )
            reached = {**state.reached, **{partition: end for partition, (_, end) in ranges.items()}}
            added = _added(state.files, files, number)
            return replace(
                state,
                number=number,
                reached=reached,
                files=added,
                rows=state.rows + rows,
                corrupt=state.corrupt + corrupt,
                unknown=state.unknown + unknown,
                last=entry,
            )
        case FileRewrite(files=files, removed=removed):
            if missing := [path for path in removed if path not in state.files]:
                raise ManifestError(f"entry {number} replaces {missing[0]}, which the table does not have")
            left = {path: size for path, size in state.files.items() if path not in set(removed)}
            return replace(state, number=number, files=_added(left, files, number), last=entry)


def _added(files: Mapping[str, int], new: Iterable[DataFile], number: int) -> dict[str, int]:
    added = dict(files)
    for file in new:
        if file.path in added:
            raise ManifestError(f"entry {number} adds {file.path} a second time")
        added[file.path] = file.size
    return added


def check_same(known: Identity | None, wanted: Identity) -> None:
    """Raise ManifestError, which says in what they differ, unless ``known`` is None, the same as ``wanted``, or has
    fewer columns."""
    if known is None or known == wanted:
        return
    if known.topic != wanted.topic:
        raise ManifestError(f"the table is of topic {known.topic}, not of {wanted.topic}: use another folder")
    if known.topic_id != wanted.topic_id:
        raise ManifestError(
            f"topic {known.topic} was deleted and created again since the table was begun, and its offsets begin again:"
            " use another folder"
        )
    if known.layout != wanted.layout:
        raise ManifestError(f"the table's folders are by {known.layout}, not by {wanted.layout}")
    if known.format != wanted.format:
        raise ManifestError(f"the table's values were read as {known.format}, not as {wanted.format}")
    try:
        found = refusal(known.schema, wanted.schema)
    except (ValueError, KeyError, TypeError) as error:
        raise ManifestError(f"the table's schema, or the new one, cannot be read: {error!r}") from error
    if found is not None:
        raise ManifestError(f"the table cannot take this --schema: {found}. Add columns only, or use a new folder")


# --------------------------------------------------------------------------------------------------------- as files


def entry_name(number: int) -> str:
    """Return the file name of an entry."""
    return f"{number:020d}.json"


def state_name(number: int) -> str:
    """Return the file name of the state after entry ``number``."""
    return f"{number:020d}.state.json"


def parse_name(name: str) -> tuple[int, bool] | None:
    """Return (number, whether it is a state); None if it is the name of neither."""
    match = _NAME.match(name)
    return None if match is None else (int(match[1]), match[2] is not None)


def encode_entry(number: int, entry: Entry, token: str) -> bytes:
    """Return the entry's file.  ``token`` identifies its writer, should the response to its rename be lost."""
    content: dict[str, Any] = {"format": FORMAT, "number": number, "token": token}
    match entry:
        case Begin(identity=identity):
            content |= {"kind": "begin", "table": _identity_fields(identity)}
        case Append(ranges=ranges, files=files, rows=rows, corrupt=corrupt, unknown=unknown):
            content |= {"kind": "append", "rows": rows, "files": [[f.path, f.staged, f.size] for f in files]}
            content |= {"corrupt": corrupt, "unknown_fields": unknown}
            content["offsets"] = {str(partition): list(each) for partition, each in sorted(ranges.items())}
        case FileRewrite(files=files, removed=removed):
            content |= {"kind": "merge", "files": [[f.path, f.staged, f.size] for f in files]}
            content["removed"] = list(removed)
    return json.dumps(content, separators=(",", ":")).encode()


def decode_entry(number: int, data: bytes) -> tuple[Entry, str]:
    """Return the entry and its token.  Raises ManifestError if ``data`` is not entry ``number``."""
    try:
        raw = _parse(number, data)
        return _entry(raw), str(raw["token"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"entry {number} of the table's log cannot be read: {error!r}") from error


def encode_state(state: TableState) -> bytes:
    """Return the file of a state whose files are all in place."""
    content = {
        "format": FORMAT,
        "number": state.number,
        "table": None if state.identity is None else _identity_fields(state.identity),
        "reached": {str(partition): offset for partition, offset in sorted(state.reached.items())},
        "files": dict(state.files),
        "rows": state.rows,
        "corrupt": state.corrupt,
        "unknown_fields": state.unknown,
    }
    return json.dumps(content, separators=(",", ":")).encode()


def decode_state(number: int, data: bytes) -> TableState:
    """Return the state.  Raises ManifestError if ``data`` is not state ``number``."""
    try:
        raw = _parse(number, data)
        return TableState(
            number=number,
            identity=None if raw["table"] is None else Identity(**raw["table"]),
            reached={int(partition): int(offset) for partition, offset in raw["reached"].items()},
            files={str(path): int(size) for path, size in raw["files"].items()},
            rows=int(raw["rows"]),
            corrupt=int(raw.get("corrupt", 0)),
            unknown=int(raw.get("unknown_fields", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(f"state {number} of the table's log cannot be read: {error!r}") from error


def _entry(raw: Mapping[str, Any]) -> Entry:
    files = tuple(DataFile(str(path), str(staged), int(size)) for path, staged, size in raw.get("files", ()))
    match raw["kind"]:
        case "begin":
            return Begin(identity=Identity(**raw["table"]))
        case "append":
            ranges = {int(partition): (int(start), int(end)) for partition, (start, end) in raw["offsets"].items()}
            return Append(
                ranges=ranges,
                files=files,
                rows=int(raw["rows"]),
                corrupt=int(raw.get("corrupt", 0)),
                unknown=int(raw.get("unknown_fields", 0)),
            )
        case "merge":
            return FileRewrite(files=files, removed=tuple(map(str, raw["removed"])))
        case kind:
            raise ValueError(f"an entry of kind {kind!r}")


def _identity_fields(identity: Identity) -> dict[str, str | None]:
    return {
        "topic": identity.topic,
        "topic_id": identity.topic_id,
        "layout": identity.layout,
        "format": identity.format,
        "schema": identity.schema,
    }


def _parse(number: int, data: bytes) -> dict[str, Any]:
    raw = json.loads(data)
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']}: this version reads {FORMAT}")
    if raw["number"] != number:
        raise ValueError(f"it says that it is number {raw['number']}")
    return dict(raw)

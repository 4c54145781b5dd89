"""A table's log: its entries, what they add up to, and what it refuses."""

from __future__ import annotations

import dataclasses
import json

import pytest

from bmq.spark.jobs.manifest import (
    Append,
    Begin,
    DataFile,
    Entry,
    FileRewrite,
    Identity,
    ManifestError,
    TableState,
    advance,
    decode_entry,
    decode_state,
    encode_entry,
    encode_state,
    entry_name,
    parse_name,
    state_name,
)

ID = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
IDENTITY = Identity(topic="orders", topic_id="1", layout="date", format="json", schema=json.dumps(ID))
ONE, TWO, BOTH = (DataFile(f"date=1/{name}", f"_bmq/staging/1-1/date=1/{name}", 10) for name in ("a", "b", "c"))
ENTRIES: list[Entry] = [
    Begin(identity=IDENTITY),
    Append(ranges={0: (5, 10), 1: (0, 3)}, files=(ONE,), rows=8),
    Append(ranges={0: (10, 12)}, files=(TWO,), rows=2, corrupt=1, unknown=2),
    FileRewrite(files=(BOTH,), removed=(ONE.path, TWO.path)),
]


def after(*entries: Entry) -> TableState:
    state = TableState()
    for number, entry in enumerate(entries, 1):
        state = advance(state, number, entry)
    return state


def test_what_entries_add_up_to() -> None:
    state = after(*ENTRIES[:3])
    assert (state.reached, state.rows, set(state.files)) == ({0: 12, 1: 3}, 10, {ONE.path, TWO.path})
    assert (state.corrupt, state.unknown) == (1, 2)
    merged = after(*ENTRIES)
    assert (merged.reached, merged.rows, set(merged.files)) == ({0: 12, 1: 3}, 10, {BOTH.path})
    assert merged.last == ENTRIES[3]
    assert after(*ENTRIES, ENTRIES[0]).last == ENTRIES[3], "a begin leaves undone what was undone"


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_are_read_as_written(entry: Entry) -> None:
    assert decode_entry(7, encode_entry(7, entry, "mine")) == (entry, "mine")
    with pytest.raises(ManifestError, match="entry 8"):
        decode_entry(8, encode_entry(7, entry, "mine"))


def test_a_state_is_read_as_written() -> None:
    state = after(*ENTRIES)
    assert decode_state(4, encode_state(state)) == dataclasses.replace(state, last=None)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format":2,"number":1}', b'{"format":1,"number":1,"kind":"x"}'])
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(ManifestError, match="entry 1 "):
        decode_entry(1, data)
    with pytest.raises(ManifestError, match="state 1 "):
        decode_state(1, data)


def test_offsets_are_committed_once() -> None:
    state = after(*ENTRIES[:2])
    with pytest.raises(ManifestError, match="offsets 9 to 12 of partition 0"):
        advance(state, 3, Append(ranges={0: (9, 12)}, files=(), rows=3))
    with pytest.raises(ManifestError, match="a second time"):
        advance(state, 3, Append(ranges={0: (10, 12)}, files=(ONE,), rows=2))
    with pytest.raises(ManifestError, match="does not have"):
        advance(state, 3, FileRewrite(files=(BOTH,), removed=(TWO.path,)))
    with pytest.raises(ManifestError, match="entry 4 follows 2"):
        advance(state, 4, ENTRIES[2])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"topic": "other"}, "of topic orders, not of other"),
        ({"topic_id": "2"}, "deleted and created again"),
        ({"layout": "hour"}, "by date, not by hour"),
        ({"format": "raw", "schema": None}, "read as json, not as raw"),
        ({"schema": "{1}"}, "the new one, cannot be read"),
        ({"schema": '{"type":"struct","fields":[]}'}, "the table has value.id, which --schema does not have"),
    ],
)
def test_a_table_stays_what_it_is(changed: dict[str, str], says: str) -> None:
    other = dataclasses.replace(IDENTITY, **changed)
    with pytest.raises(ManifestError, match=says):
        after(ENTRIES[0], Begin(identity=other))


def test_names() -> None:
    assert parse_name(entry_name(7)) == (7, False)
    assert parse_name(state_name(7)) == (7, True)
    assert [parse_name(name) for name in (".x", "7.json", entry_name(7) + ".tmp", "." + entry_name(7))] == [None] * 4


def test_a_run_may_add_columns() -> None:
    note = {"name": "note", "type": "string", "nullable": True, "metadata": {}}
    wider = dataclasses.replace(IDENTITY, schema=json.dumps({**ID, "fields": [*ID["fields"], note]}))
    state = after(*ENTRIES, Begin(identity=wider))
    assert state.identity == wider
    with pytest.raises(ManifestError, match=r"value\.note, which --schema does not have\. Add columns only"):
        advance(state, state.number + 1, Begin(identity=IDENTITY))

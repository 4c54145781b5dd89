"""The file of the SQLite store without its thread: what a transaction leaves, a bounded history, other formats."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bmq.meta.kv import Compacted, Delete, Entry, Event, KvError, Put, Write, prefix_range
from bmq.meta.sqlite_tables import SqliteTables

ALL = prefix_range("")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.db"


@contextlib.contextmanager
def opened(path: Path, *, history: int = 100) -> Iterator[SqliteTables]:
    with contextlib.closing(SqliteTables(str(path), history)) as tables:
        yield tables


def write(tables: SqliteTables, writes: Sequence[Write]) -> None:
    tables.begin()
    tables.apply(writes)
    tables.save()
    tables.commit()


def read_all(tables: SqliteTables) -> list[Entry]:
    return tables.page(*ALL, b"", 1000)


def test_a_committed_transaction_is_there_when_the_file_is_opened_again(path: Path) -> None:
    with opened(path) as tables:
        write(tables, [Put("a", b"1"), Put("b", b"2")])
        write(tables, [Delete("b"), Delete("absent")])
        tables.open_again()
        assert tables.revision == 3

    with opened(path) as tables:
        assert tables.revision == 3
        assert read_all(tables) == [Entry("a", b"1", 2)]
        assert tables.changes(*ALL, 1) == (
            [[Event("a", Entry("a", b"1", 2), 2), Event("b", Entry("b", b"2", 2), 2)], [Event("b", None, 3)]],
            3,
        )


def test_a_transaction_that_is_rolled_back_leaves_neither_rows_nor_a_revision(path: Path) -> None:
    with opened(path) as tables:
        write(tables, [Put("a", b"1")])
        tables.begin()
        tables.apply([Put("a", b"2"), Put("b", b"")])
        tables.save()
        assert tables.revision == 3
        tables.rollback()
        assert tables.revision == 2
        assert read_all(tables) == [Entry("a", b"1", 2)]
        assert tables.changes(*ALL, 2) == ([], 2)


def test_what_changes_nothing_has_no_revision(path: Path) -> None:
    with opened(path) as tables:
        write(tables, [Delete("absent")])
        assert tables.revision == 1


def test_the_history_is_as_long_as_it_was_opened_with(path: Path) -> None:
    with opened(path, history=2) as tables:
        for n in range(4):
            write(tables, [Put("a", b"%d" % n)])
        assert tables.revision == 5
        for after in (1, 2):
            with pytest.raises(Compacted):
                tables.changes(*ALL, after)
        found, upto = tables.changes(*ALL, 3)
        assert ([changes[0].revision for changes in found], upto) == ([4, 5], 5)


def test_entries_are_deleted_by_their_lease(path: Path) -> None:
    with opened(path) as tables:
        write(tables, [Put("a", b"", 7), Put("b", b"", 8), Put("c", b"", 7), Put("d", b"")])
        assert sorted(tables.leases()) == [7, 8]
        tables.begin()
        tables.delete_leased(7)
        tables.save()
        tables.commit()
        assert [entry.key for entry in read_all(tables)] == ["b", "d"]
        assert tables.leases() == [8]
        assert tables.revision == 3


@pytest.mark.parametrize(
    ("statement", "message"),
    [("PRAGMA user_version = 2", "has format 2, this version reads"), ("CREATE TABLE theirs (x)", "has format 0")],
)
def test_a_file_of_another_format_is_refused(path: Path, statement: str, message: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(statement)
    with pytest.raises(KvError, match=message):
        SqliteTables(str(path), 100)

"""The file of the SQLite store: its tables, their statements and their rows.

| table | a row | key |
|---|---|---|
| ``entries`` | a key's entry; ``lease`` is 0 without one | ``key`` |
| ``history`` | one change: the entry that was put, or a NULL value for a deletion | ``revision``, ``key`` |
| ``state`` | the only row: the newest revision, and up to which revision the history is deleted | none |

Invariants:

* ``state.revision`` is written in the transaction of the changes that it numbers: a kill loses both or neither.
* ``history`` has the changes of each revision in (``compacted``, ``revision``], at most as many revisions as the store
  is opened with.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Sequence
from itertools import groupby

from bmq.core.logging.fields import fields
from bmq.meta.kv import Changes, Compacted, Delete, Entry, Event, KvError, Write
from bmq.meta.kv_memory import WATCH_BATCH

_log = logging.getLogger(__name__)

_FORMAT = 1
_SCHEMA = (
    "CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL,"
    " lease INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE INDEX entries_leased ON entries (lease) WHERE lease != 0",
    "CREATE TABLE history (revision INTEGER NOT NULL, key BLOB NOT NULL, value BLOB, lease INTEGER NOT NULL,"
    " PRIMARY KEY (revision, key)) WITHOUT ROWID",
    "CREATE TABLE state (revision INTEGER NOT NULL, compacted INTEGER NOT NULL)",
    "INSERT INTO state VALUES (1, 1)",
    f"PRAGMA user_version = {_FORMAT}",
)


class SqliteTables:
    """One connection to the file.  Created, used and closed by one thread.

    ``begin``, then reads and writes, then ``save`` and ``commit``, or ``rollback``.  Any of them raises sqlite3.Error.
    """

    def __init__(self, path: str, history: int) -> None:
        """Open or create the file; ``history`` is how many revisions it keeps.

        Raises KvError or sqlite3.Error if it is not such a store or cannot be opened.
        """
        self._path = path
        self._history = history
        self._connect()

    def _connect(self) -> None:
        self._db = sqlite3.connect(self._path, isolation_level=None, timeout=1.0)
        try:
            self._prepare()
            self.revision: int
            self.revision, self._compacted = self._saved = self._db.execute("SELECT * FROM state").fetchone()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def open_again(self) -> None:
        """Open the file again after a failed COMMIT.

        Raises sqlite3.Error or KvError if the file cannot be used yet; then this may be repeated.  The rest of the
        failed COMMIT in the write-ahead log may be in the kernel's cache alone.  The checkpoint writes it to the file,
        and syncs the file, before anything is committed after it.
        """
        self._db.close()
        self._connect()
        is_busy, *_ = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise KvError(f"{self._path}: the write-ahead log cannot be written back")
        _log.warning("the metadata store was opened again", extra=fields(path=self._path, revision=self.revision))

    def begin(self) -> None:
        self._db.execute("BEGIN")

    def save(self) -> None:
        """Write the revision, and delete the history that is too old.  Once a transaction, before ``commit``."""
        if self.revision == self._saved[0]:
            return
        self._compacted = max(self._compacted, self.revision - self._history)
        self._db.execute("DELETE FROM history WHERE revision <= ?", (self._compacted,))
        self._db.execute("UPDATE state SET revision = ?, compacted = ?", (self.revision, self._compacted))

    def commit(self) -> None:
        self._db.execute("COMMIT")
        self._saved = (self.revision, self._compacted)

    def rollback(self) -> None:
        if self._db.in_transaction:  # some errors have rolled back already
            self._db.execute("ROLLBACK")
        self.revision, self._compacted = self._saved

    def get(self, key: bytes) -> Entry | None:
        row = self._db.execute("SELECT key, value, revision, lease FROM entries WHERE key = ?", (key,)).fetchone()
        return _entry(*row) if row else None

    def page(self, low: bytes, high: bytes, after: bytes, limit: int) -> list[Entry]:
        rows = self._db.execute(
            "SELECT key, value, revision, lease FROM entries WHERE key >= ? AND key < ? AND key > ?"
            " ORDER BY key LIMIT ?",
            (low, high, after, limit),
        )
        return [_entry(*row) for row in rows]

    def changes(self, low: bytes, high: bytes, after_revision: int) -> tuple[list[Changes], int]:
        """Return the next changes of keys in [low, high), and the revision up to which they are complete.

        Raises Compacted if they are no longer kept.
        """
        if after_revision < self._compacted:
            raise Compacted(self._compacted)
        if after_revision >= self.revision:
            return [], after_revision
        upto = min(self.revision, after_revision + WATCH_BATCH)
        rows = self._db.execute(
            "SELECT revision, key, value, lease FROM history"
            " WHERE revision > ? AND revision <= ? AND key >= ? AND key < ? ORDER BY revision",
            (after_revision, upto, low, high),
        )
        return [[_event(*row) for row in group] for _, group in groupby(rows, lambda row: row[0])], upto

    def leases(self) -> list[int]:
        """Return the leases that entries have."""
        rows = self._db.execute("SELECT DISTINCT lease FROM entries WHERE lease != 0")
        return [lease for (lease,) in rows]

    def delete_leased(self, lease: int) -> None:
        """Delete the entries with this lease, under one revision."""
        rows = self._db.execute("SELECT key FROM entries WHERE lease = ? AND lease != 0", (lease,)).fetchall()
        self.apply([Delete(key.decode()) for (key,) in rows])

    def apply(self, writes: Sequence[Write]) -> None:
        """Write under the next revision; deleting an absent key changes nothing."""
        revision = self.revision + 1
        changed = [self._write(write, revision) for write in writes]
        if any(changed):
            self.revision = revision

    def _write(self, write: Write, revision: int) -> bool:
        key = write.key.encode()
        if isinstance(write, Delete):
            if not self._db.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount:
                return False
            self._db.execute("INSERT INTO history VALUES (?, ?, NULL, 0)", (revision, key))
            return True
        self._db.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, write.value, revision, write.lease)
        )
        self._db.execute("INSERT INTO history VALUES (?, ?, ?, ?)", (revision, key, write.value, write.lease))
        return True

    def _prepare(self) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL: then there is no shared-memory file
        mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise KvError(f"{self._path}: SQLite cannot use its write-ahead log here (it chose {mode!r})")
        self._db.execute("PRAGMA synchronous = FULL")
        found = self._db.execute("PRAGMA user_version").fetchone()[0]
        if found == 0 and not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._create()
        elif found != _FORMAT:
            raise KvError(f"{self._path} has format {found}, this version reads format {_FORMAT} only")

    def _create(self) -> None:
        self._db.execute("BEGIN")
        for statement in _SCHEMA:
            self._db.execute(statement)
        self._db.execute("COMMIT")


def _entry(key: bytes, value: bytes, revision: int, lease: int) -> Entry:
    return Entry(key.decode(), value, revision, lease)


def _event(revision: int, key: bytes, value: bytes | None, lease: int) -> Event:
    return Event(key.decode(), None if value is None else _entry(key, value, revision, lease), revision)

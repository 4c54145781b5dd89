"""Readers of brokers' journals: a call reads only the bytes that were written since the call before it.

A broker's next file begins with a snapshot, so each file is complete by itself.  A file with a successor is read once
more, to its end, and then not again; a deleted file is forgotten.  Checkpoints stay true for ever, so the newest of a
partition is kept whatever becomes of its file.
"""

from __future__ import annotations

import logging

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.spark.planning.discover import JOURNALS_AT_ONCE
from bmq.spark.planning.log_view import in_windows
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint, decode, decode_key, merge
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.journal import CHECKPOINT, read_forwards

_log = logging.getLogger("bmq.spark")

READ_BYTES = 4 << 20


class FollowedJournals:
    """The newest checkpoint of each wanted partition, over the journals of all brokers, live or dead."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._files: dict[str, _Followed] = {}
        self._wanted: frozenset[PartitionKey] = frozenset()
        self._newest: dict[PartitionKey, Checkpoint] = {}

    def __repr__(self) -> str:
        return f"<FollowedJournals {len(self._files)} files, {len(self._wanted)} partitions>"

    async def refresh(self, wanted: frozenset[PartitionKey]) -> dict[PartitionKey, Checkpoint]:
        """Read what was written since the last call, and return the newest checkpoint of each partition in ``wanted``.

        Costs a listing and a read for each broker, beside the new bytes.  A partition without a checkpoint is not in
        the result.  Raises StorageError.
        """
        if not wanted <= self._wanted:
            self._files.clear()  # checkpoints of the partitions now added were skipped
        self._wanted = wanted
        listed = [layout.base_name(status.path) async for status in self._fs.list(layout.JOURNALS)]
        names = {name: parsed for name in listed if (parsed := layout.parse_journal(name)) is not None}
        last = dict(sorted(names.values()))
        self._files = {name: self._files.get(name) or _Followed() for name in names}
        open_ones = [name for name in names if not self._files[name].is_done]
        await in_windows(open_ones, self._catch_up, JOURNALS_AT_ONCE)
        for name in open_ones:
            if name in self._files and last[names[name][0]] > names[name][1]:
                self._files[name].is_done = True
                self._files[name].said.clear()
        self._newest = {key: checkpoint for key, checkpoint in self._newest.items() if key in wanted}
        return self._newest

    async def _catch_up(self, name: str) -> None:
        file, path, rest = self._files[name], f"{layout.JOURNALS}/{name}", b""
        while True:
            try:
                data = await self._fs.read(path, file.position + len(rest), READ_BYTES)
            except NoSuchFile:  # deleted since the listing; its successor is not in this listing
                del self._files[name]
                return
            rest += data
            records, used = read_forwards(memoryview(rest))
            for kind, payload in records:
                if kind == CHECKPOINT:
                    self._handle_checkpoint(file, path, payload)
            file.position += used
            rest = rest[used:]
            if len(data) < READ_BYTES:
                return

    def _handle_checkpoint(self, file: _Followed, path: str, payload: memoryview) -> None:
        """Take a checkpoint if its partition is wanted.

        A checkpoint that cannot be decoded is left out, with the deltas that follow it.
        """
        try:
            key = decode_key(payload)
        except FormatError as error:
            _log.warning("%s: a checkpoint cannot be decoded and is skipped: %s", path, error)
            return
        if key not in self._wanted:
            return
        try:
            self._take(file, decode(payload))
        except FormatError as error:
            _log.warning("%s: a checkpoint of %s cannot be decoded and is skipped: %s", path, key, error)
            file.said.pop(key, None)

    def _take(self, file: _Followed, said: Checkpoint) -> None:
        before = file.said.get(said.key)
        if not said.is_full:
            if before is None or before.segment != said.segment:
                return  # a delta to a checkpoint that this file does not hold
            said = merge(before, said)
        file.said[said.key] = said
        newest = self._newest.get(said.key)
        if newest is None or newest.order < said.order:
            self._newest[said.key] = said


class _Followed:
    """A file, read up to ``position``, and its last checkpoint of each partition, with later deltas added."""

    __slots__ = ("is_done", "position", "said")

    def __init__(self) -> None:
        self.position = 0
        self.said: dict[PartitionKey, Checkpoint] = {}
        self.is_done = False

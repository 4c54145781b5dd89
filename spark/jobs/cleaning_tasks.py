"""Tasks of ``compact``: the hashes of a source's keys, and a cleaned file.  They run on Spark's executors.

A task may run twice, also at the same time: it writes drafts under names of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bmq.core.aio.steps import finish_steps
from bmq.core.errors import FormatError
from bmq.core.file_access import Access
from bmq.core.model import SegmentName, cleaned_name
from bmq.core.records.batch import Batch
from bmq.spark.reading.storage_loop import StorageLoop
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cleaning.cleaned_file import MORE_ROOM, ROOM, CleanedFileWriter, DraftFull
from bmq.storage.cleaning.job_round import RoundPlan, draft_folder
from bmq.storage.cleaning.last_offsets import ANY_PRODUCER, KeyHashes, LastOffsetsFilter, has_keys
from bmq.storage.cleaning.retention import AbortedRanges
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.cleaning.source_reader import SourceReader
from bmq.storage.filesystem import CreateOptions, FileSystem, NoSuchFile, StorageError, write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.segment import decode_idx_steps, encode_idx_steps

if TYPE_CHECKING:
    from bmq.storage.hdfs.delegation_token import StorageToken

PIECE_BYTES = 8 << 20
"""Bytes of one read: nobody else waits for this process's writes."""
HASHES_MAX = 1 << 18
"""Hashes handed to Spark at once, about: 6 MB."""


class SourceError(Exception):
    """A source is not as it was planned; ``str`` names the source, and says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A closed segment with offsets [``name.base``, ``end_offset``).  ``length``: bytes of its file.

    ``modified_ms``: the time of its file, in milliseconds.
    """

    name: SegmentName
    length: int
    end_offset: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGroup:
    """The sources of one cleaned file.  ``before``: the source before the first, None at the round's start."""

    partition: int
    sources: tuple[SourceFile, ...]
    before: SegmentName | None

    @property
    def base(self) -> int:
        """The first offset."""
        return self.sources[0].name.base

    @property
    def end_offset(self) -> int:
        """The offset behind the last."""
        return self.sources[-1].end_offset

    @property
    def name(self) -> SegmentName:
        """The name of the cleaned segment."""
        return cleaned_name([source.name for source in self.sources])


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionWork:
    """All that tasks know.  ``secret``: the key of the round's hashes.  ``token``: None if storage needs none."""

    root: str
    topic: str
    topic_id: str
    job: str
    plans: Mapping[int, RoundPlan]
    groups: tuple[SourceGroup, ...]
    secret: bytes = field(default=b"", repr=False)
    token: StorageToken | None = None

    def path(self, partition: int) -> PartitionPath:
        """Return the paths of a partition."""
        return PartitionPath(self.topic, self.topic_id, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A complete draft: its group's number, the paths of draft and index, and what the cleaning did."""

    group: int
    draft: str
    draft_index: str
    bytes_before: int
    bytes_after: int
    records_before: int
    records_after: int


def hashes_of(io: StorageLoop, work: CompactionWork, group: SourceGroup) -> Iterator[tuple[Any, Any, Any]]:
    """Yield both halves of the hashes and the offsets of the records whose keys count: arrays of int64.

    Raises SourceError and StorageError.
    """
    import numpy as np

    fs = io.filesystem(work.root, token=work.token)
    path = work.path(group.partition)
    aborted = AbortedRanges(work.plans[group.partition].aborted)
    hashes = KeyHashes(work.secret)
    found: list[tuple[Any, Any, Any]] = []
    count = 0
    for source in group.sources:
        with _named(path, source.name):
            for batches in _pieces(io, fs, path, source, _index(io, fs, path, source)):
                for batch in batches:
                    if not has_keys(batch, aborted):
                        continue
                    found.append(hashes.of(batch))
                    count += len(found[-1][2])
                    if count >= HASHES_MAX:
                        yield tuple(np.concatenate(columns) for columns in zip(*found, strict=True))  # type: ignore[misc]
                        found, count = [], 0
    if found:
        yield tuple(np.concatenate(columns) for columns in zip(*found, strict=True))  # type: ignore[misc]


def write_group(io: StorageLoop, work: CompactionWork, number: int, records: LastOffsetsFilter) -> WrittenFile:
    """Write the drafts of a group's cleaned file and of its index; ``records`` knows the group's last offsets.

    Raises SourceError and StorageError.  A failed write leaves no draft, as far as storage allows.
    """
    try:
        return _Writing(io, work, number).write(records, ROOM)
    except DraftFull:  # codecs of producers may be better than ours, as in an owner's round
        return _Writing(io, work, number).write(records, MORE_ROOM)


class _Writing:
    """One attempt to write a group's drafts."""

    def __init__(self, io: StorageLoop, work: CompactionWork, number: int) -> None:
        self._io = io
        self._work = work
        self._number = number
        self._group = group = work.groups[number]
        self._plan = work.plans[group.partition]
        self._path = work.path(group.partition)
        self._fs = io.filesystem(work.root, token=work.token)
        folder, attempt = draft_folder(self._path.folder, work.job), uuid.uuid4().hex
        self._draft = f"{folder}/{group.name}-{attempt}.log"
        self._draft_index = f"{folder}/{group.name}-{attempt}.idx"

    def write(self, records: LastOffsetsFilter, room: float) -> WrittenFile:
        io, fs, group, plan = self._io, self._fs, self._group, self._plan
        indexes = [_index(io, fs, self._path, source) for source in group.sources]
        access = self._access()
        writer = io.run(
            CleanedFileWriter.create(
                fs,
                self._draft,
                sources_bytes=sum(index.position for index in indexes),
                room=room,
                interval_bytes=plan.index_interval_bytes,
                access=access,
            )
        )
        try:
            facts = self._clean(writer, records, indexes)
            io.run(writer.close())
            names, modified_ms = [source.name for source in group.sources], group.sources[-1].modified_ms
            checkpoint = writer.index(names, indexes, facts, modified_ms=modified_ms)
            data = finish_steps(encode_idx_steps(checkpoint))
            options = CreateOptions(block_bytes=1 << 20, access=access)
            io.run(write_once(fs, self._draft_index, data, options))
        except BaseException:
            writer.abort()
            with suppress(StorageError):  # the job's folder goes at the job's end, or the sweeper takes it
                io.run(fs.delete(self._draft))
                io.run(fs.delete(self._draft_index))
            raise
        return WrittenFile(
            group=self._number,
            draft=self._draft,
            draft_index=self._draft_index,
            bytes_before=facts.bytes_before,
            bytes_after=facts.bytes_after,
            records_before=facts.records_before,
            records_after=facts.records_after,
        )

    def _clean(self, writer: CleanedFileWriter, records: LastOffsetsFilter, indexes: list[Checkpoint]) -> CleanedFacts:
        group, plan = self._group, self._plan
        sources = [Source(source.name.base, source.end_offset, source.name.cleaning > 0) for source in group.sources]
        cleaning = CleaningRound(
            plan.bounds(first_dirty=plan.end),
            sources,
            aborted=plan.aborted,
            producers=plan.producers,
            records=records,
            open_before=self._open_before(),
        )
        cleaning.next_walk()
        cleaning.begin_file(sources, writer.put)
        for source, index in zip(group.sources, indexes, strict=True):
            for batches in _pieces(self._io, self._fs, self._path, source, index):
                with _named(self._path, source.name):
                    cleaning.clean(batches)
                writer.join()
                self._io.run(writer.flush())
        return cleaning.end_file()

    def _open_before(self) -> Container[int]:
        """Return the producers whose transaction may have data before the group."""
        if self._group.before is None:
            return ()
        index = _read_index(self._io, self._fs, self._path, self._group.before)
        if index.first_open_txn < 0:
            return ()
        if not index.knows_producers:
            return ANY_PRODUCER
        return {state.producer_id for state in index.producers if state.txn_start >= 0}

    def _access(self) -> Access:
        """Return the rights of the first source: the draft has the same."""
        name = self._group.sources[0].name
        try:
            status = self._io.run(self._fs.status(self._path.log(name)))
        except NoSuchFile as error:
            raise _lost(self._path, name, "it is gone") from error
        return Access(group=status.group, mode=status.mode)


def _pieces(
    io: StorageLoop, fs: FileSystem, path: PartitionPath, source: SourceFile, index: Checkpoint
) -> Iterator[Iterator[Batch]]:
    """Yield the batches of a source, piece by piece."""
    reader = SourceReader(
        fs,
        path.log(source.name),
        base=source.name.base,
        end_offset=source.end_offset,
        length=index.position,
        piece_bytes=PIECE_BYTES,
    )
    while not reader.is_over:
        try:
            io.run(reader.read())
        except NoSuchFile as error:
            raise _lost(path, source.name, "it is gone") from error
        yield reader.batches()


@contextmanager
def _named(path: PartitionPath, name: SegmentName) -> Iterator[None]:
    """Raise SourceError, which names the segment, for a damaged batch: another run would find it again."""
    try:
        yield
    except FormatError as error:
        text = f"topic {path.topic}, partition {path.partition}, segment {name}: {error}"
        advice = "`bmq segment verify` shows the damage; --partitions leaves the partition out"
        raise SourceError(f"{text}. Nothing was changed by this: {advice}") from error


def _index(io: StorageLoop, fs: FileSystem, path: PartitionPath, source: SourceFile) -> Checkpoint:
    """Return the index of a source.  Raises SourceError if it does not cover the source."""
    index = _read_index(io, fs, path, source.name)
    if index.end_offset != source.end_offset or index.position > source.length:
        raise _lost(path, source.name, "its index does not cover it")
    return index


def _read_index(io: StorageLoop, fs: FileSystem, path: PartitionPath, name: SegmentName) -> Checkpoint:
    try:
        data = io.run(_read_whole(fs, path.idx(name)))
        return finish_steps(decode_idx_steps(data))
    except NoSuchFile as error:
        raise _lost(path, name, "its index is gone") from error
    except FormatError as error:
        raise _lost(path, name, f"its index is damaged: {error}") from error


async def _read_whole(fs: FileSystem, path: str) -> bytes:
    return await fs.read(path, 0, (await fs.status(path)).length)


def _lost(path: PartitionPath, name: SegmentName, why: str) -> SourceError:
    text = f"topic {path.topic}, partition {path.partition}, segment {name}: {why}"
    return SourceError(f"{text}. Nothing was changed by this; run the job again")

"""``bmq segment verify``: check that all that should be in these files is in them, and valid."""

from __future__ import annotations

import uuid
from argparse import Namespace
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

from bmq.cli.output import format_size
from bmq.cli.progress import Progress
from bmq.cli.segment.check import FlushedEnd, SegmentCheck
from bmq.cli.segment.findings import Finding, FindingsPrinter
from bmq.cli.segment.targets import PartitionFiles, Targets, TargetSegment
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint, decode, decode_key
from bmq.storage.damage_reader import DamagedPart, FoundBatch, walk_batches, walk_journal
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END
from bmq.storage.segment import decode_idx
from bmq.storage.transactions import Transactions

Opened = dict[int, int]
"""First offsets of open transactions, by producer id."""
Checkpoints = dict[tuple[PartitionKey, SegmentName], FlushedEnd]


async def verify(fs: FileSystem, targets: Targets, arguments: Namespace) -> int:
    """Print all findings.  Returns 1 if there are faults, else 0; notes are not faults."""
    with Progress("verify", text=format_size) as progress:
        report = FindingsPrinter(as_json=arguments.json, before_line=progress.clear)
        await _verify(fs, targets, report, progress, with_records=arguments.records)
    report.finish()
    return 1 if report.faults else 0


async def _verify(
    fs: FileSystem, targets: Targets, report: FindingsPrinter, progress: Progress, *, with_records: bool
) -> None:
    chosen = [(files, segment) for files, segments in targets.partitions for segment in segments]
    chosen += targets.indexes
    checkpoints = await _checkpoints(fs, {files.key.topic_id for files, _ in chosen if files.key is not None})
    for files, _ in targets.partitions:
        _check_names(files, report)
    replaced = {segment for _, segments in targets.partitions for segment in _replaced(segments)}
    read = _BytesRead(progress)
    opened: Opened | None = None
    before: TargetSegment | None = None
    for number, (files, segment) in enumerate(chosen, 1):
        if (
            segment.is_superseded
            or before is None
            or (before.folder, before.limit) != (segment.folder, segment.name.base)
        ):
            known = None
        else:
            known = opened
        covered = checkpoints.get((files.key, segment.name)) if files.key is not None else None
        read.note = f"file {number} of {len(chosen) + len(targets.journals)}"
        if segment in replaced:
            await _pass_source(fs, segment, report)
            continue
        found = await _verify_segment(fs, segment, covered, report, read, known, with_records=with_records)
        if not segment.is_superseded:
            opened, before = found, segment
    for number, path in enumerate(targets.journals, len(chosen) + 1):
        read.note = f"file {number} of {len(chosen) + len(targets.journals)}"
        await _verify_journal(fs, path, report, read)


class _BytesRead:
    """The number of bytes read of all files, shown as progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._before = 0
        self.note = ""

    def reached(self, position: int) -> None:
        """Show that the current file was read up to ``position``."""
        self._progress.show(self._before + position, self.note)

    def finish_file(self, length: int) -> None:
        """Begin the next file."""
        self._before += length


async def _checkpoints(fs: FileSystem, topics: set[uuid.UUID]) -> Checkpoints:
    """Return the furthest checkpoint of each segment of ``topics``, from every broker's journal.

    Every readable record is true, so one that a newer file repeats does no harm.
    """
    found: Checkpoints = {}
    if not topics:
        return found
    async for status in fs.list(layout.JOURNALS):
        if layout.parse_journal(layout.base_name(status.path)) is None:
            continue
        try:
            await _read_checkpoints(fs, status.path, topics, found)
        except NoSuchFile:
            continue  # deleted meanwhile: a newer file holds its snapshot
    return found


async def _read_checkpoints(fs: FileSystem, path: str, topics: set[uuid.UUID], found: Checkpoints) -> None:
    async with aclosing(walk_journal(fs, path, await fs.visible_length(path))) as records:
        async for record in records:
            if isinstance(record, DamagedPart) or record.kind != CHECKPOINT:
                continue
            try:
                key = decode_key(record.payload)
                if key.topic_id not in topics:
                    continue
                checkpoint = decode(record.payload)
            except FormatError:
                continue  # reported when the journal itself is verified
            known = found.get((key, checkpoint.segment))
            if known is None or known.position < checkpoint.position:
                found[key, checkpoint.segment] = FlushedEnd(checkpoint.position, checkpoint.end_offset)


def _check_names(files: PartitionFiles, report: FindingsPrinter) -> None:
    orders: dict[tuple[int, int, int], TargetSegment] = {}
    for segment in files.segments:
        if not segment.has_log:
            what = "there is an index and no log of this name"
            meaning = "Harmless: retention removes the log first, and the index with its next turn."
            report.add(Finding(file=segment.idx, what=what, meaning=meaning, is_fault=False))
            continue
        other = orders.setdefault(segment.name.order, segment)
        if other is not segment:
            what = f"{other.name} has the same epoch and number"
            report.add(Finding(file=segment.log, what=what, meaning="Two segments cannot be the same registration."))


# ------------------------------------------------------------------------------------------------- segments


async def _verify_segment(
    fs: FileSystem,
    segment: TargetSegment,
    covered: FlushedEnd | None,
    report: FindingsPrinter,
    read: _BytesRead,
    opened: Opened | None,
    *,
    with_records: bool,
) -> Opened | None:
    """Verify a segment; ``opened`` and the result: the transactions open at its beginning and its end, if known."""
    index = await _read_index(fs, segment, report) if segment.has_idx else None
    if not segment.has_log:
        return None
    length = await fs.visible_length(segment.log)
    faults = report.faults
    if segment.is_superseded:
        _check_superseded(segment, length, index, covered, report)
        return None
    check = SegmentCheck(
        segment,
        length,
        index,
        covered,
        report.add,
        with_records=with_records,
        shows_open_files=not fs.url.startswith("webhdfs:"),
        opened=opened,
    )
    async with aclosing(walk_batches(fs, segment.log, 0, length, segment.name.base)) as items:
        async for item in items:
            if check.is_complete:
                break
            read.reached(item.position)
            if isinstance(item, FoundBatch):
                check.on_batch(item)
            else:
                check.on_damage(item)
    read.finish_file(length)
    check.finish()
    fields: dict[str, object] = {
        "kind": "segment",
        "file": segment.log,
        "bytes": length,
        "batches": check.batches,
        "base_offset": segment.name.base,
        "end_offset": check.end_offset,
        "has_idx": segment.has_idx,
        "faults": report.faults - faults,
    }
    offsets = f"offsets {segment.name.base}..{check.end_offset - 1}" if check.batches else "empty"
    verdict = "ok" if report.faults == faults else "FAULTY"
    report.file_done(
        fields, f"{verdict} {segment.log}: {check.batches} batches, {offsets}, {check.position} of {length} bytes"
    )
    if check.opened is not None or index is None or index.end_offset != segment.limit:
        return check.opened
    return dict(Transactions.of(index.producers).opened)  # as good as what is known of the segments before it


def _replaced(segments: Sequence[TargetSegment]) -> list[TargetSegment]:
    """Return the segments within the offsets of a cleaned segment, closed before it: its sources."""
    live = sorted((one for one in segments if one.has_log and not one.is_superseded), key=_base)
    found = []
    for segment in segments:
        at = bisect_right(live, segment.name.base, key=_base) - 1
        if at < 0 or not segment.is_superseded:
            continue
        hiding = live[at]
        is_inside = hiding.limit is None or segment.name.base < hiding.limit
        if hiding.name.cleaning and is_inside and segment.name.order < hiding.name.order:
            found.append(segment)
    return found


def _base(segment: TargetSegment) -> int:
    return segment.name.base


async def _pass_source(fs: FileSystem, segment: TargetSegment, report: FindingsPrinter) -> None:
    """Report a source of a cleaned segment, which its owner is about to delete."""
    if not segment.has_log:
        return
    length = await fs.visible_length(segment.log)
    what = f"all its {length} bytes are ignored: a cleaned segment has replaced it"
    meaning = "Harmless: the partition's owner deletes it file.delete.delay.ms after the cleaning."
    report.add(
        Finding(file=segment.log, what=what, meaning=meaning, is_fault=False, position=0, offset=segment.name.base)
    )
    fields: dict[str, object] = {"kind": "segment", "file": segment.log, "bytes": length, "superseded": True}
    report.file_done({**fields, "faults": 0}, f"ok {segment.log}: replaced")


def _check_superseded(
    segment: TargetSegment, length: int, index: Checkpoint | None, covered: FlushedEnd | None, report: FindingsPrinter
) -> None:
    """Check a segment that a later one supersedes: nothing in it may have been acknowledged."""
    flushed = max(covered.position if covered else 0, index.position if index else 0)
    if flushed:
        what = f"a later segment begins at {segment.limit}, below data that was flushed here ({flushed} bytes)"
        meaning = "Two owners wrote at once. A recovery that sees this takes the partition OFFLINE."
        report.add(Finding(file=segment.log, what=what, meaning=meaning, position=0, offset=segment.name.base))
    else:
        what = f"all its {length} bytes are ignored: a later segment begins at {segment.limit}"
        meaning = "Harmless: its pipeline failed before anything in it was acknowledged."
        if index is not None and not length:
            meaning = "Harmless: it was the empty end of a quiet compacted log, and is deleted with the next roll."
        report.add(
            Finding(file=segment.log, what=what, meaning=meaning, is_fault=False, position=0, offset=segment.name.base)
        )
    fields: dict[str, object] = {"kind": "segment", "file": segment.log, "bytes": length, "superseded": True}
    fields["faults"] = int(bool(flushed))
    report.file_done(fields, f"{'FAULTY' if flushed else 'ok'} {segment.log}: superseded")


async def _read_index(fs: FileSystem, segment: TargetSegment, report: FindingsPrinter) -> Checkpoint | None:
    try:
        return decode_idx(await read_index_file(fs, segment.idx))
    except FormatError as error:
        meaning = "The index is useless; the log is not touched by this: readers can scan it, and a new one be made."
        report.add(Finding(file=segment.idx, what=str(error), meaning=meaning))
        return None


async def read_index_file(fs: FileSystem, path: str) -> bytes:
    """Return a whole index: it has 24 bytes for each 64 KB of its log, and its producers."""
    return await fs.read(path, 0, await fs.visible_length(path))


# ------------------------------------------------------------------------------------------------- journals


@dataclass(slots=True)
class _JournalCounts:
    records: int = 0
    checkpoints: int = 0
    has_begin: bool = False
    has_end: bool = False


async def _verify_journal(fs: FileSystem, path: str, report: FindingsPrinter, read: _BytesRead) -> None:
    length = await fs.visible_length(path)
    faults = report.faults
    counts = _JournalCounts()
    async with aclosing(walk_journal(fs, path, length)) as records:
        async for record in records:
            read.reached(record.position)
            if isinstance(record, DamagedPart):
                report.add(_journal_damage(path, record))
                continue
            counts.records += 1
            counts.has_begin |= record.kind == SNAPSHOT_BEGIN
            counts.has_end |= record.kind == SNAPSHOT_END
            if record.kind == CHECKPOINT:
                counts.checkpoints += 1
                try:
                    decode(record.payload)
                except FormatError as error:
                    meaning = "The record is whole but not a checkpoint: it was written by another version, or wrongly."
                    report.add(Finding(file=path, what=str(error), meaning=meaning, position=record.position))
    read.finish_file(length)
    if not (counts.has_begin and counts.has_end):
        meaning = "Harmless if the file before it is there: a recovery reads that one too."
        report.add(Finding(file=path, what="it holds no whole snapshot", meaning=meaning, is_fault=False))
    fields: dict[str, object] = {
        "kind": "journal",
        "file": path,
        "bytes": length,
        "records": counts.records,
        "checkpoints": counts.checkpoints,
        "faults": report.faults - faults,
    }
    verdict = "ok" if report.faults == faults else "FAULTY"
    report.file_done(
        fields, f"{verdict} {path}: {counts.records} records, {counts.checkpoints} checkpoints, {length} bytes"
    )


def _journal_damage(path: str, damage: DamagedPart) -> Finding:
    if damage.is_tail and damage.fault.startswith("the file ends"):
        what = f"the last {damage.size} bytes are a torn write ({damage.fault})"
        meaning = "Harmless: the broker died in this record; nothing relied on this record."
    elif damage.is_tail:
        what = f"the last {damage.size} bytes are not a record ({damage.fault})"
        meaning = "Bytes were damaged, or the write was torn. Recovery steps over them and reads further back."
    else:
        what = f"{damage.size} bytes are not a record ({damage.fault}); good records follow"
        meaning = "Bytes were damaged after they were written. Recovery steps over them: it may read more log for it."
    is_torn = damage.is_tail and damage.fault.startswith("the file ends")
    return Finding(file=path, what=what, meaning=meaning, is_fault=not is_torn, position=damage.position)

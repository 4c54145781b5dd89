"""``bmq segment cat``: print records."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import aclosing
from dataclasses import dataclass

from bmq.cli.output import format_time, json_bytes, print_json, printable, text_bytes
from bmq.cli.segment.batch_records import BatchReader, batch_reader
from bmq.cli.segment.targets import PartitionFiles, Targets, TargetSegment
from bmq.cli.segment.verify import read_index_file
from bmq.core.errors import FormatError
from bmq.core.records.reader import StoredRecord
from bmq.storage.damage_reader import DamagedPart, FoundBatch, walk_batches
from bmq.storage.filesystem import FileSystem
from bmq.storage.index import SegmentIndex
from bmq.storage.segment import decode_idx


@dataclass(slots=True)
class _Wanted:
    """The records that are still to be printed, and whether damage was met."""

    offset: int
    end_offset: int | None
    left: int | None
    bytes_max: int
    as_json: bool
    is_damaged: bool = False

    @property
    def is_done(self) -> bool:
        return self.left == 0

    def is_past(self, offset: int) -> bool:
        return self.end_offset is not None and offset >= self.end_offset


async def cat(fs: FileSystem, targets: Targets, arguments: Namespace) -> int:
    """Print the records.  Returns 1 if something on the way could not be read, else 0; the rest is printed in any
    case."""
    wanted = _Wanted(
        offset=arguments.offset,
        end_offset=arguments.end_offset,
        left=arguments.max_records,
        bytes_max=arguments.batch_bytes_max,
        as_json=arguments.json,
    )
    for files, segments in targets.partitions:
        for segment in segments:
            if wanted.is_done:
                break
            if not _misses(segment, wanted):
                await _cat_segment(fs, files, segment, wanted)
    return int(wanted.is_damaged)


def _misses(segment: TargetSegment, wanted: _Wanted) -> bool:
    """Return whether no wanted offset can be in the segment, by its name and its successors' names."""
    ends_before = segment.limit is not None and segment.limit <= wanted.offset
    return segment.is_superseded or ends_before or wanted.is_past(segment.name.base)


async def _cat_segment(fs: FileSystem, files: PartitionFiles, segment: TargetSegment, wanted: _Wanted) -> None:
    length = await fs.visible_length(segment.log)
    due, start = await _start(fs, segment, wanted.offset)
    read = batch_reader(length - start, wanted.bytes_max)
    async with aclosing(walk_batches(fs, segment.log, start, length, due)) as items:
        async for item in items:
            if wanted.is_done or (segment.limit is not None and due >= segment.limit):
                return
            if isinstance(item, DamagedPart):
                _complain(segment, item, wanted)
                continue
            due = item.batch.next_offset
            if wanted.is_past(item.batch.base_offset):
                return
            if due > wanted.offset:
                _print_batch(files, segment, item, read, wanted)


async def _start(fs: FileSystem, segment: TargetSegment, offset: int) -> tuple[int, int]:
    """Return (offset, position) of the batch at which to begin: the segment's first one if no index tells more."""
    base = segment.name.base
    if offset <= base or not segment.has_idx:
        return base, 0
    try:
        checkpoint = decode_idx(await read_index_file(fs, segment.idx))
    except FormatError:
        return base, 0
    return SegmentIndex(entries=checkpoint.index).place_of(offset, base)


def _complain(segment: TargetSegment, damage: DamagedPart, wanted: _Wanted) -> None:
    """Print where bytes are left out.  A torn end is a note: a log may end so.  Anything else is damage."""
    if damage.is_tail:
        text = f"note: the last {damage.size} bytes at {damage.position} are not a whole batch ({damage.fault})"
    else:
        wanted.is_damaged = True
        text = f"{damage.size} bytes at {damage.position} are left out ({damage.fault})"
    print(printable(f"bmq: {segment.log}: {text}"), file=sys.stderr)


def _print_batch(
    files: PartitionFiles, segment: TargetSegment, found: FoundBatch, read: BatchReader, wanted: _Wanted
) -> None:
    batch = found.batch
    try:
        for record in read(batch):
            if wanted.is_done or wanted.is_past(record.offset):
                return
            if record.offset < wanted.offset:
                continue
            _print_record(files, record, wanted, is_control=batch.is_control)
            if wanted.left is not None:
                wanted.left -= 1
    except FormatError as error:
        wanted.is_damaged = True
        where = f"batch at {found.position}, offset {batch.base_offset}"
        print(printable(f"bmq: {segment.log}: {where}: {error}"), file=sys.stderr)


def _print_record(files: PartitionFiles, record: StoredRecord, wanted: _Wanted, *, is_control: bool) -> None:
    topic, partition = files.label
    if wanted.as_json:
        fields: dict[str, object] = {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": json_bytes(record.key),
            "value": json_bytes(record.value),
            "headers": [{"key": name, "value": json_bytes(value)} for name, value in record.headers],
        }
        if is_control:
            fields["isControl"] = True
        print_json(fields)
        return
    headers = ",".join(f"{text_bytes(name.encode())}={text_bytes(value)}" for name, value in record.headers)
    cells = [str(partition), str(record.offset), format_time(record.timestamp)]
    cells += [text_bytes(record.key), text_bytes(record.value), headers]
    if is_control:
        cells.append("[control]")
    print("\t".join(cells))

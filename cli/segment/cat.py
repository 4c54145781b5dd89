"""``bmq segment cat``: print records."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import aclosing
from dataclasses import dataclass

from bmq.cli.output import format_time, json_bytes, print_json, printable, text_bytes
from bmq.cli.parsers.segment import READ_COMMITTED
from bmq.cli.segment.batch_records import BatchReader, batch_reader
from bmq.cli.segment.isolation import LogTransactions, Outcome, find_transactions
from bmq.cli.segment.targets import PartitionFiles, Targets, TargetSegment
from bmq.cli.segment.verify import read_index_file
from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker, marker_of
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
    is_committed: bool
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
        is_committed=arguments.isolation_level == READ_COMMITTED,
    )
    for files, segments in targets.partitions:
        transactions: LogTransactions | None = None
        for segment in segments:
            if wanted.is_done:
                break
            if not _misses(segment, wanted):
                if transactions is None:
                    transactions = await find_transactions(fs, files, max(wanted.offset, segment.name.base))
                await _cat_segment(fs, files, segment, wanted, transactions)
        if wanted.is_committed and transactions is not None and not wanted.is_done:
            _note_open(files, transactions, wanted)
    return int(wanted.is_damaged)


def _note_open(files: PartitionFiles, transactions: LogTransactions, wanted: _Wanted) -> None:
    stable = transactions.first_open
    if stable >= 0 and not wanted.is_past(stable):
        topic, partition = files.label
        text = f"a transaction is open from offset {stable} on: --isolation-level read_uncommitted shows what follows"
        print(printable(f"bmq: note: {topic}-{partition}: {text}"), file=sys.stderr)


def _misses(segment: TargetSegment, wanted: _Wanted) -> bool:
    """Return whether no wanted offset can be in the segment, by its name and its successors' names."""
    ends_before = segment.limit is not None and segment.limit <= wanted.offset
    return segment.is_superseded or ends_before or wanted.is_past(segment.name.base)


async def _cat_segment(
    fs: FileSystem, files: PartitionFiles, segment: TargetSegment, wanted: _Wanted, transactions: LogTransactions
) -> None:
    stable = transactions.first_open
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
            if wanted.is_past(item.batch.base_offset) or (
                wanted.is_committed and 0 <= stable <= item.batch.base_offset
            ):
                return
            outcome = transactions.outcome_of(item.batch)
            if due > wanted.offset and not (wanted.is_committed and outcome is Outcome.ABORTED):
                _print_batch(files, segment, item, read, wanted, outcome)


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
    files: PartitionFiles,
    segment: TargetSegment,
    found: FoundBatch,
    read: BatchReader,
    wanted: _Wanted,
    outcome: Outcome,
) -> None:
    batch = found.batch
    try:
        for record in read(batch):
            if wanted.is_done or wanted.is_past(record.offset):
                return
            if record.offset < wanted.offset:
                continue
            _print_record(files, record, wanted, batch, outcome)
            if wanted.left is not None:
                wanted.left -= 1
    except FormatError as error:
        wanted.is_damaged = True
        where = f"batch at {found.position}, offset {batch.base_offset}"
        print(printable(f"bmq: {segment.log}: {where}: {error}"), file=sys.stderr)


def _print_record(files: PartitionFiles, record: StoredRecord, wanted: _Wanted, batch: Batch, outcome: Outcome) -> None:
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
        if batch.is_control:
            fields |= {"isControl": True, "marker": _marker(batch), "producerId": batch.producer_id}
        elif outcome is not Outcome.DECIDED:
            fields |= {"transaction": outcome.value, "producerId": batch.producer_id}
        print_json(fields)
        return
    headers = ",".join(f"{text_bytes(name.encode())}={text_bytes(value)}" for name, value in record.headers)
    cells = [str(partition), str(record.offset), format_time(record.timestamp)]
    cells += [text_bytes(record.key), text_bytes(record.value), headers]
    if batch.is_control:
        marker = _marker(batch)
        cells.append(f"[{marker} marker of producer {batch.producer_id}]" if marker else "[control]")
    elif outcome is not Outcome.DECIDED:
        cells.append(f"[{outcome.value} transaction of producer {batch.producer_id}]")
    print("\t".join(cells))


def _marker(batch: Batch) -> str:
    """Return COMMIT or ABORT; "" for another control record."""
    marker = marker_of(batch)
    return "" if marker is Marker.OTHER else marker.name

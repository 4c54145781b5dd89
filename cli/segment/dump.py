"""``bmq segment dump``: print the content of files, item by item, without a judgement of the whole."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import asdict

from bmq.cli.output import Table, format_time, print_json
from bmq.cli.segment.targets import Targets
from bmq.cli.segment.verify import read_index_file
from bmq.core.errors import FormatError
from bmq.core.records.batch import CODEC_MASK, CODECS, DELETE_HORIZON, LOG_APPEND_TIME, Batch
from bmq.storage.checkpoint import Checkpoint, decode
from bmq.storage.damage_reader import DamagedPart, walk_batches, walk_journal
from bmq.storage.filesystem import FileSystem
from bmq.storage.index import ENTRY
from bmq.storage.journal import CHECKPOINT, PROBE, SNAPSHOT_BEGIN, SNAPSHOT_END
from bmq.storage.segment import decode_idx

_BATCH_COLUMNS = (
    ("position", 10), ("size", 9), ("first offset", 14), ("last offset", 14), ("records", 7), ("epoch", 6),
    ("codec", -6), ("largest timestamp", -24), ("producer", 10), ("pr.ep", 5), ("sequence", 10), ("flags", -5),
    ("crc", -3),
)  # fmt: skip
_JOURNAL_COLUMNS = (
    ("position", 10), ("size", 8), ("type", -14), ("partition", -40), ("segment", -34), ("flushed", 11),
    ("end offset", 14), ("log start", 14), ("index", 6), ("producers", 9),
)  # fmt: skip
_RECORD_KINDS = {SNAPSHOT_BEGIN: "snapshot begin", SNAPSHOT_END: "snapshot end", PROBE: "probe"}


async def dump(fs: FileSystem, targets: Targets, arguments: Namespace) -> int:
    """Print the files' content.  Returns 1 if a part of a file could not be read, else 0."""
    is_damaged = False
    for _, segments in targets.partitions:
        for segment in segments:
            is_damaged |= await _dump_log(fs, segment.log, segment.name.base, as_json=arguments.json)
    for _, segment in targets.indexes:
        is_damaged |= await _dump_idx(fs, segment.idx, as_json=arguments.json)
    for path in targets.journals:
        is_damaged |= await _dump_journal(fs, path, as_json=arguments.json, with_entries=arguments.entries)
    return int(is_damaged)


def _heading(path: str, length: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"kind": "file", "file": path, "bytes": length})
    else:
        print(f"{path}: {length} bytes")


def _print_damage(path: str, damage: DamagedPart, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, object] = {"kind": "damage", "file": path}
        fields |= {"position": damage.position, "size": damage.size, "fault": damage.fault}
        if damage.header is not None:
            fields["header"] = batch_fields(damage.header, damage.position, is_crc_ok=False)
        print_json(fields)
    else:
        follows = "" if damage.is_tail or damage.mended else "; good data follows"
        print(f"{damage.position:>10}  {damage.size:>9}  DAMAGED: {damage.fault}{follows}")


# ------------------------------------------------------------------------------------------------- .log


async def _dump_log(fs: FileSystem, path: str, base: int, *, as_json: bool) -> bool:
    length = await fs.visible_length(path)
    _heading(path, length, as_json=as_json)
    table, is_damaged = Table(_BATCH_COLUMNS), False
    async with aclosing(walk_batches(fs, path, 0, length, base)) as items:
        async for item in items:
            if isinstance(item, DamagedPart):
                is_damaged = True
                if item.header is not None and not as_json:
                    table.row(*_batch_row(item.header, item.position, is_crc_ok=False))
                _print_damage(path, item, as_json=as_json)
            elif as_json:
                print_json({"kind": "batch", "file": path, **batch_fields(item.batch, item.position, is_crc_ok=True)})
            else:
                table.row(*_batch_row(item.batch, item.position, is_crc_ok=True))
    return is_damaged


def batch_fields(batch: Batch, position: int, *, is_crc_ok: bool) -> dict[str, object]:
    """Return a batch's header under the names of Kafka's documentation."""
    return {
        "position": position,
        "size": batch.size,
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "count": batch.count,
        "partitionLeaderEpoch": batch.leader_epoch,
        "magic": batch.magic,
        "crc": batch.crc,
        "isValid": is_crc_ok,
        "codec": _codec(batch),
        "timestampType": "LogAppendTime" if batch.attributes & LOG_APPEND_TIME else "CreateTime",
        "baseTimestamp": batch.base_timestamp,
        "maxTimestamp": batch.max_timestamp,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "baseSequence": batch.base_sequence,
        "lastSequence": batch.last_sequence if batch.base_sequence >= 0 else -1,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.base_timestamp if batch.attributes & DELETE_HORIZON else None,
    }


def _batch_row(batch: Batch, position: int, *, is_crc_ok: bool) -> list[object]:
    flags = "T" * batch.is_transactional + "C" * batch.is_control + "A" * bool(batch.attributes & LOG_APPEND_TIME)
    flags += "H" * bool(batch.attributes & DELETE_HORIZON)
    return [
        position, batch.size, batch.base_offset, batch.last_offset, batch.count, batch.leader_epoch, _codec(batch),
        format_time(batch.max_timestamp), batch.producer_id, batch.producer_epoch, batch.base_sequence, flags or "-",
        "ok" if is_crc_ok else "BAD",
    ]  # fmt: skip


def _codec(batch: Batch) -> str:
    codec = batch.attributes & CODEC_MASK
    return CODECS[codec] if codec < len(CODECS) else f"?{codec}"


# ------------------------------------------------------------------------------------------------- .idx


async def _dump_idx(fs: FileSystem, path: str, *, as_json: bool) -> bool:
    data = await read_index_file(fs, path)
    _heading(path, len(data), as_json=as_json)
    try:
        checkpoint = decode_idx(data)
    except FormatError as error:
        _print_damage(path, DamagedPart(0, len(data), str(error), is_tail=True), as_json=as_json)
        return True
    fields = checkpoint_fields(checkpoint)
    if as_json:
        print_json({"kind": "idx", "file": path, **fields})
    else:
        print("\n".join(f"  {name}: {value}" for name, value in fields.items()))
    _print_entries(checkpoint, path, as_json=as_json)
    return False


def checkpoint_fields(checkpoint: Checkpoint) -> dict[str, object]:
    """Return a checkpoint's fields, its lists as counts."""
    fields: dict[str, object] = {
        "topicId": str(checkpoint.key.topic_id),
        "partition": checkpoint.key.partition,
        "segment": str(checkpoint.segment),
        "position": checkpoint.position,
        "endOffset": checkpoint.end_offset,
        "logStart": checkpoint.log_start,
        "isFull": checkpoint.is_full,
        "isClosed": checkpoint.is_closed,
        "maxTimestamp": checkpoint.max_timestamp,
        "maxTimestampOffset": checkpoint.max_timestamp_offset,
        "firstOpenTransaction": checkpoint.first_open_txn,
        "indexEntries": len(checkpoint.index) // ENTRY,
        "leaderEpochs": len(checkpoint.epochs),
        "producers": len(checkpoint.producers),
        "abortedTransactions": len(checkpoint.aborted),
    }
    cleaned = checkpoint.cleaned
    if cleaned is not None:
        fields |= {
            "cleanUpTo": cleaned.clean_to,
            "earliestDeleteHorizon": cleaned.horizon,
            "bytesBefore": cleaned.bytes_before,
            "bytesAfter": cleaned.bytes_after,
            "tombstones": cleaned.tombstones,
            "markers": cleaned.markers,
            "sourceModified": cleaned.modified_ms,
        }
    return fields


def _print_entries(checkpoint: Checkpoint, path: str, *, as_json: bool) -> None:
    for kind, fields in _entries(checkpoint):
        if as_json:
            print_json({"kind": kind, "file": path, **fields})
        else:
            print(f"  {kind:<13} " + "  ".join(f"{name} {value}" for name, value in fields.items()))


def _entries(checkpoint: Checkpoint) -> Iterator[tuple[str, dict[str, object]]]:
    index = checkpoint.index
    for at in range(0, len(index), ENTRY):
        yield "index entry", {"offset": index[at], "position": index[at + 1], "maxTimestampBefore": index[at + 2]}
    for epoch, offset in checkpoint.epochs:
        yield "leader epoch", {"epoch": epoch, "startOffset": offset}
    for producer in checkpoint.producers:
        yield "producer", asdict(producer)
    for aborted in checkpoint.aborted:
        yield "aborted", asdict(aborted)


# ------------------------------------------------------------------------------------------------- .jnl


async def _dump_journal(fs: FileSystem, path: str, *, as_json: bool, with_entries: bool) -> bool:
    length = await fs.visible_length(path)
    _heading(path, length, as_json=as_json)
    table, is_damaged = Table(_JOURNAL_COLUMNS), False
    async with aclosing(walk_journal(fs, path, length)) as records:
        async for record in records:
            if isinstance(record, DamagedPart):
                is_damaged = True
                _print_damage(path, record, as_json=as_json)
            elif record.kind == CHECKPOINT:
                try:
                    checkpoint = decode(record.payload)
                except FormatError as error:
                    is_damaged = True
                    damage = DamagedPart(record.position, record.size, str(error), is_tail=False)
                    _print_damage(path, damage, as_json=as_json)
                    continue
                _print_checkpoint(table, path, record.position, record.size, checkpoint, as_json=as_json)
                if with_entries:
                    _print_entries(checkpoint, path, as_json=as_json)
            else:
                kind = _RECORD_KINDS.get(record.kind, f"unknown {record.kind}")
                if as_json:
                    place = {"position": record.position, "size": record.size}
                    print_json({"kind": kind, "file": path, **place})
                else:
                    table.row(record.position, record.size, kind, *[""] * (len(_JOURNAL_COLUMNS) - 3))
    return is_damaged


def _print_checkpoint(
    table: Table, path: str, position: int, size: int, checkpoint: Checkpoint, *, as_json: bool
) -> None:
    if as_json:
        place = {"recordPosition": position, "recordSize": size}
        print_json({"kind": "checkpoint", "file": path, **place, **checkpoint_fields(checkpoint)})
        return
    kind = ("full" if checkpoint.is_full else "delta") + (", closed" if checkpoint.is_closed else "")
    table.row(
        position, size, kind, checkpoint.key, checkpoint.segment, checkpoint.position, checkpoint.end_offset,
        checkpoint.log_start, len(checkpoint.index) // ENTRY, len(checkpoint.producers),
    )  # fmt: skip

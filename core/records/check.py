"""The check of a produced batch's records, as in Kafka's ``LogValidator``.  Pure.

| records | Kafka | here |
|---|---|---|
| not what the header says (count, lengths, bytes left over) | INVALID_RECORD | INVALID_RECORD |
| a timestamp outside ``message.timestamp.before/after.max.ms`` | INVALID_TIMESTAMP | INVALID_TIMESTAMP |
| no key, where ``cleanup.policy`` has ``compact`` | INVALID_RECORD | INVALID_RECORD |
| cannot be decompressed, or not by Java's consumers (lz4) | UNKNOWN_SERVER_ERROR | INVALID_RECORD |
| decompress to more than the limit | accepted: Kafka streams | MESSAGE_TOO_LARGE |
| a largest timestamp that is not the header's | header corrected | header corrected |
| offset deltas that are not 0, 1, 2, ... | kept, or renumbered if compressed | INVALID_RECORD |

No client retries INVALID_RECORD.  All of them retry CORRUPT_MESSAGE until their time-out, for bytes damaged on the way.
After MESSAGE_TOO_LARGE Java's producer splits the batch.

For a missing key and a wrong timestamp the error names the bad records (``record_errors``, KIP-467), in Kafka's words.
Java's producer fails these records with the error.  It fails the batch's other records with an error that says that
they were not at fault.  Kafka names all bad records; here the first RECORD_ERRORS_MAX are named.
"""

from __future__ import annotations

import struct

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.records.batch import CODEC_MASK, CODECS, HEADER_BYTES, Batch, BatchRules
from bmq.core.records.reader import RECORDS_BYTES_MAX, TooLarge, decompress
from bmq.core.records.walk import MEANING, WALKER, BadRecord, Fault

_LZ4 = CODECS.index("lz4")
_LZ4_MAGIC = bytes.fromhex("04224d18")
_LZ4_SIZE = struct.Struct("<I")
_LZ4_CONTENT_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_BLOCK_CHECKSUM, _LZ4_INDEPENDENT = 4, 8, 16, 32
_LONG_MIN, _LONG_MAX = -(1 << 63), (1 << 63) - 1
RECORD_ERRORS_MAX = 1_000
"""Bad records of a batch that its error names, at some 150 bytes each in the response.  Java's producer takes the rest
for good records; they are named when they are sent again."""
_SHOWN = 3  # bad records in the text of a batch's error, as in Kafka


def unpack(batch: Batch, *, bytes_max: int = RECORDS_BYTES_MAX) -> memoryview | RequestError:
    """Return the records' bytes, decompressed, or the error with which they are refused.

    The error is returned, not raised: its traceback would keep the buffers, of up to ``bytes_max`` bytes.
    """
    codec, data = batch.attributes & CODEC_MASK, batch.data[HEADER_BYTES : batch.size]
    fault = lz4_fault(data) if codec == _LZ4 else ""
    if fault:
        return RequestError(ErrorCode.INVALID_RECORD, fault)
    try:
        return decompress(codec, data, bytes_max)
    except TooLarge as error:
        return RequestError(ErrorCode.MESSAGE_TOO_LARGE, str(error))
    except FormatError as error:
        return RequestError(ErrorCode.INVALID_RECORD, str(error))


def lz4_fault(data: memoryview) -> str:
    """Return why Java's reader (``Lz4BlockInputStream``) would refuse an lz4 frame; "" if it would accept it.

    Java's reader takes one frame, of independent blocks.  Other decompressors take more.
    """
    if len(data) < 7 or data[:4] != _LZ4_MAGIC:
        return "no lz4 frame begins here"
    flags, sizes = data[4], data[5]
    if flags >> 6 != 1 or flags & 3 or not flags & _LZ4_INDEPENDENT:
        return f"an lz4 frame with flags {flags:#04x}: Java's consumers read version 1 with independent blocks only"
    if not 4 <= sizes >> 4 <= 7:
        return f"an lz4 frame of unknown block size {sizes >> 4}"
    at = 15 if flags & _LZ4_CONTENT_SIZE else 7
    while at + 4 <= len(data):
        (size,) = _LZ4_SIZE.unpack_from(data, at)
        at += 4
        if not size:
            at += 4 if flags & _LZ4_CONTENT_CHECKSUM else 0
            return "" if at == len(data) else f"an lz4 frame of {at} bytes in {len(data)}: Java's consumers read one"
        at += (size & 0x7FFFFFFF) + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
    return "an lz4 frame that ends early"


def check_records(batch: Batch, plain: memoryview, rules: BatchRules, now_ms: int) -> RequestError | None:
    """Return why a batch with these (decompressed) records is refused; None if it is right.

    Corrects the header's largest timestamp in place: retention, lookups by time and readers rely on it.
    """
    earliest, latest = _LONG_MIN, _LONG_MAX
    if not rules.log_append_time:
        earliest = max(now_ms - rules.timestamp_before_max_ms, _LONG_MIN)
        latest = min(now_ms + rules.timestamp_after_max_ms, _LONG_MAX)
    walk = WALKER.walk(plain, batch.count, batch.base_timestamp, earliest, latest, rules.needs_key)
    fault, number, max_timestamp = walk
    if fault in (Fault.TIMESTAMP, Fault.KEY):
        return _records_refused(batch, plain, fault, earliest, latest, rules.needs_key)
    if fault == Fault.BATCH_END:
        return RequestError(ErrorCode.INVALID_RECORD, f"{MEANING[Fault.BATCH_END]} of {number}")
    if fault != Fault.FINE:
        return RequestError(ErrorCode.INVALID_RECORD, f"record {number} of {batch.count}: {MEANING[Fault(fault)]}")
    if max_timestamp != batch.max_timestamp and not rules.log_append_time:
        batch.set_max_timestamp(max_timestamp)
    return None


def stored_fault(batch: Batch) -> str:
    """Return why the records of a stored batch are not what its header says; "" if they are.

    Records may be missing, as compaction takes them; keys and timestamps are not judged.
    """
    if not 0 <= batch.missing_records <= batch.last_offset_delta + 1:
        return f"{batch.count} records do not fit last offset delta {batch.last_offset_delta}"
    if not batch.count:
        return ""  # bytes behind the header of an empty batch are nothing, whatever its codec
    plain = unpack(batch)
    if isinstance(plain, RequestError):
        return str(plain)
    count = batch.count
    fault, number, _ = WALKER.walk(
        plain, count, batch.base_timestamp, _LONG_MIN, _LONG_MAX, missing=batch.missing_records
    )
    return "" if fault == Fault.FINE else f"record {number} of {count}: {MEANING[Fault(fault)]}"


def _records_refused(
    batch: Batch, plain: memoryview, fault: int, earliest: int, latest: int, needs_key: bool
) -> RequestError:
    """Return the error that names the records without a needed key and with wrong timestamps, in Kafka's words."""
    total, found = WALKER.bad_records(
        plain, batch.count, batch.base_timestamp, earliest, latest, needs_key, min(RECORD_ERRORS_MAX, batch.count)
    )
    errors = [(record.number, _text(record, earliest, latest)) for record in found]
    if fault == Fault.TIMESTAMP:
        text = "One or more records have been rejected due to invalid timestamp"
        return RequestError(ErrorCode.INVALID_TIMESTAMP, text, errors)
    shown = ", ".join(f"RecordError(batchIndex={number}, message='{text}')" for number, text in errors[:_SHOWN])
    return RequestError(
        ErrorCode.INVALID_RECORD,
        f"One or more records have been rejected due to {total} record errors in total, and only showing the first"
        f" three errors at most: [{shown}]",
        errors,
    )


def _text(record: BadRecord, earliest: int, latest: int) -> str:
    if record.lacks_key:
        return "Compacted topic cannot accept message without key"
    return (
        f"Timestamp {record.timestamp} of message with offset {record.number} is out of range. The timestamp should be"
        f" within [{earliest}, {latest}]"
    )

"""Checks of produced batches' records: small batches on the loop, at once; large ones from the queue, off the loop.

The cost of a check depends on the batch's bytes, not on what its header claims. The limits keep a turn of the loop
under some 10 ms for the worst bytes (records of seven bytes, headers of two) on a slow processor. Usual batches cost
much less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import CODEC_MASK, Batch, BatchRules, check_batch
from bmq.core.records.check import check_records, unpack
from bmq.core.records.compression import Compression, repack
from bmq.core.records.walk import WALKER


class CheckLimits(NamedTuple):
    """Largest batches that are checked on the loop, in bytes: uncompressed, compressed, and after decompression."""

    plain: int
    packed: int
    unpacked: int


COMPILED = CheckLimits(plain=2 << 20, packed=64 << 10, unpacked=512 << 10)
"""Limits with the compiled walker."""
IN_PYTHON = CheckLimits(plain=32 << 10, packed=8 << 10, unpacked=32 << 10)
"""Limits without it."""


def check_at_once(batch: Batch, rules: BatchRules, now_ms: int) -> bool:
    """Check the records now and return True; return False, unchecked, if that would take too long.

    Raises RequestError if the batch is refused.
    """
    limits = COMPILED if WALKER.is_compiled else IN_PYTHON
    is_packed = batch.attributes & CODEC_MASK
    if batch.size > (limits.packed if is_packed else limits.plain):
        return False
    plain = unpack(batch, bytes_max=limits.unpacked if is_packed else limits.plain)
    if isinstance(plain, RequestError):
        if plain.code is ErrorCode.MESSAGE_TOO_LARGE:
            return False
        raise plain
    error = check_records(batch, plain, rules, now_ms)
    if error is not None:
        raise error
    return True


@dataclass(frozen=True, slots=True)
class Work:
    """The work on one batch before it is numbered, by the topic's settings at the time it arrived."""

    rules: BatchRules
    now_ms: int
    compression: Compression | None

    def do(self, batch: Batch) -> Batch | RequestError:
        """Return the batch, checked and compressed as its topic demands, or the error that it is refused with.

        May run in any thread.
        """
        plain = unpack(batch)
        if isinstance(plain, RequestError):
            return plain
        error = check_records(batch, plain, self.rules, self.now_ms)
        if error is not None:
            return error
        if self.compression is None or batch.attributes & CODEC_MASK == self.compression.number:
            return batch
        packed = Batch(memoryview(repack(batch, plain, self.compression)))
        return self._fault(packed) or packed

    def _fault(self, packed: Batch) -> RequestError | None:
        """Return the error that the compressed batch is refused with, if any: it may have grown past the limit."""
        try:
            check_batch(packed, self.rules)
        except RequestError as error:
            return RequestError(error.code, error.message)
        return None

"""The driver's effects of a takeover; each returns the event that reports it."""

from __future__ import annotations

import logging

from bmq.broker import events as ev
from bmq.broker.events import Event
from bmq.broker.partition.partition_io import PartitionIo
from bmq.broker.partition.recovery import Takeover
from bmq.core.errors import FormatError
from bmq.core.logging.fields import fields
from bmq.meta.kv import KvError
from bmq.storage.filesystem import CorruptData, StorageError

_log = logging.getLogger(__name__)


async def fence_segments(driver: PartitionIo, effect: ev.FenceSegments) -> Event:
    """Stop the writers of the predecessor's segments."""
    takeover = _takeover(driver)
    try:
        return ev.SegmentsFenced(await takeover.fence_all(effect.entries))
    except StorageError as error:
        return _delayed(driver, ev.FenceFailed(repr(error)))


async def recover_log(driver: PartitionIo, effect: ev.RecoverLog) -> Event | None:
    """Recover the predecessor's log. Returns None if a later owner has the partition: it may have changed the log."""
    takeover = _takeover(driver)
    try:
        outcome = await _recovered(driver, effect)
        is_sound = isinstance(outcome, ev.LogRecovered) and not takeover.losses
        if not is_sound and not isinstance(outcome, ev.RecoveryFailed) and not await driver.is_ours():
            return None  # a later owner may have deleted the segments: that is no damage, and this one is fenced
    except KvError as error:
        outcome = ev.RecoveryFailed(f"cannot check whether a later owner has changed the log: {error!r}")
    is_last_try = effect.passes_damaged  # OFFLINE follows, and has a line of its own
    if isinstance(outcome, ev.RecoveryFailed) or (isinstance(outcome, ev.LogUnreadable) and not is_last_try):
        return _delayed(driver, outcome)
    for report in takeover.losses:
        report()
    return outcome


async def _recovered(driver: PartitionIo, effect: ev.RecoverLog) -> Event:
    """Recover the log; return the outcome, whoever owns it now.  Raises KvError."""
    try:
        return await _takeover(driver).recover(effect, driver.is_ours)
    except CorruptData as error:
        return ev.LogUnreadable(f"no replica gives right bytes: {error}")
    except FormatError as error:
        return ev.LogUnreadable(str(error))
    except StorageError as error:
        return ev.RecoveryFailed(repr(error))


def _delayed(driver: PartitionIo, failure: ev.FenceFailed | ev.RecoveryFailed | ev.LogUnreadable) -> Event:
    """Return the failure, and log what the takeover waits for: a client only sees that it has to wait."""
    _takeover(driver).trouble = failure.reason
    text = "a partition is not taken over yet, trying again"
    _log.warning(text, extra=fields(**driver.path.log_fields, error=failure.reason))
    return failure


def write_indexes(driver: PartitionIo, effect: ev.WriteIndexes) -> None:
    """Begin to write the indexes that the record's segments lack.

    The work keeps neither the takeover nor the effect: it waits for seconds, perhaps beside thousands of others.
    """
    missing = _takeover(driver).missing_indexes(
        effect, lambda name: driver.post(ev.IndexWritten(name)), driver.spawn_unless_ended
    )
    driver.spawn(missing.write())


def _takeover(driver: PartitionIo) -> Takeover:
    assert driver.takeover is not None, f"{driver} is not being taken over"
    return driver.takeover

"""The driver's effects on the partition's record in the metadata store; each returns the event that reports it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bmq.broker import events as ev
from bmq.broker.events import Event
from bmq.core.errors import FormatError
from bmq.meta import ownership
from bmq.meta.kv import KvError

if TYPE_CHECKING:
    from bmq.broker.partition.driver import PartitionDriver


async def read_record(driver: PartitionDriver, effect: ev.ReadRecord) -> Event:
    """Read the record, again and again until the store responds."""
    if driver.takeover is not None and driver.takeover.found is not None:
        return ev.RecordRead(*driver.takeover.found)
    shared = driver.shared
    waits = shared.store_waits
    waits.asked(driver, shared.now_ms())
    while True:
        try:
            found = await shared.records.read(driver.record_key)
        except KvError as error:
            waits.failed(str(error))
            await asyncio.sleep(shared.config.retry_ms.least / 1000)
            continue
        except FormatError as error:
            waits.answered(driver)
            return unreadable(driver, error)
        waits.answered(driver)
        return ev.RecordRead(*found)


async def store_record(driver: PartitionDriver, effect: ev.StoreRecord) -> Event:
    """Write the record over the one of the effect's revision."""
    shared = driver.shared
    waits = shared.store_waits
    waits.asked(driver, shared.now_ms())
    try:
        result = await shared.records.store(driver.record_key, effect.record, effect.revision)
    except KvError as error:
        waits.failed(str(error))
        return ev.RecordUnknown(effect.record)
    except FormatError as error:
        waits.answered(driver)
        return unreadable(driver, error)
    waits.answered(driver)
    if isinstance(result, ownership.Stored):
        return ev.RecordStored(effect.record, result.revision)
    return ev.RecordRefused(result.record, result.revision)


async def check_owner(driver: PartitionDriver) -> Event | None:
    """Return the event that ends the partition if the store does not name this broker as the owner, else None.

    Raises KvError.
    """
    try:
        record, _ = await driver.shared.records.read(driver.record_key)
    except FormatError as error:
        return unreadable(driver, error)
    return None if record.epoch == driver.machine.epoch else ev.EpochChanged(record.epoch)


def unreadable(driver: PartitionDriver, error: FormatError) -> ev.RecordUnreadable:
    """Return the event of a record that cannot be decoded."""
    return ev.RecordUnreadable(f"key {driver.record_key}: {error}")

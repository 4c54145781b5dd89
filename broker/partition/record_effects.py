"""The driver's effects on the partition's record in the metadata store; each returns the event that reports it."""

from __future__ import annotations

import asyncio

from bmq.broker import events as ev
from bmq.broker.events import Event
from bmq.broker.partition.partition_io import PartitionIo
from bmq.core.errors import FormatError
from bmq.meta import ownership
from bmq.meta.kv import KvError


async def read_record(driver: PartitionIo, effect: ev.ReadRecord) -> Event:
    """Read the record, again and again until the store responds."""
    if driver.takeover is not None and driver.takeover.found is not None:
        return ev.RecordRead(*driver.takeover.found)
    context = driver.context
    waits = context.store_waits
    waits.asked(driver, context.now_ms())
    while True:
        try:
            found = await context.records.read(driver.record_key)
        except KvError as error:
            waits.failed(str(error))
            await asyncio.sleep(context.config.retry_ms.least / 1000)
            continue
        except FormatError as error:
            waits.answered(driver)
            return driver.unreadable(error)
        waits.answered(driver)
        return ev.RecordRead(*found)


async def store_record(driver: PartitionIo, effect: ev.StoreRecord) -> Event:
    """Write the record over the one of the effect's revision."""
    context = driver.context
    waits = context.store_waits
    waits.asked(driver, context.now_ms())
    try:
        result = await context.records.store(driver.record_key, effect.record, effect.revision)
    except KvError as error:
        waits.failed(str(error))
        return ev.RecordUnknown(effect.record)
    except FormatError as error:
        waits.answered(driver)
        return driver.unreadable(error)
    waits.answered(driver)
    if isinstance(result, ownership.Stored):
        return ev.RecordStored(effect.record, result.revision)
    return ev.RecordRefused(result.record, result.revision)

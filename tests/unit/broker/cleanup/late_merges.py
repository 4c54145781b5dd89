"""Merges in tests whose owner stands still before their concat, and drafts that storage loses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from bmq.broker.cleanup.index_reads import read_idx
from bmq.broker.cleanup.segment_merge import merged
from bmq.core.model import SegmentName
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import StorageError, write_once
from bmq.storage.layout import base_name
from bmq.storage.log_segments import walk
from bmq.storage.segment import encode_idx
from tests.unit.broker.cleanup.compacted_logs import BRISK, COMPACT, Found, update
from tests.unit.broker.cleanup.upkeep import PATH, Owner, World

PATIENT = replace(BRISK, step_timeout_ms=1 << 40)
"""The janitor of a process that stands still: its deadlines do not run."""
LATE = "merge may still come and cannot be settled"
"""A part of the log line of a log that waits."""
RETRY_S = BRISK.retry_ms / 1000 + 1
HELD_MS = 600_000
KEPT = replace(COMPACT, file_delete_delay_ms=HELD_MS, cleaning=replace(COMPACT.cleaning, segment_bytes=300))
"""Sources of cleaned segments stay on storage while the story lasts."""
LAGGING = replace(KEPT, cleaning=replace(KEPT.cleaning, min_compaction_lag_ms=HELD_MS))
"""Only old records are cleaned: a late merge would put others into a hidden source."""


async def names_of(world: World) -> list[SegmentName]:
    """Return the names of the log's files, in order."""
    return [one.name async for one in walk(world.reading, PATH)]


async def begun_merge(
    world: World, pause_s: int = 0, segment_bytes: int = 1_400
) -> tuple[Owner, Found, asyncio.Event, asyncio.Task[None], list[Exception]]:
    """Return a former owner before the concat of a merge, its records, and the gate, task and refusals of the call.

    ``pause_s``: time between the first 4 records and the others.  ``segment_bytes``: most bytes of the merged file.
    """
    first = await world.owner("a", COMPACT, PATIENT)
    await update(first, 4)
    await asyncio.sleep(pause_s)
    last = await update(first, 10)
    gate, concat, refusals = asyncio.Event(), first.steps.concat, list[Exception]()

    async def late(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        await gate.wait()
        try:
            await concat(target, sources, target_bytes)
        except Exception as error:
            refusals.append(error)
            raise

    first.steps.concat = late  # type: ignore[method-assign]
    first.configure(segment_bytes=segment_bytes)
    zombie = asyncio.create_task(first.rounds())
    await asyncio.sleep(1)
    return first, last, gate, zombie, refusals


def lose(owner: Owner, error: StorageError, *beginnings: str) -> Counter[str]:
    """Lose the blocks of files with these beginnings of names; return how often each was read."""
    read, reads = owner.steps.read, Counter[str]()

    async def lost(path: str, position: int, length: int) -> bytes:
        name = base_name(path)
        if name.startswith(beginnings):
            reads[name] += 1
            raise error
        return await read(path, position, length)

    owner.steps.read = lost  # type: ignore[method-assign]
    return reads


async def write_draft(world: World, names: Sequence[SegmentName], holder: str = "late") -> str:
    """Write the complete draft of a merge of these files, as a former owner that has yet to prove its ownership."""
    draft = f"{PATH.folder}/.join-{names[0]}-{holder}"
    await write_once(world.reading, draft, encode_idx(merged(await indexes(world, names))))
    return draft


async def indexes(world: World, names: Sequence[SegmentName]) -> list[Checkpoint]:
    """Return the indexes of these segments."""
    parts = [await read_idx(world.reading, PATH.idx(name), _raise) for name in names]
    return [part for part in parts if part is not None]


def _raise(path: str, error: Exception) -> None:
    raise error


async def drafts(world: World) -> list[str]:
    """Return the names of the drafts of merges."""
    return [name for name in await world.names() if name.startswith(".join-")]


def refuse(owner: Owner, error: StorageError) -> Counter[str]:
    """Refuse the owner's concats with this error; return how often each target was asked for."""
    calls = Counter[str]()

    async def refused(target: str, sources: Sequence[str], target_bytes: int | None = None) -> None:
        calls[base_name(target)] += 1
        raise error

    owner.steps.concat = refused  # type: ignore[method-assign]
    return calls

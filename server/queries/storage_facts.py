"""Segments of a partition as storage has them, for the console."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from bmq.console.listing import Page
from bmq.console.operations import NotPossible
from bmq.console.state import BlockFacts, SegmentFacts, SegmentsFacts
from bmq.core.model import SegmentName
from bmq.meta.catalog import Catalog
from bmq.proxy.partition_queries import ask_all
from bmq.storage.filesystem import FileSystem, NoSuchFile, StorageError
from bmq.storage.layout import PartitionPath, parse_segment
from bmq.storage.log_segments import ListedSegment, walk

PARALLEL = 8
"""Most files whose blocks are requested at the same time."""
TELL_S = 5.0
"""Time-out of storage, for the names of a page's segments and the blocks of all of them."""


async def segments_of(fs: FileSystem, catalog: Catalog, topic_name: str, partition: int, page: Page) -> SegmentsFacts:
    """Return a page of the live segments, by offset.

    Raises NotPossible: 400 if ``page.after`` is not a segment's name, 503 if storage lists no segment in time.  If it
    lists only some, or not all blocks, the result has the reason.
    """
    topic = catalog.topics[topic_name]
    path = PartitionPath(topic_name, str(topic.topic_id), partition)
    after = _name(page.after) if page.after else None
    deadline = asyncio.get_running_loop().time() + TELL_S
    listed: list[ListedSegment] = []
    error = ""
    try:
        async with asyncio.timeout_at(deadline), aclosing(walk(fs, path, after)) as found:
            async for each in found:
                if each.is_live and each.name != after:
                    listed.append(each)
                if len(listed) > page.limit:
                    break
    except StorageError as failed:
        error = f"{type(failed).__name__}: {failed}"
    except TimeoutError:
        error = f"no answer within {TELL_S:g} s"
    if error and not listed:
        raise NotPossible(503, "storage_unavailable", f"storage does not list the segments: {error}")
    if error:
        error = f"storage does not list all segments: {error}"
    has_more = len(listed) > page.limit
    listed = listed[: page.limit]
    described = await ask_all(listed, lambda each: _segment(fs, path, each, deadline), PARALLEL)
    segments = [each for each in described if each]
    untold = sum(each["blocks"] is None for each in segments)
    if untold and not error and asyncio.get_running_loop().time() >= deadline:
        error = f"storage did not tell the blocks of {untold} segments within {TELL_S:g} s"
    following = str(listed[-1].name) if has_more else None
    return SegmentsFacts(topic=topic_name, partition=partition, segments=segments, next=following, error=error)


def _name(text: str) -> SegmentName:
    parsed = parse_segment(f"{text}.log")
    if parsed is None:
        raise NotPossible(400, "wrong_parameter", f"after={text[:80]!r} is not a segment's name")
    return parsed[0]


async def _segment(fs: FileSystem, path: PartitionPath, listed: ListedSegment, deadline: float) -> SegmentFacts | None:
    """Return the segment, without blocks if these do not come by ``deadline``; None if it was deleted meanwhile."""
    size, blocks = listed.length, None
    try:
        async with asyncio.timeout_at(deadline):
            places = await fs.block_places(path.log(listed.name)) if _is_ahead(deadline) else None
    except NoSuchFile:
        return None
    except (StorageError, TimeoutError):  # the file exists, only its blocks are unknown: they are null
        places = None
    if places is not None:
        blocks = [BlockFacts(position=each.position, bytes=each.length, nodes=each.nodes) for each in places]
        size = max([size, *(each.position + each.length for each in places)])
    return SegmentFacts(
        segment=str(listed.name), base_offset=listed.name.base, end_offset=listed.end, epoch=listed.name.epoch,
        bytes=size, modified_ms=listed.modified_ms, is_closed=listed.has_idx, blocks=blocks,
    )  # fmt: skip


def _is_ahead(deadline: float) -> bool:
    return asyncio.get_running_loop().time() < deadline

"""Views of one partition, and the ranges and slices of it."""

from __future__ import annotations

from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs
from bmq.spark.planning.log_view import LogView
from bmq.spark.planning.slices import Range, Slice
from bmq.storage.filesystem import FileSystem


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"root": "memory:", "topic": "orders"} | given)


async def only(fs: FileSystem, **given: str) -> LogView:
    (view,) = await find_logs(fs, options(**given))
    return view


async def wanted(view: LogView, **given: str) -> Range:
    return await view.wanted(options(**given))


async def all_slices(view: LogView, *, committed: bool = True) -> list[Slice]:
    return await view.slices(Range(view.log.start, view.log.end), read_committed=committed, spacing=1)

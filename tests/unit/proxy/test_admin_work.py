"""The parts of an admin request: what they leave behind."""

from __future__ import annotations

import asyncio
import gc
import weakref

from bmq.core.errors import ErrorCode, RequestError
from bmq.proxy.admin_work import each
from tests.unit.loop_stops import without_collector


class Item:
    """A part of a request, weakly referable."""


def test_refused_parts_are_freed_without_the_collector() -> None:
    """A hundred thousand that were left to it stop the loop when it comes."""

    async def refuse(item: Item) -> None:
        try:
            raise ValueError("no such name")
        except ValueError as error:
            raise RequestError(ErrorCode.INVALID_REQUEST, "refused") from error

    async def ask() -> tuple[list[weakref.ref[Item]], list[ErrorCode]]:
        items = [Item() for _ in range(40)]
        results = await each(items, refuse, 10_000)
        codes = [result.code for result in results if isinstance(result, RequestError)]
        return [weakref.ref(item) for item in items], codes

    with without_collector():
        left, codes = asyncio.run(ask())
        assert codes == [ErrorCode.INVALID_REQUEST] * 40
        assert [ref for ref in left if ref() is not None] == []
        gc.collect()

"""Results of expensive calls (to storage, to other processes), kept for callers that follow soon after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Memoized(Generic[T]):
    """The result of ``compute``, as in Guava's ``Suppliers.memoizeWithExpiration``.

    At most one call of ``compute`` runs at a time.  No call runs within ``kept_s`` seconds after the beginning of the
    last call with a result.  A call that fails, or whose caller is cancelled, is not kept: the next ``get`` calls
    again.
    """

    def __init__(self, compute: Callable[[], Awaitable[T]], kept_s: float) -> None:
        self._compute = compute
        self._kept_s = kept_s
        self._computing = asyncio.Lock()
        self._known: tuple[float, T] | None = None  # when its computation began, on the loop's clock

    def __repr__(self) -> str:
        known = "nothing yet" if self._known is None else f"as of {self._known[0]:.3f}"
        return f"<Memoized {known}, kept for {self._kept_s:g} s>"

    async def get(self) -> T:
        """Return the result, computed now or kept.  Raises what ``compute`` raises."""
        async with self._computing:
            began = asyncio.get_running_loop().time()
            if self._known is None or began - self._known[0] >= self._kept_s:
                self._known = began, await self._compute()
            return self._known[1]

"""Requests about several groups or transactional ids, of which the client may not use all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from bmq.coordinator.routed_api import RoutedApi
from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode


async def ask_about_allowed(
    api: RoutedApi,
    ask: Callable[[Any], Awaitable[Any]],
    message: Any,
    is_allowed: Callable[[str], bool],
    refused: ErrorCode,
) -> Any:
    """Return the response to a request about several coordinator keys.

    ``ask`` sends a request with the allowed keys to the coordinator.  The other keys get the error ``refused``.
    """
    message = await api.distinct(message)
    allowed = await map_in_turns(is_allowed, api.coordinator_keys(message))
    if all(allowed):
        return await ask(message)
    answers: list[Any] = []
    if any(allowed):
        part = api.part(message, [number for number, is_in in enumerate(allowed) if is_in])
        answers = api.answers(await ask(part))
    served = iter(answers)
    results = await map_in_turns(
        lambda number: next(served) if allowed[number] else api.refusal(message, number, refused), range(len(allowed))
    )
    return api.join(message, results)

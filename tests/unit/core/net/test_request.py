"""A pending response's outcome reaches all that wait for it."""

from __future__ import annotations

import asyncio
from typing import Any

from bmq.core.net.request import Outcome, PendingResponse, Response


async def test_a_bug_in_a_callback_is_reported_and_keeps_the_outcome_from_nobody_else() -> None:
    """The caller is an owner in the middle of a flush's event: other requests wait for the rest of it."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    pending, outcomes, bug = PendingResponse(), list[Outcome](), ValueError("a bug")

    def fail(outcome: Outcome) -> None:
        raise bug

    for call in (outcomes.append, fail, outcomes.append):
        pending.on_over(call)
    response = Response(())
    pending.resolve(response)
    assert outcomes == [response, response]
    assert [context["exception"] for context in reported] == [bug]

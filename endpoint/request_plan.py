"""The plan of a request: how the dispatcher serves it, chosen once, before its handler is called.  Pure.

=============== ===================================================== =============================================
plan            chosen for                                            worker (``endpoint.dispatch``)
=============== ===================================================== =============================================
``AT_ONCE``     a small request with a small response                 calls the handler in the loop, in the call
                                                                      that brings the request
``AFTER_OTHERS`` a small Produce behind a large one of its connection calls the handler once the large Produce is
                                                                      handed to the owners (``ProduceOrder``)
``IN_ROOM``     a small request with a large response                 calls the handler once the budget of responses
                                                                      has room (``ResponseBudget``)
``IN_THREAD``   a large request                                       decodes it in a thread, few at a time
                                                                      (``LargeRequests``), and works in turns
=============== ===================================================== =============================================

A handler does not know the plan of its request.  Produce and Fetch have a second handler, which begins a large request
and works in turns of the loop (``Api.begin_large``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from bmq.endpoint.large_requests import INLINE_BYTES
from bmq.endpoint.response_budget import COUNTED_LEAST


class Plan(Enum):
    """The way in which one request is served."""

    AT_ONCE = "at once"
    AFTER_OTHERS = "after others"
    IN_ROOM = "in room"
    IN_THREAD = "in a thread"


AT_ONCE: Final = Plan.AT_ONCE
"""The plan of nearly all requests, here for the hot path: a look-up of a member in its Enum class costs a call."""


@dataclass(frozen=True, slots=True)
class PlanRule:
    """The bounds of one API up to which its requests are small.

    ``body_bytes`` is the size of a body that the codec reads.  An API with a reader of its own (``Api.parse``) has a
    bound of ``partitions`` instead, at which the reader stops.  ``keeps_order``: a request waits until all earlier
    requests of its connection have begun.
    """

    body_bytes: int = INLINE_BYTES
    partitions: int = 0
    keeps_order: bool = False


BY_BODY: Final = PlanRule()
"""The rule of the APIs that the codec reads."""


def choose_plan(rule: PlanRule, body_bytes: int, is_many: bool, is_held: bool, response_bytes: int) -> Plan:
    """Return the plan of a request.

    ``body_bytes``: size of a body that the codec reads, else 0; ``is_many``: the request has more partitions than the
    rule's; ``is_held``: an earlier request of its connection has not begun yet; ``response_bytes``: estimated size of
    its response, 0 without an estimate.
    """
    if is_many or body_bytes > rule.body_bytes:
        return Plan.IN_THREAD
    if is_held:
        return Plan.AFTER_OTHERS
    return Plan.IN_ROOM if response_bytes >= COUNTED_LEAST else AT_ONCE

"""Decision about a pipeline whose flush is late: whether it is given up, and which datanodes are excluded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker import events as ev
from bmq.broker.context import BrokerContext


async def check_slow_pipeline(
    shared: BrokerContext, suspect: ev.Suspect, nodes: tuple[str, ...], age_ms: Callable[[], int | None]
) -> ev.SegmentFailed | None:
    """Return the event that gives the pipeline up; None if it is kept, or nothing waits for it any more.

    | finding                                                                  | the pipeline is given up |
    | ------------------------------------------------------------------------ | ------------------------ |
    | some nodes do not respond to a probe                                     | at once                  |
    | none of its nodes respond (perhaps this broker's own network)            | at once, for a token     |
    | ``suspect.is_slow``, and a node is an outlier                            | at once, for a token     |
    | ``suspect.is_slow``, and nothing was flushed for twice ``slow_flush_ms`` | then, for a token        |

    A token (``broker.files.datanode_health``) bounds the new files that a disturbance of the whole cluster causes. A
    silent node stops every pipeline through it: it needs no token, and every pipeline that waits for it is given up.
    ``age_ms`` returns the age of the pipeline's oldest flush in flight; None if there is none any more.
    """
    silent = await _silent(shared, nodes)
    age = age_ms()
    if age is None:
        return None
    if silent:
        if len(silent) == len(nodes) and not shared.health.take_roll_token(shared.now_ms()):
            return None
        shared.health.silenced(silent, shared.now_ms())
        for writer in list(shared.busy):
            writer.leave_nodes(silent)
        return ev.SegmentFailed(suspect.name, f"no flush for {age} ms; silent: {', '.join(silent)}")
    return await _check_slowness(shared, suspect, nodes, age_ms) if suspect.is_slow else None


async def _silent(shared: BrokerContext, nodes: tuple[str, ...]) -> tuple[str, ...]:
    responses = await asyncio.gather(*(shared.fs.probe(node) for node in nodes))
    return tuple(node for node, is_up in zip(nodes, responses, strict=True) if not is_up)


async def _check_slowness(
    shared: BrokerContext, suspect: ev.Suspect, nodes: tuple[str, ...], age_ms: Callable[[], int | None]
) -> ev.SegmentFailed | None:
    """Decide about a pipeline whose nodes all respond to a probe."""
    slow_ms = shared.config.slow_flush_ms
    outliers = shared.health.outliers(nodes)
    age = suspect.age_ms
    while not outliers and age < 2 * slow_ms:
        await asyncio.sleep((2 * slow_ms - age) / 1000)
        now_old = age_ms()
        if now_old is None or now_old < slow_ms:
            return None
        age = now_old
    if not shared.health.take_roll_token(shared.now_ms()):
        return None
    shared.health.slow(outliers, shared.now_ms())
    return ev.SegmentFailed(suspect.name, f"no flush for {age} ms; slow: {', '.join(outliers) or 'all'}")

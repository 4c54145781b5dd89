"""Whether a pipeline whose flush is late is to be left, and who is to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker.context import BrokerContext
from bmq.broker.partition import events as ev


async def check_slow_pipeline(
    shared: BrokerContext, suspect: ev.Suspect, nodes: tuple[str, ...], age_ms: Callable[[], int | None]
) -> ev.SegmentFailed | None:
    """Fail over when a node is silent, or, where ``suspect.is_slow``, when one is an outlier or nothing has moved for
    twice the time.

    ``age_ms``: of the pipeline's oldest flush on its way; None when there is none any more.

    Slowness costs a token, so that a hiccup of the whole cluster is no storm of new files.  A silent node costs none:
    every pipeline through it stands still.  Unless all of them are silent at once, which may be our own network.
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
    return await _look_into_slowness(shared, suspect, nodes, age_ms) if suspect.is_slow else None


async def _silent(shared: BrokerContext, nodes: tuple[str, ...]) -> tuple[str, ...]:
    answers = await asyncio.gather(*(shared.fs.probe(node) for node in nodes))
    return tuple(node for node, is_up in zip(nodes, answers, strict=True) if not is_up)


async def _look_into_slowness(
    shared: BrokerContext, suspect: ev.Suspect, nodes: tuple[str, ...], age_ms: Callable[[], int | None]
) -> ev.SegmentFailed | None:
    """All nodes answer a probe."""
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

"""Whether a pipeline whose flush is late is to be left, and who is to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker import events as ev
from bmq.broker.shared import Shared


async def look_into(
    shared: Shared, suspect: ev.Suspect, nodes: tuple[str, ...], age_ms: Callable[[], int | None]
) -> ev.PipelineFailed | None:
    """Fail over when a node is silent, or is an outlier, or when nothing has moved for twice the time; and only while
    tokens last, so that a hiccup of the whole cluster is no storm of new files.

    ``age_ms``: of the pipeline's oldest flush on its way; None when there is none any more.
    """
    slow_ms = shared.config.slow_flush_ms
    answers = await asyncio.gather(*(shared.fs.probe(node) for node in nodes))
    silent = tuple(node for node, is_up in zip(nodes, answers, strict=True) if not is_up)
    outliers = shared.health.outliers(nodes)
    age = suspect.age_ms
    while not silent and not outliers and age < 2 * slow_ms:
        await asyncio.sleep((2 * slow_ms - age) / 1000)
        now_old = age_ms()
        if now_old is None or now_old < slow_ms:
            return None
        age = now_old
    if not shared.health.take_roll_token(shared.now_ms()):
        return None
    shared.health.failed(silent, shared.now_ms())
    if not silent:
        shared.health.slow(outliers, shared.now_ms())
    return ev.PipelineFailed(suspect.name, f"no flush for {age} ms; silent: {silent}; slow: {outliers}")

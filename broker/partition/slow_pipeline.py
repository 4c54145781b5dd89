"""Decision about a pipeline whose flush is late: whether it is given up, and which datanodes are excluded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bmq.broker import events as ev
from bmq.broker.context import BrokerContext, OpenPartition
from bmq.broker.partition.partition_io import PartitionIo


async def check_slow_pipeline(driver: PartitionIo, effect: ev.CheckSlowPipeline) -> ev.SegmentFailed | None:
    """Return the event that gives the pipeline up; None if it is kept, or nothing waits for it any more.

    | finding                                                                  | the pipeline is given up |
    | ------------------------------------------------------------------------ | ------------------------ |
    | some nodes do not respond to a probe                                     | at once                  |
    | none of its nodes respond (perhaps this broker's own network)            | at once, for a token     |
    | ``effect.is_slow``, and a node is an outlier                            | at once, for a token     |
    | ``effect.is_slow``, and nothing was flushed for twice ``slow_flush_ms`` | then, for a token        |

    A token (``broker.files.datanode_health``) bounds the new files that a disturbance of the whole cluster causes. A
    silent node stops every pipeline through it: it needs no token, and every pipeline that waits for it is given up.
    """
    context, nodes = driver.context, driver.nodes
    silent = await _silent(context, nodes)
    age = _age_ms(driver, effect)
    if age is None:
        return None
    if silent:
        if len(silent) == len(nodes) and not context.health.take_roll_token(context.now_ms()):
            return None
        context.health.silenced(silent, context.now_ms())
        for each in list(context.state.busy):
            _leave_nodes(each, silent)
        return ev.SegmentFailed(effect.name, f"no flush for {age} ms; silent: {', '.join(silent)}")
    return await _check_slowness(driver, effect, nodes) if effect.is_slow else None


def _age_ms(driver: PartitionIo, effect: ev.CheckSlowPipeline) -> int | None:
    """Return the age of the pipeline's oldest flush in flight; None if there is none any more."""
    current, inflight = driver.machine.current, driver.machine.batches.inflight
    if current is None or current.entry.name != effect.name or not inflight:
        return None
    return driver.context.now_ms() - inflight[0].sent_ms


async def _silent(context: BrokerContext, nodes: Sequence[str]) -> tuple[str, ...]:
    responses = await asyncio.gather(*(context.fs.probe(node) for node in nodes))
    return tuple(node for node, is_up in zip(nodes, responses, strict=True) if not is_up)


def _leave_nodes(partition: OpenPartition, silent: Sequence[str]) -> None:
    """Give up the partition's open pipeline if a flush of it waits for one of these nodes.

    A pipeline without a flush in flight is given up when there is something to send.
    """
    segment = partition.machine.current
    if segment is None or not partition.machine.batches.inflight:
        return
    if not set(silent).isdisjoint(partition.nodes):
        partition.post(ev.SegmentFailed(segment.entry.name, f"silent: {', '.join(silent)}"))


async def _check_slowness(
    driver: PartitionIo, effect: ev.CheckSlowPipeline, nodes: Sequence[str]
) -> ev.SegmentFailed | None:
    """Decide about a pipeline whose nodes all respond to a probe."""
    context = driver.context
    slow_ms = context.config.slow_flush_ms
    outliers = context.health.outliers(nodes)
    age = effect.age_ms
    while not outliers and age < 2 * slow_ms:
        await asyncio.sleep((2 * slow_ms - age) / 1000)
        now_old = _age_ms(driver, effect)
        if now_old is None or now_old < slow_ms:
            return None
        age = now_old
    if not context.health.take_roll_token(context.now_ms()):
        return None
    context.health.slow(outliers, context.now_ms())
    return ev.SegmentFailed(effect.name, f"no flush for {age} ms; slow: {', '.join(outliers) or 'all'}")

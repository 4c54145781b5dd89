"""``min.insync.replicas`` from a produce to its response, on storage whose datanodes die and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bmq.broker.config import BrokerConfig, log_config
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.meta.topic_configs import effective
from tests.harness.waiting import until
from tests.unit.broker.world import World, batch, idempotent, world

HOLD_S = BrokerConfig().short_hold_ms / 1000


def two_of_three(w: World, **configs: str) -> None:
    """Make a topic of three copies, of which at least two must exist."""
    topic = w.topic("orders", assign=False)
    w.assigned.assign(w.path(), w.key(), log_config({"min.insync.replicas": "2", **configs}, 3))
    assert topic.partitions == 1


def keep_datanodes(w: World, count: int) -> None:
    """Keep ``count`` datanodes up, and kill the others."""
    for number, name in enumerate(w.storage.datanodes):
        if number < count:
            w.storage.start_datanode(name)
        elif w.storage.datanodes[name].is_up:
            w.storage.kill_datanode(name)


def copies(w: World) -> int:
    (appender,) = [each for each in w.storage.appenders if "/topics/" in each.lease.paths[0]]
    return len(appender.nodes)


async def repeated(w: World, make: Callable[[], bytearray]) -> Any:
    """Produce again and again, as a client does, until there is a response without an error, and return it."""
    for _ in range(100):
        part = await w.produce_one(make())
        if not part.error_code:
            return part
        await asyncio.sleep(0.1)
    raise AssertionError(part)


async def test_rule_1_no_acks_all_with_fewer_copies_than_asked_for() -> None:
    """The first produces wait for nodes to come back, the next ones are refused at once; acks=1 is not bound."""

    async with world() as w:
        two_of_three(w)
        keep_datanodes(w, 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = await w.produce_one(batch())
        assert ErrorCode(first.error_code) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert HOLD_S <= loop.time() - began < 2 * HOLD_S
        began = loop.time()
        second = await w.produce_one(batch())
        assert ErrorCode(second.error_code) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert loop.time() == began
        assert "min.insync.replicas" in second.error_message
        unbound = await w.produce_one(batch(b"one"), acks=1)
        assert (unbound.error_code, unbound.base_offset) == (0, 0), "the refused ones have taken no offset"
        owner = await w.owner()
        await until(lambda: owner.high_watermark == 1)
        (line,) = w.broker.reports
        assert line.startswith("storage has too few datanodes for min.insync.replicas of 1 partitions")
        assert line.endswith(" topic=orders partition=0")
        assert w.broker.under_min_isr == 1
        assert w.broker.is_serving


async def test_it_goes_on_by_itself_when_nodes_come_back() -> None:
    async with world() as w:
        two_of_three(w)
        keep_datanodes(w, 1)
        assert (await w.produce_one(batch())).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        keep_datanodes(w, 4)
        assert (await repeated(w, batch)).base_offset == 0
        assert copies(w) == 3
        await until(lambda: w.broker.under_min_isr == 0)


async def test_nodes_that_come_back_in_time_cost_only_time() -> None:
    async with world() as w:
        two_of_three(w)
        keep_datanodes(w, 1)
        waiting = w.produce({("orders", 0): batch()})
        await asyncio.sleep(HOLD_S / 2)
        assert not waiting.done()
        keep_datanodes(w, 2)
        assert (await waiting)[0].error_code == 0
        assert copies(w) == 2


async def test_nodes_that_die_under_an_open_segment() -> None:
    """Stop datanodes under an open segment: the batch in flight is in the log already, and its repetition is
    acknowledged once the batch has its copies (rule 9)."""

    async with world() as w:
        two_of_three(w)
        assert (await w.produce_one(idempotent(0))).error_code == 0
        keep_datanodes(w, 1)
        part = await w.produce_one(idempotent(1))
        assert ErrorCode(part.error_code) in (
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        )
        assert (await w.owner()).high_watermark == 1, "nothing is acknowledged, or shown, with one copy"
        keep_datanodes(w, 4)
        assert (await repeated(w, lambda: idempotent(1))).base_offset == 1
        assert (await w.owner()).high_watermark == 2
        assert copies(w) == 3


async def test_the_setting_may_change_on_a_partition_that_is_written() -> None:
    async with world() as w:
        topic = w.topic("orders", assign=False)
        w.assigned.assign(w.path(), w.key(), log_config(topic.configs, 3))
        keep_datanodes(w, 1)
        assert (await w.produce_one(batch())).error_code == 0
        assert copies(w) == 1
        w.assigned.assign(w.path(), w.key(), log_config({"min.insync.replicas": "2"}, 3))
        assert (await w.produce_one(batch())).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        w.assigned.assign(w.path(), w.key(), log_config(topic.configs, 3))
        assert (await w.produce_one(batch())).error_code == 0


@pytest.mark.parametrize("number", [1, 4])
async def test_more_than_the_replication_factor_is_taken_and_refuses_every_acks_all(number: int) -> None:
    """Accept such a setting and refuse acks=all, as Kafka does. A local folder keeps one copy whatever the replication
    factor says."""

    async with world() as w:
        w.topic("orders", assign=False)
        w.assigned.assign(w.path(), w.key(), log_config({"min.insync.replicas": str(number + 1)}, number))
        assert (await w.produce_one(batch())).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await w.produce_one(batch(), acks=1)).error_code == 0


def test_internal_topics_are_bound_by_their_own_value_alone() -> None:
    defaults = {"min.insync.replicas": "3"}
    for own, wanted in (({}, 1), ({"min.insync.replicas": "2"}, 2)):
        values = effective(own, NodeConfig(), defaults, {}, is_internal=True)
        assert log_config(values, 3, is_internal=True).min_insync == wanted
    assert log_config(effective({}, NodeConfig(), defaults, {}), 3).min_insync == 3

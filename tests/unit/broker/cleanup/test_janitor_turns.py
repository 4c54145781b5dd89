"""A round of the janitor looks at its partitions in turns of the loop (``Janitor._notice``)."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import cast

from bmq.broker.cleanup.janitor import COST_OF_NEW, Janitor
from bmq.broker.config import LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.model import PartitionKey
from tests.harness.loop_stops import TurnCounter
from tests.unit.broker.cluster import cluster

TOPIC_ID = uuid.UUID(int=1)


class Held:
    """A writer and its partition, as far as a round looks at it.  ``looks`` counts that."""

    def __init__(self, number: int, looks: TurnCounter) -> None:
        self.key = PartitionKey(TOPIC_ID, number)
        self.machine = self
        self.record = object()
        self.config = LogConfig()
        self.log_start = 0
        self._looks = looks

    @property
    def state(self) -> PartitionState:
        self._looks.count()
        return PartitionState.WRITE


async def test_a_round_looks_at_many_partitions_in_turns_of_the_loop() -> None:
    """New ones cost more: there are fewer of them in a turn.  Partitions that go meanwhile are forgotten."""

    async with cluster("a") as made:
        looks = TurnCounter()
        held = [Held(number, looks) for number in range(2 * ELEMENTS_A_TURN + 500)]
        janitor = Janitor(made["a"].broker.shared, lambda: cast(list[PartitionDriver], held), None, random.Random(1))
        await janitor._notice(0)
        assert looks.take() == [ELEMENTS_A_TURN // COST_OF_NEW] * (len(held) * COST_OF_NEW // ELEMENTS_A_TURN)
        await janitor._notice(1_000)
        assert looks.take() == [ELEMENTS_A_TURN, ELEMENTS_A_TURN, 500]
        task = asyncio.ensure_future(janitor._notice(2_000))
        await asyncio.sleep(0)
        del held[10:]
        await task
        await janitor._notice(3_000)
        assert len(janitor._cares) == 10

"""Numbers of one process.  Their count takes many turns of the loop: a process may own 100,000 partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from bmq.broker.cleanup.cleaning_status import NOTHING_TO_CLEAN, CleaningTotals
from bmq.broker.not_served_api import NotServed, not_served
from bmq.core.aio.steps import batched
from bmq.core.aio.turns import ELEMENTS_A_TURN, next_turn, run_in_turns
from bmq.core.metrics.refresh import Refresh
from bmq.server.roles.broker import BrokerRole
from bmq.server.roles.coordinator import CoordinatorRole

COUNTS_S = 1.0
"""Seconds between two counts at least: clients without a login may ask for readiness at any rate."""
NONE_NOT_SERVED = NotServed("", 0, ())


class Counts:
    """The numbers as of the last count."""

    def __init__(self, broker: BrokerRole | None, coordinator: CoordinatorRole | None) -> None:
        self._broker = broker
        self._coordinator = coordinator
        self._refresh = Refresh(self._count, COUNTS_S, "the numbers of partitions and transactions")
        self.partitions_by_state: Mapping[str, int] = {}
        """Numbers of the partitions that this process owns, by the name of their state."""
        self.not_served = NONE_NOT_SERVED
        """The partitions that this process should serve and cannot."""
        self.cleaning: CleaningTotals = NOTHING_TO_CLEAN
        """Numbers of the compacted logs."""
        self.oldest_transaction_s = 0.0
        """Age of the oldest open transaction of the loaded shards, in seconds; 0 if none is open."""

    async def count(self) -> None:
        """Count in turns of the loop, unless the last count is recent.  Callers at the same time share a count."""
        self._refresh.request()
        await self._refresh.wait()

    async def close(self) -> None:
        """End the count in progress, and begin no more."""
        await self._refresh.close()

    async def _count(self) -> None:
        if self._broker is not None:
            broker, by_state = self._broker.broker, Counter[str]()
            for some in batched(broker.partitions(), ELEMENTS_A_TURN):
                if by_state:
                    await next_turn()
                by_state.update(driver.machine.state.name for driver in some)
            self.partitions_by_state = by_state
            self.not_served = await not_served(broker, self._broker.assigned)
            self.cleaning = await run_in_turns(broker.janitor.cleaning.totals())
        if self._coordinator is not None:
            self.oldest_transaction_s = await run_in_turns(self._coordinator.transactions.shards.oldest_open_s())

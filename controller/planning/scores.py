"""Each broker's share of the load, kept while a plan decides moves.  Pure.

In whole numbers, so that no order of adding them makes a difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from bmq.controller.planning.partition_table import Rate, Traffic
from bmq.controller.planning.planner_view import WHOLE, Broker, PlannerView
from bmq.core.model import PartitionKey

BYTES_WEIGHT, REQUESTS_WEIGHT = 0.5, 0.3
"""The rest is by partitions.  Bytes cost a broker most (checksums, three datanodes), then requests; a partition at
rest still costs memory and a file now and then."""
BYTES_FLOOR_S, REQUESTS_FLOOR_S = 1_000_000.0, 100.0
"""Traffic a broker on average below which its weight shrinks in proportion: that little is no load."""


class Scores:
    """The score of each living broker, and the weight of a partition in it.  All scores add up to ``WHOLE``."""

    def __init__(self, view: PlannerView, targets: Sequence[Broker]) -> None:
        """``targets``: those that may be given something, in the order that breaks ties."""
        self.targets = [broker.incarnation for broker in targets]
        self._owners = view.owners
        n, total, partitions = len(view.brokers), view.owners.traffic, max(1, len(view.owners))
        self._per_byte = BYTES_WEIGHT * WHOLE / max(total.bytes_s, n * BYTES_FLOOR_S)
        self._per_request = REQUESTS_WEIGHT * WHOLE / max(total.millirequests_s / 1000, n * REQUESTS_FLOOR_S)
        self.average = WHOLE // partitions
        """An even share of one partition."""
        self.at_rest = max(1, (WHOLE - self._of_traffic(total)) // partitions)
        """The weight of a partition without traffic."""
        self.scores = {
            broker.incarnation: self._of_traffic(view.owners.traffic_of(broker.incarnation))
            + view.owners.count(broker.incarnation) * self.at_rest
            for broker in view.brokers
        }

    def _of_traffic(self, traffic: Traffic) -> int:
        return round(traffic.bytes_s * self._per_byte + traffic.millirequests_s / 1000 * self._per_request)

    def weight_of(self, rate: Rate) -> int:
        return round(rate.bytes_s * self._per_byte + rate.requests_s * self._per_request) + self.at_rest

    def weight(self, key: PartitionKey, owner: str) -> int:
        """``owner`` is the partition's now."""
        rate = self._owners.rates_of(owner).get(key)
        return self.at_rest if rate is None else self.weight_of(rate)

    def moved(self, source: str, target: str, weight: int) -> None:
        self.scores[target] += weight
        if source in self.scores:
            self.scores[source] -= weight

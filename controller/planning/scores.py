"""Each broker's share of the load, kept up to date while a plan decides moves.  Pure.

Scores are whole numbers, so that the order of adding them makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from bmq.controller.planning.planner_view import WHOLE, PlannerBroker, PlannerView
from bmq.controller.planning.rates import Rate, Rates
from bmq.core.model import PartitionKey

BYTES_WEIGHT, REQUESTS_WEIGHT = 0.5, 0.3
"""Parts of a score that bytes and requests make; the number of partitions makes the rest.  Bytes cost a broker most
(checksums, three datanodes), then requests; a partition at rest still costs memory and a file now and then."""
BYTES_FLOOR_S, REQUESTS_FLOOR_S = 1_000_000.0, 100.0
"""Traffic per second and broker, on average, below which these parts shrink in proportion: so little is not a load."""


class LoadWeights:
    """The weight of traffic alone, by which balancing evens loads out.  All weights add up to ``WHOLE`` at most."""

    def __init__(self, total: Rates, brokers: int) -> None:
        """``total``: the traffic of all partitions; ``brokers``: how many serve it."""
        parts = BYTES_WEIGHT + REQUESTS_WEIGHT
        self._per_byte = BYTES_WEIGHT / parts * WHOLE / max(total.bytes_s, brokers * BYTES_FLOOR_S)
        self._per_request = (
            REQUESTS_WEIGHT / parts * WHOLE / max(total.millirequests_s / 1000, brokers * REQUESTS_FLOOR_S)
        )
        self.even = WHOLE // max(1, brokers)
        """A broker's part if all had the same, and there is more traffic than the floors."""

    def of(self, rate: Rate) -> int:
        """Return the weight of a partition with this rate."""
        return round(rate.bytes_s * self._per_byte + rate.requests_s * self._per_request)

    def of_sum(self, rates: Rates) -> int:
        """Return the weight of a broker's traffic."""
        return round(rates.bytes_s * self._per_byte + rates.millirequests_s / 1000 * self._per_request)


class Scores:
    """The score of each live broker, and the weight of a partition in it.  All scores add up to ``WHOLE``."""

    def __init__(self, view: PlannerView, targets: Sequence[PlannerBroker]) -> None:
        """``targets``: the brokers that may be given partitions, in the order that breaks ties."""
        self.targets = [broker.incarnation for broker in targets]
        self._owners = view.owners
        n, total, partitions = len(view.brokers), view.owners.traffic, max(1, len(view.owners))
        self._per_byte = BYTES_WEIGHT * WHOLE / max(total.bytes_s, n * BYTES_FLOOR_S)
        self._per_request = REQUESTS_WEIGHT * WHOLE / max(total.millirequests_s / 1000, n * REQUESTS_FLOOR_S)
        self.average = WHOLE // partitions
        """The weight of a partition if all had the same."""
        self.at_rest = max(1, (WHOLE - self._of_traffic(total)) // partitions)
        """The weight of a partition without traffic."""
        self.scores = {
            broker.incarnation: self._of_traffic(view.owners.traffic_of(broker.incarnation))
            + view.owners.count(broker.incarnation) * self.at_rest
            for broker in view.brokers
        }

    def _of_traffic(self, traffic: Rates) -> int:
        return round(traffic.bytes_s * self._per_byte + traffic.millirequests_s / 1000 * self._per_request)

    def weight_of(self, rate: Rate) -> int:
        """Return the weight of a partition with this rate."""
        return round(rate.bytes_s * self._per_byte + rate.requests_s * self._per_request) + self.at_rest

    def weight(self, key: PartitionKey, owner: str) -> int:
        """Return the weight of a partition, whose owner now is ``owner``."""
        rate = self._owners.rates_of(owner).get(key)
        return self.at_rest if rate is None else self.weight_of(rate)

    def moved(self, source: str, target: str, weight: int) -> None:
        """Move a partition's weight from one broker's score to another's; a dead source has no score."""
        self.scores[target] += weight
        if source in self.scores:
            self.scores[source] -= weight

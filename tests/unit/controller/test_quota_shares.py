"""Shares of the cluster's quotas: their sum is the limit, they follow demand, and the cluster's rate keeps to it.

The simulation has proxies with an allowance each, and connections that send as fast as they may.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Collection

import pytest

from bmq.controller.quota_shares import (
    BURST_S,
    CONFIRM_S,
    LEASE_S,
    LEAST_PART,
    QUOTAS_MAX,
    Allotment,
    Demand,
    ShareAllocator,
)
from bmq.meta.security.client_quotas import Holder
from bmq.proxy.quotas.holdings import Holding
from bmq.proxy.quotas.rates import SAMPLE_S, SAMPLES, Allowance
from bmq.proxy.quotas.sharing import REPORT_S, SOON_S
from tests.harness.seeds import seeds

WINDOW_S = SAMPLES * SAMPLE_S
LIMIT = 1_000.0
PROXIES = ("a", "b", "c", "d")


def settled() -> ShareAllocator:
    return ShareAllocator(-CONFIRM_S)


def demand(rate: float = 0.0, share: float = 0.0, *, short: bool = False, quota: str = "q") -> Demand:
    """Return a demand.  A holder that was held up owes a second of the whole limit."""
    return Demand(quota, LIMIT, rate, share, short, -LIMIT if short else 0.0)


def with_equal_shares(*proxies: str) -> ShareAllocator:
    """Return the shares of a leader that proxies have reported equal ones to before time 0."""
    shares = ShareAllocator(-CONFIRM_S)
    for each in proxies:
        shares.allot(each, [demand(share=LIMIT / len(proxies), short=True)], proxies, -0.01)
    return shares


def shares_of(
    allocator: ShareAllocator, proxy: str, demands: list[Demand], proxies: Collection[str], now: float
) -> list[float]:
    return [each.share for each in allocator.allot(proxy, demands, proxies, now)]


def test_a_proxy_alone_has_the_limit() -> None:
    assert shares_of(settled(), "a", [demand(10.0, 250.0)], PROXIES, 0.0) == [LIMIT]


def test_a_share_grows_after_the_others_have_shrunk() -> None:
    shares = settled()
    assert shares_of(shares, "a", [demand(900.0, 500.0, short=True)], ("a", "b"), 0.0) == [LIMIT]
    assert shares_of(shares, "b", [demand(0.0, 500.0, short=True)], ("a", "b"), 0.1) == [5.0]
    assert shares_of(shares, "a", [demand(900.0, 1000.0, short=True)], ("a", "b"), 1.0) == [500.0]
    assert shares_of(shares, "b", [demand(10.0, 5.0, short=True)], ("a", "b"), 1.1) == [500.0]


def test_who_needs_less_gets_what_it_needs_and_the_rest_is_the_others() -> None:
    shares = settled()
    for now in (0.0, 1.0, 2.0):
        given = [
            shares_of(shares, "a", [demand(80.0)], PROXIES, now)[0],
            shares_of(shares, "b", [demand(500.0, short=True)], PROXIES, now)[0],
            shares_of(shares, "c", [demand(200.0, short=True)], PROXIES, now)[0],
        ]
    assert given == [100.0, 450.0, 450.0]


def test_a_holder_that_was_held_up_needs_its_rate_four_times_and_what_pays_its_debt() -> None:
    many = demand(500.0, short=True)
    slow = Demand("q", LIMIT, 20.0, 5.0, True, -10.0)
    shares = settled()
    for now in (0.0, 1.0):
        given = [shares_of(shares, "a", [many], PROXIES, now)[0], shares_of(shares, "b", [slow], PROXIES, now)[0]]
    assert given == [820.0, 180.0]
    assert [slow._replace(credit=each).need for each in (100.0, -1e6)] == [80.0, LIMIT]


def test_what_nobody_needs_is_given_to_all_alike() -> None:
    shares = settled()
    for now in (0.0, 1.0):
        given = [shares_of(shares, each, [demand(80.0)], PROXIES, now)[0] for each in ("a", "b")]
    assert given == [500.0, 500.0]


def test_a_share_that_is_not_reported_is_free_after_its_lease() -> None:
    shares = settled()
    shares_of(shares, "a", [demand(short=True)], PROXIES, 0.0)
    assert shares_of(shares, "b", [demand(short=True)], PROXIES, LEASE_S - 0.1) == [2.5]
    assert shares_of(shares, "b", [demand(short=True)], PROXIES, LEASE_S) == [LIMIT]


def test_the_share_of_a_proxy_that_left_is_free_at_once() -> None:
    shares = settled()
    shares_of(shares, "a", [demand(short=True)], PROXIES, 0.0)
    assert shares_of(shares, "b", [demand(short=True)], ("b", "c"), 0.1) == [LIMIT]


def test_a_new_leader_confirms_shares_first() -> None:
    shares = ShareAllocator(10.0)
    assert shares_of(shares, "b", [demand(0.0, 100.0, short=True)], PROXIES, 10.1) == [100.0]
    assert shares_of(shares, "a", [demand(0.0, 900.0)], PROXIES, 11.0) == [900.0]
    assert shares_of(shares, "b", [demand(0.0, 100.0, short=True)], PROXIES, 10.0 + CONFIRM_S) == [100.0]
    assert shares_of(shares, "a", [demand(0.0, 900.0)], PROXIES, 13.0) == [2.5]
    assert shares_of(shares, "b", [demand(0.0, 100.0, short=True)], PROXIES, 13.5) == [997.5]


@pytest.mark.slow
def test_quotas_are_bounded_and_forgotten() -> None:
    shares = settled()
    shares_of(shares, "a", [demand(quota=str(number)) for number in range(QUOTAS_MAX)], PROXIES, 0.0)
    assert shares_of(shares, "a", [demand(quota="one more")], PROXIES, 0.0) == [LIMIT / 4]
    assert len(shares) == QUOTAS_MAX
    shares_of(shares, "a", [demand()], PROXIES, LEASE_S)
    assert len(shares) == 1


def test_what_is_taken_from_a_proxy_goes_to_another_with_its_credit() -> None:
    shares = with_equal_shares("a", "b")
    needs = Demand("q", LIMIT, 500.0, 500.0, True, 0.0)
    has_spare = Demand("q", LIMIT, 0.0, 500.0, False, 250.0)
    assert shares.allot("b", [has_spare], ("a", "b"), 1.0) == [(5.0, -247.5)]
    assert shares.allot("a", [needs], ("a", "b"), 1.0) == [(995.0, 247.5)]
    assert shares.allot("a", [Demand("q", LIMIT, 995.0, 995.0, True, 0.0)], ("a", "b"), 1.1) == [(995.0, 0.0)]


def test_a_free_share_has_credit_for_half_a_second_at_most() -> None:
    shares = with_equal_shares("a", "b")
    demands = {each: Demand("q", LIMIT, 0.0, 500.0, True, -LIMIT) for each in ("a", "b")}
    shares.allot("b", [demands["b"]._replace(was_short=False)], ("a", "b"), 1.0)
    (grown,) = shares.allot("a", [demands["a"]], ("a", "b"), 1.0 + BURST_S / 2)
    assert tuple(grown) == pytest.approx((995.0, 495.0 * BURST_S / 2))
    shares.allot("a", [demands["a"]._replace(share=995.0, was_short=False)], ("a", "b"), 1.5)
    (grown,) = shares.allot("b", [demands["b"]._replace(share=5.0)], ("a", "b"), 4.0)
    assert tuple(grown) == pytest.approx((500.0, 495.0 * BURST_S))


@pytest.mark.parametrize("seed", range(20))
def test_shares_and_credits_are_those_of_the_limit_together(seed: int) -> None:
    """Reports of any kind, answered at once, neither make credit nor more share than the limit and the least parts."""
    rng = random.Random(seed)
    shares, now = with_equal_shares(*PROXIES), 0.0
    proxies = {each: Allowance(LIMIT / len(PROXIES), now) for each in PROXIES}
    taken = 0.0
    for name in [name for _ in range(75) for name in rng.sample(PROXIES, len(PROXIES))]:
        now += rng.random() / 2
        allowance = proxies[name]
        amount = rng.random() * LIMIT
        if allowance.credit(now) >= amount:
            allowance.take(amount, now)
            taken += amount
        given = shares.allot(
            name,
            [Demand("q", LIMIT, rng.random() * LIMIT, allowance.limit, rng.random() < 0.5, allowance.credit(now))],
            PROXIES,
            now,
        )
        allowance.set_limit(given[0].share, now, given[0].credit)
        assert sum(each.limit for each in proxies.values()) <= LIMIT * (1 + LEAST_PART)
        assert sum(each.credit(now) for each in proxies.values()) <= LIMIT * (1 + LEAST_PART) * BURST_S
    assert taken <= LIMIT * (1 + LEAST_PART) * (now + BURST_S)


class Proxy:
    """A proxy in the simulation: its connections send ``size`` whenever they may, ``pause_s`` apart at least."""

    def __init__(self, name: str, limit: float) -> None:
        self.name = name
        self.holding: Holding | None = None
        self.limit = self.equal = limit
        self.connections: list[float] = []
        self.pause_s = 0.01
        self.report_at = 0.0
        self.reported_at = -1.0
        self.reports = 0

    def take(self, size: float, now: float) -> float:
        if self.holding is None:
            self.holding = Holding("producer_byte_rate", Holder("u", ""), self.limit, self.equal, now)
            self.holding.on_due = self._soon
            self.report_at = now + 0.05
        self.holding.equal = self.equal
        return self.holding.take(size, now)

    def is_due(self, now: float) -> bool:
        """Return whether `QuotaShares` would report now."""
        assert self.holding is not None
        if now >= self.reported_at + SOON_S and self.holding.is_watched(now) and self.holding.is_due(now):
            self._soon()
        return now >= self.report_at and self.holding.is_reported(now)

    def _soon(self) -> None:
        self.report_at = min(self.report_at, self.reported_at + SOON_S)


class Cluster:
    """Proxies and an allocator; every report takes effect after a delay."""

    def __init__(self, rng: random.Random, count: int, limit: float, size: float) -> None:
        self.rng, self.limit, self.size = rng, limit, size
        self.now = 0.0
        self.shares = ShareAllocator(-CONFIRM_S)
        self.proxies: dict[str, Proxy] = {}
        self.late: list[tuple[float, Proxy, Allotment]] = []
        self.sent: list[float] = []
        """Times at which ``size`` was sent, in order."""
        self.reaches = True
        for _ in range(count):
            self.join()

    def join(self) -> Proxy:
        name = f"p{len(self.proxies)}-{self.now:.0f}-{self.rng.random()}"
        self.proxies[name] = Proxy(name, self.limit)
        self._count()
        return self.proxies[name]

    def leave(self) -> Proxy:
        gone = self.proxies.pop(self.rng.choice(list(self.proxies)))
        self._count()
        return gone

    def _count(self) -> None:
        for proxy in self.proxies.values():
            proxy.equal = self.limit / len(self.proxies)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.005
            for proxy in self.proxies.values():
                for place, ready in enumerate(proxy.connections):
                    if ready <= self.now:
                        self.sent.append(self.now)
                        proxy.connections[place] = self.now + max(proxy.take(self.size, self.now), proxy.pause_s)
                if proxy.holding is not None and self.reaches and proxy.is_due(self.now):
                    self._report(proxy, proxy.holding)
            for at, proxy, given in [each for each in self.late if each[0] <= self.now]:
                assert proxy.holding is not None
                proxy.holding.set_share(given.share, self.now, given.credit)
                self.late.remove((at, proxy, given))

    def _report(self, proxy: Proxy, holding: Holding) -> None:
        rate, was_short = holding.report(self.now)
        asked = [Demand("q", self.limit, rate, holding.allowance.limit, was_short, holding.allowance.credit(self.now))]
        (given,) = self.shares.allot(proxy.name, asked, self.proxies, self.now)
        self.late.append((self.now + self.rng.uniform(0.0, 0.1), proxy, given))
        proxy.reports += 1
        proxy.reported_at, proxy.report_at = self.now, self.now + REPORT_S

    def most(self, since: float = 0.0) -> float:
        """Return the most of any window, by the limit."""
        starts = [since + each * 0.5 for each in range(int((self.now - since - WINDOW_S) * 2) + 1)]
        return max(self._of_window(start) for start in starts)

    def least(self, since: float = 0.0) -> float:
        starts = [since + each * 0.5 for each in range(int((self.now - since - WINDOW_S) * 2) + 1)]
        return min(self._of_window(start) for start in starts)

    def _of_window(self, start: float) -> float:
        sends = bisect_left(self.sent, start + WINDOW_S) - bisect_left(self.sent, start)
        return sends * self.size / (self.limit * WINDOW_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_clusters_rate_is_bounded_while_demand_wanders(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(rng, rng.choice((2, 3, 5)), 10_000_000.0, 50_000.0)
    for _ in range(8):
        proxies = list(cluster.proxies.values())
        for proxy in proxies:
            proxy.connections = []
        for proxy in rng.sample(proxies, rng.randint(1, len(proxies))):
            proxy.connections = [cluster.now + rng.random() / 10 for _ in range(rng.randint(4, 8))]
        cluster.run(rng.uniform(8.0, 15.0))
    assert cluster.most() <= 1.1
    assert cluster.least() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8, 24))
def test_the_rate_is_within_a_tenth_while_all_demand_moves(seed: int) -> None:
    """Every ten seconds all clients leave their proxy for another, so that a window has two moves."""
    rng = random.Random(seed)
    cluster = Cluster(rng, rng.choice((2, 3, 5)), 10_000_000.0, 50_000.0)
    last: Proxy | None = None
    for _ in range(6):
        proxies = list(cluster.proxies.values())
        for proxy in proxies:
            proxy.connections = []
        last = rng.choice([each for each in proxies if each is not last])
        last.connections = [cluster.now + rng.random() / 10 for _ in range(rng.randint(3, 8))]
        cluster.run(10.0)
    assert cluster.most() <= 1.1
    assert cluster.least() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_the_rate_of_two_proxies_is_within_a_tenth_from_below_too(seed: int) -> None:
    """A client wants more than its quota, by many connections of one proxy and by a slow connection of the other."""
    rng = random.Random(seed)
    cluster = Cluster(rng, 2, 10_000_000.0, 50_000.0)
    one, two = cluster.proxies.values()
    one.connections = [rng.random() / 10 for _ in range(rng.randint(3, 8))]
    two.connections = [rng.random() / 10]
    two.pause_s = rng.uniform(0.01, 0.5)
    cluster.run(40.0)
    assert cluster.most() <= 1.1
    assert cluster.least() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 5, 6, 10, 30])
def test_the_rate_is_within_a_tenth_while_demand_moves_beside_slow_clients(seed: int) -> None:
    """A slow client at each proxy needs little, at times: its share may not wander with it."""
    rng = random.Random(seed)
    cluster = Cluster(rng, rng.choice((2, 3, 5)), 10_000_000.0, 50_000.0)
    proxies = list(cluster.proxies.values())
    last: Proxy | None = None
    for _ in range(6):
        for proxy in proxies:
            proxy.connections, proxy.pause_s = [], 0.01
            if proxy is not last and rng.random() < 0.5:
                proxy.connections = [cluster.now + rng.random() / 10]
                proxy.pause_s = rng.uniform(0.1, 0.6)
        last = rng.choice([each for each in proxies if each is not last])
        last.pause_s = 0.01
        last.connections = [cluster.now + rng.random() / 10 for _ in range(rng.randint(4, 8))]
        cluster.run(10.0)
    assert cluster.most() <= 1.1
    assert cluster.least() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(8, 24))
def test_the_clusters_rate_is_within_a_tenth_while_proxies_come_and_go(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(rng, 3, 10_000_000.0, 50_000.0)
    for proxy in cluster.proxies.values():
        proxy.connections = [rng.random() for _ in range(4)]
    for number in range(6):
        cluster.run(6.0)
        if number % 2:
            moved = cluster.leave().connections
            heir = rng.choice(list(cluster.proxies.values()))
            heir.connections += [max(ready, cluster.now) for ready in moved]
        else:
            cluster.join().connections = [cluster.now + rng.random() / 10 for _ in range(3)]
    assert cluster.most() <= 1.1
    assert cluster.least() >= 0.9


def test_shares_stay_while_a_leader_is_followed_by_another() -> None:
    rng = random.Random(7)
    cluster = Cluster(rng, 3, 10_000_000.0, 50_000.0)
    one, two, _ = cluster.proxies.values()
    one.connections = [rng.random() for _ in range(4)]
    two.connections = [rng.random()]
    two.pause_s = 0.05  # a tenth of the limit
    cluster.run(12.0)
    cluster.reaches = False
    cluster.run(4.0)
    cluster.reaches, cluster.shares = True, ShareAllocator(cluster.now)
    cluster.run(12.0)
    assert cluster.most() <= 1.1
    assert cluster.least() >= 0.85
    assert one.holding is not None
    assert one.holding.allowance.limit > 0.7 * cluster.limit


def test_proxies_report_once_a_second_while_nobody_is_short() -> None:
    rng = random.Random(1)
    cluster = Cluster(rng, 3, 10_000_000.0, 50_000.0)
    for proxy in cluster.proxies.values():
        proxy.connections = [rng.random()]
        proxy.pause_s = rng.uniform(0.1, 0.5)
    cluster.run(10.0)  # until shares follow demand
    for proxy in cluster.proxies.values():
        proxy.reports = 0
    cluster.run(30.0)
    assert all(25 <= proxy.reports <= 31 for proxy in cluster.proxies.values())
    for proxy in cluster.proxies.values():
        proxy.connections = []
        proxy.reports = 0
    cluster.run(30.0)
    assert all(proxy.reports <= WINDOW_S + 1 for proxy in cluster.proxies.values())

"""Numbers of quotas that ``/metrics`` shows: how often clients were held up, and the use of the largest users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import nlargest
from operator import attrgetter

from bmq.console.state import Own, OwnMetric, OwnSeries
from bmq.meta.security.client_quotas import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
)
from bmq.proxy.quotas.holdings import Holding
from bmq.proxy.quotas.request_quotas import KINDS, RequestQuotas

SERIES_MAX = 100
"""Most holders of a kind with series of their own: the most recently active holders have them."""
LABELS = ("user", "client_id")
Samples = Sequence[tuple[Sequence[str], float]]
WAIT = "Milliseconds for which the client would wait now"


def quota_metrics(quotas: RequestQuotas, now: float) -> Iterable[Own]:
    """Yield the numbers of a proxy's quotas; the numbers of single holders are of this proxy alone."""
    times = "Times that clients were held up by a quota"
    seconds = "Seconds for which these were told to wait"
    for kind in KINDS:
        throttles = quotas.holdings_of(kind).throttles[kind]
        yield OwnMetric("quota_throttled", times, throttles.times, True, "quota", kind)
    for kind in KINDS:
        throttles = quotas.holdings_of(kind).throttles[kind]
        yield OwnMetric("quota_throttled_seconds", seconds, throttles.seconds, True, "quota", kind)
    if quotas.is_active:
        yield from (each for each in _series(quotas, now) if each.samples)


def _series(quotas: RequestQuotas, now: float) -> Iterable[OwnSeries]:
    """Yield the series of single holders, some of which may have none."""
    shown = {kind: _shown(quotas, kind) for kind in KINDS}

    def rates(kind: str) -> Samples:
        return [(each.holder, each.rate.per_second(now)) for each in shown[kind]]

    def waits_ms(kind: str) -> Samples:
        return [(each.holder, each.wait_s(now) * 1000) for each in shown[kind]]

    seconds = [(each.holder, each.rate.wait_s(each.limit, now) * 1000) for each in shown[REQUEST_PERCENTAGE]]
    produced, fetched = "Bytes a second of produce requests", "Bytes a second of fetch responses"
    worked, mutated = "Percent of a core of the event loop", "Partitions a second that were created and deleted"
    yield OwnSeries("kafka_server_produce_byte_rate", produced, LABELS, rates(PRODUCER_BYTE_RATE))
    yield OwnSeries("kafka_server_produce_throttle_time", WAIT, LABELS, waits_ms(PRODUCER_BYTE_RATE))
    yield OwnSeries("kafka_server_fetch_byte_rate", fetched, LABELS, rates(CONSUMER_BYTE_RATE))
    yield OwnSeries("kafka_server_fetch_throttle_time", WAIT, LABELS, waits_ms(CONSUMER_BYTE_RATE))
    yield OwnSeries("kafka_server_request_request_time", worked, LABELS, rates(REQUEST_PERCENTAGE))
    yield OwnSeries("kafka_server_request_throttle_time", WAIT, LABELS, seconds)
    yield OwnSeries("kafka_server_controllermutation_mutation_rate", mutated, LABELS, rates(CONTROLLER_MUTATION_RATE))
    yield OwnSeries("kafka_server_controllermutation_throttle_time", WAIT, LABELS, waits_ms(CONTROLLER_MUTATION_RATE))


def _shown(quotas: RequestQuotas, kind: str) -> list[Holding]:
    of_kind = (each for each in quotas.holdings_of(kind) if each.kind == kind)
    return nlargest(SERIES_MAX, of_kind, key=attrgetter("used_at"))

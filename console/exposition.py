"""Rendering of ``/metrics``: the process's counters in Prometheus' text format.

The JMX exporter's example rules make the same names of Kafka's MBeans, in lower case, so dashboards for Kafka fit.
Metrics that Kafka does not have begin with ``bmq_``.  Nothing is exported per partition: 10,000 partitions would be
100,000 lines a scrape.  A topic has seven lines, and topics past a bound share one series.  Kafka also has every topic
metric over all topics.  Here this is ``sum()``; it would count a series without the label a second time.

There are two steps: ``take`` copies numbers, on the event loop; ``render`` makes text of the copy, in any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from bmq.console.state import ConsoleState, Gauges, OwnHistogram, OwnMetric, OwnSeries
from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import LATENCY_BOUNDS_MS, OTHER_TOPICS
from bmq.core.version import VERSION
from bmq.core.wire.api_keys import ApiKey

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TOPIC_METRICS = (
    ("messagesin", "messages_in", "Records appended"),
    ("bytesin", "bytes_in", "Bytes of record batches appended"),
    ("bytesout", "bytes_out", "Bytes of record batches sent to consumers"),
    ("totalproducerequests", "produces", "Partitions of produce requests"),
    ("totalfetchrequests", "fetches", "Partitions of fetch requests"),
    ("failedproducerequests", "failed_produces", "Partitions of produce requests answered with an error"),
    ("failedfetchrequests", "failed_fetches", "Partitions of fetch requests answered with an error"),
)
_AUTHENTICATION_METRICS = (
    ("successful_authentication", "Connections of SASL listeners that authenticated"),
    ("successful_authentication_no_reauth", "Those whose client cannot authenticate again (KIP-368)"),
    ("failed_authentication", "Connections of SASL listeners that were closed since they did not authenticate"),
    ("successful_reauthentication", "Sessions that were renewed"),
    ("failed_reauthentication", "Connections that were closed since they did not authenticate again"),
    ("expired_connections_killed_count", "Connections that were closed since their session was over"),
)
_GROUP_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty")
_BOUNDS = [str(float(bound)) for bound in LATENCY_BOUNDS_MS] + ["+Inf"]
_BOUNDS_S = [str(bound / 1000) for bound in LATENCY_BOUNDS_MS] + ["+Inf"]


class _ApiNumbers(NamedTuple):
    name: str
    total_ms: float
    buckets: Sequence[int]
    errors: Sequence[tuple[int, int]]


class _OwnTimes(NamedTuple):
    name: str
    doc: str
    label: str
    series: Sequence[tuple[str, float, Sequence[int]]]
    """The label's value, the sum in milliseconds, and the buckets."""


class Numbers(NamedTuple):
    """Copy of all numbers, taken in one turn of the event loop."""

    topics: Sequence[tuple[str, Sequence[int]]]
    apis: Sequence[_ApiNumbers]
    clients: Sequence[tuple[Metric, float]]
    """Numbers of clients' connections, and of all of their requests together."""
    authentications: Sequence[tuple[tuple[str, str, str], int]]
    """Counts by metric, listener and mechanism."""
    gauges: Gauges
    own: Sequence[OwnMetric]
    own_times: Sequence[_OwnTimes]
    own_series: Sequence[OwnSeries]


def take(state: ConsoleState) -> Numbers:
    """Return a copy of the present numbers.  Takes a few microseconds a topic."""
    requests, port = state.client_requests, state.client_port
    fields = [attribute for _, attribute, _ in _TOPIC_METRICS]
    gauges, own = state.gauges(), (*state.own_metrics(), *state.http_metrics())
    topics = list(requests.topics.items())
    if requests.other_topics is not None:
        topics.append((OTHER_TOPICS, requests.other_topics))
    return Numbers(
        topics=[(name, [getattr(counters, attribute) for attribute in fields]) for name, counters in topics],
        apis=[
            _ApiNumbers(request_name(key), counters.total_ms, tuple(counters.buckets), tuple(counters.errors.items()))
            for key, counters in requests.apis.items()
        ],
        clients=[
            (_gauge("kafka_server_socketservermetrics_connection_count", "Open connections"), port.connections),
            (
                _counter("kafka_server_socketservermetrics_connection_creation", "Connections accepted"),
                port.connections_total,
            ),
            (
                _gauge("bmq_request_bytes_held", "Bytes of requests read and not answered yet"),
                port.request_bytes_held,
            ),
            (
                _gauge("bmq_requests_outliving", "Produces with acks=0 in progress whose connection is closed"),
                port.requests_outliving,
            ),
            (_counter("bmq_connections_refused", "Connections over a limit, closed"), port.connections_refused),
            (
                _counter("bmq_connections_throttled", "Connections over a rate, which waited, or were closed"),
                port.connections_throttled,
            ),
            (
                _counter("bmq_user_connections_refused", "Connections past max_connections of their user, closed"),
                port.user_connections_refused,
            ),
            (_counter("bmq_connections_idle_closed", "Idle connections closed"), port.connections_idle_closed),
            (
                _counter("bmq_connections_stuck_closed", "Connections closed since others had to wait for them"),
                port.connections_stuck_closed,
            ),
            (
                _counter("bmq_connections_malformed", "Connections closed for bytes that are not a Kafka request"),
                port.connections_malformed,
            ),
            (
                _counter("bmq_tls_handshakes_failed", "Connections closed since their TLS handshake failed"),
                port.tls_handshakes_failed,
            ),
            (_counter("bmq_fetch_tail_bytes", "Bytes fetched from the tail cache"), requests.tail_hit_bytes),
            (_counter("bmq_fetch_storage_bytes", "Bytes fetched from storage"), requests.storage_read_bytes),
        ],
        authentications=list(port.authentications.items()),
        gauges=Gauges(
            partitions_by_state=dict(gauges.partitions_by_state),
            groups_by_state=None if gauges.groups_by_state is None else dict(gauges.groups_by_state),
            topics=gauges.topics,
            partitions=gauges.partitions,
            log_bytes_by_topic=dict(gauges.log_bytes_by_topic),
        ),
        own=[each for each in own if isinstance(each, OwnMetric)],
        own_times=[
            _OwnTimes(
                each.name,
                each.doc,
                each.label,
                [(value, times.total_ms, tuple(times.buckets)) for value, times in each.series.items()],
            )
            for each in own
            if isinstance(each, OwnHistogram)
        ],
        own_series=[each for each in own if isinstance(each, OwnSeries)],
    )


def render(numbers: Numbers) -> bytes:
    """Return the text, with this process's CPU seconds, memory and open files at the end."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(numbers))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def request_name(key: int) -> str:
    """Return Kafka's name of an API, as in ``request="ListOffsets"``; the number of an unknown one."""
    try:
        return ApiKey(key).name.title().replace("_", "")
    except ValueError:
        return str(key)


class _Families(Collector):
    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the registry is made for one scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        numbers = self._numbers
        build = _gauge("bmq_build_info", "1, with the version of this software", "version")
        build.add_metric([VERSION], 1)
        yield build
        yield from _topic_families(numbers.topics)
        yield from _api_families(numbers.apis)
        for family, value in numbers.clients:
            yield _with(family, value)
        yield from _authentication_families(numbers.authentications)
        yield from _partition_families(numbers.gauges)
        if numbers.gauges.groups_by_state is not None:
            yield from _group_families(numbers.gauges.groups_by_state)
        yield from _own_families(numbers.own)
        yield from map(_own_histogram, numbers.own_times)
        yield from map(_own_series, numbers.own_series)


def own_name(name: str) -> str:
    """Return the metric's full name: with ``bmq_``, unless it begins with ``kafka_``."""
    return name if name.startswith("kafka_") else f"bmq_{name}"


def _own_families(metrics: Sequence[OwnMetric]) -> Iterator[Metric]:
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for own in metrics:
        family = families.get(own.name)
        if family is None:
            make = _counter if own.is_counter else _gauge
            family = families[own.name] = make(own_name(own.name), own.doc, *([own.label] if own.label else []))
        family.add_metric([own.label_value] if own.label else [], own.value)
    yield from families.values()


def _own_histogram(times: _OwnTimes) -> Metric:
    family = HistogramMetricFamily(own_name(times.name), times.doc, labels=[times.label] if times.label else [])
    for value, total_ms, buckets in times.series:
        cumulative = list(zip(_BOUNDS_S, map(float, accumulate(buckets)), strict=True))
        family.add_metric([value] if times.label else [], cumulative, total_ms / 1000)
    return family


def _own_series(series: OwnSeries) -> Metric:
    family = _gauge(own_name(series.name), series.doc, *series.labels)
    for values, value in series.samples:
        family.add_metric(values, value)
    return family


def _topic_families(topics: Sequence[tuple[str, Sequence[int]]]) -> Iterator[Metric]:
    for position, (name, _, doc) in enumerate(_TOPIC_METRICS):
        family = _counter(f"kafka_server_brokertopicmetrics_{name}", doc, "topic")
        for topic, values in topics:
            family.add_metric([topic], values[position])
        yield family


def _api_families(apis: Sequence[_ApiNumbers]) -> Iterator[Metric]:
    requests = _counter("kafka_network_requestmetrics_requests", "Requests answered", "request")
    errors = _counter(
        "kafka_network_requestmetrics_errors",
        "Error codes answered, of requests and of their elements",
        "request",
        "error",
    )
    times = HistogramMetricFamily(
        "kafka_network_requestmetrics_totaltimems",
        "Milliseconds from a request's arrival to its answer",
        labels=["request"],
    )
    for name, total_ms, buckets, by_code in apis:
        cumulative = list(accumulate(buckets))
        requests.add_metric([name], cumulative[-1])
        times.add_metric([name], list(zip(_BOUNDS, map(float, cumulative), strict=True)), total_ms)
        for code, count in by_code:
            errors.add_metric([name, error_name(code)], count)
    yield from (requests, errors, times)


def _authentication_families(counts: Sequence[tuple[tuple[str, str, str], int]]) -> Iterator[Metric]:
    """Yield the outcomes of authentication; nothing without a SASL listener."""
    if not counts:
        return
    for name, doc in _AUTHENTICATION_METRICS:
        family = _counter(f"kafka_server_socketservermetrics_{name}", doc, "listener", "mechanism")
        for (outcome, listener, mechanism), count in counts:
            if outcome == name:
                family.add_metric([listener, mechanism], count)
        yield family


def error_name(code: int) -> str:
    """Return Kafka's name of an error code; the number of an unknown one."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _partition_families(gauges: Gauges) -> Iterator[Metric]:
    by_state = {state.upper(): count for state, count in gauges.partitions_by_state.items()}
    offline = by_state.get("OFFLINE", 0)
    for name, doc, value in (
        ("kafka_server_replicamanager_partitioncount", "Partitions owned here", sum(by_state.values())),
        ("kafka_server_replicamanager_leadercount", "Partitions owned here that serve", by_state.get("WRITE", 0)),
        (
            "kafka_server_replicamanager_offlinereplicacount",
            "Partitions owned here that are OFFLINE",
            offline,
        ),
        ("kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster", gauges.topics),
        ("kafka_controller_kafkacontroller_globalpartitioncount", "Partitions of the cluster", gauges.partitions),
        (
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions that are OFFLINE",
            offline,
        ),
    ):
        yield _with(_gauge(name, doc), value)
    states = _gauge("bmq_partitions", "Partitions owned here, by the state of their owner", "state")
    for state, count in sorted(by_state.items()):
        states.add_metric([state.lower()], count)
    yield states
    sizes = _gauge("kafka_log_log_size", "Bytes on storage", "topic")
    for topic, size in gauges.log_bytes_by_topic.items():
        sizes.add_metric([topic], size)
    yield sizes


def _group_families(by_state: Mapping[str, int]) -> Iterator[Metric]:
    """Yield one metric for each state, with the state in the metric's name, as in Kafka."""
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    yield _with(_gauge(prefix, "Groups"), sum(by_state.values()))
    counts = {state.lower(): count for state, count in by_state.items()}
    for state in _GROUP_STATES:
        yield _with(_gauge(prefix + state.lower(), f"Groups in {state}"), counts.get(state.lower(), 0))


def _gauge(name: str, doc: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, doc, labels=labels)


def _counter(name: str, doc: str, *labels: str) -> CounterMetricFamily:
    """Return a counter, whose samples are named ``<name>_total``."""
    return CounterMetricFamily(name, doc, labels=labels)


def _with(family: Metric, value: float) -> Metric:
    """Add the only sample of a metric without labels, and return the metric."""
    assert isinstance(family, GaugeMetricFamily | CounterMetricFamily)
    family.add_metric([], value)
    return family

"""Counters of the hot path: plain numbers, read at a scrape.  Metric names are given where they are shown.

======================= ============================= ========================================================
counters                one for each                  of
======================= ============================= ========================================================
``RequestCounters``     kind of caller                requests, by topic and by API
``PortCounters``        port                          connections, log-ins, bytes of requests
``ProcessCounters``     process                       events of all ports and callers together
======================= ============================= ========================================================

Bounded: topics' counters are removed with their topics, and topics past ``topics_max`` share one; APIs are few.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from bmq.core.metrics.traffic import TrafficMeter

LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)
OTHER_TOPICS = "(other)"
"""Label shared by the topics past a bound; no topic can have this name."""
TOPICS_MAX = 1_000
"""Topics with counters of their own.  Each costs seven series of a scrape."""


class Histogram:
    """Durations in milliseconds: how many up to each of ``LATENCY_BOUNDS_MS``, and their sum."""

    __slots__ = ("buckets", "total_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.total_ms = 0.0

    def __repr__(self) -> str:
        return f"<Histogram {sum(self.buckets)} in {self.total_ms:.3f} ms>"

    def observe(self, ms: float) -> None:
        """Count one duration."""
        self.total_ms += ms
        self.buckets[bisect_left(LATENCY_BOUNDS_MS, ms)] += 1


class TopicCounters:
    """Kafka's BrokerTopicMetrics of one topic, as totals."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "failed_fetches",
        "failed_produces",
        "fetches",
        "messages_in",
        "produces",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.produces = 0  # partitions of produce requests, as Kafka counts them
        self.fetches = 0
        self.failed_produces = 0
        self.failed_fetches = 0


class ApiCounters:
    """Kafka's RequestMetrics of one API: how many requests, and how long from a frame's arrival to its response."""

    __slots__ = ("buckets", "count", "errors", "total_ms")

    def __init__(self) -> None:
        self.count = 0
        self.total_ms = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.errors: dict[int, int] = {}  # by error code

    def answered(self, ms: float) -> None:
        """Count a request that took ``ms`` milliseconds."""
        self.count += 1
        self.total_ms += ms
        self.buckets[bisect_left(LATENCY_BOUNDS_MS, ms)] += 1

    def failed(self, code: int) -> None:
        """Count an error code in a response."""
        self.errors[code] = self.errors.get(code, 0) + 1


class RequestCounters:
    """Counters of one kind of caller's requests, through all listeners."""

    __slots__ = (
        "apis",
        "other_topics",
        "storage_read_bytes",
        "tail_hit_bytes",
        "topics",
        "topics_max",
        "traffic",
    )

    def __init__(self, topics_max: int = TOPICS_MAX, traffic: TrafficMeter | None = None) -> None:
        """``traffic`` counts what clients move by partition; None counts nothing."""
        self.traffic = traffic
        self.topics_max = topics_max
        self.topics: dict[str, TopicCounters] = {}
        self.other_topics: TopicCounters | None = None
        """Counters of all topics that were first used while ``topics_max`` others had counters of their own."""
        self.apis: dict[int, ApiCounters] = {}
        self.tail_hit_bytes = 0
        """Bytes of records fetched from the tail cache."""
        self.storage_read_bytes = 0
        """Bytes of records fetched from storage."""

    def topic(self, name: str) -> TopicCounters:
        """Return the topic's counters, or those that topics past ``topics_max`` share."""
        counters = self.topics.get(name)
        if counters is None:
            if len(self.topics) >= self.topics_max:
                return self._others()
            counters = self.topics[name] = TopicCounters()
        return counters

    def _others(self) -> TopicCounters:
        if self.other_topics is None:
            self.other_topics = TopicCounters()
        return self.other_topics

    def forget(self, topic: str) -> None:
        """Remove the counters of a topic that is gone."""
        self.topics.pop(topic, None)

    def api(self, key: int) -> ApiCounters:
        """Return the counters of the API ``key``."""
        counters = self.apis.get(key)
        if counters is None:
            counters = self.apis[key] = ApiCounters()
        return counters


class UnreadCounters(RequestCounters):
    """Counters that nobody reads: of the requests of the console, of the process itself, and of other processes.

    The numbers of all topics are added up in one place, and so are the numbers of all APIs, so nothing here grows.
    """

    __slots__ = ("_api", "_topic")

    def __init__(self) -> None:
        super().__init__()
        self._topic = TopicCounters()
        self._api = ApiCounters()

    def topic(self, name: str) -> TopicCounters:
        """Return the counters that all topics share."""
        return self._topic

    def api(self, key: int) -> ApiCounters:
        """Return the counters that all APIs share."""
        return self._api


@dataclass(slots=True, eq=False)
class PortCounters:
    """Counters of one port: connections, log-ins, and bytes of requests.  All listeners for clients are one port."""

    connections: int = 0
    """Open connections."""
    connections_total: int = 0
    """Connections accepted so far."""
    connections_refused: int = 0
    connections_throttled: int = 0
    user_connections_refused: int = 0
    connections_idle_closed: int = 0
    connections_stuck_closed: int = 0
    connections_malformed: int = 0
    tls_handshakes_failed: int = 0
    request_bytes_held: int = 0
    """Bytes of requests that were read and have no response yet."""
    requests_outliving: int = 0
    """Requests without a response that are in progress, and whose connection is closed."""
    authentications: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Outcomes of authentication on SASL listeners, by the metric's name, listener and mechanism."""

    def count_authentication(self, outcome: str, listener: str, mechanism: str) -> None:
        """Count an outcome of authentication.  ``mechanism`` is one that the listener enables, or ""."""
        key = (outcome, listener, mechanism)
        self.authentications[key] = self.authentications.get(key, 0) + 1


@dataclass(slots=True, eq=False)
class ProcessCounters:
    """Counters of the process as a whole."""

    clients_given_up: int = 0
    """Times that all connections were closed, as this process stood still or lost its membership."""

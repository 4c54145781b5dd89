"""/metrics: Kafka's names, right numbers, no line per partition."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.metadata import version

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bmq.console.exposition import error_name, render, request_name, take
from bmq.console.state import ConsoleState, Gauges, Own, OwnHistogram, OwnMetric, OwnSeries
from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import (
    LATENCY_BOUNDS_MS,
    OTHER_TOPICS,
    Histogram,
    PortCounters,
    RequestCounters,
    TopicCounters,
)
from bmq.core.wire.api_keys import ApiKey
from bmq.storage.layout import is_topic_name
from tests.unit.console.states import state

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(console: ConsoleState) -> Samples:
    """Name and labels to value, as Prometheus reads the text."""
    samples: Samples = {}
    for family in text_string_to_metric_families(render(take(console)).decode()):
        for sample in family.samples:
            name = (sample.name, tuple(sorted(sample.labels.items())))
            assert name not in samples, f"{name} twice"
            samples[name] = sample.value
    return samples


def value(samples: Samples, metric: str, **labels: str) -> float:
    return samples[metric, tuple(sorted(labels.items()))]


def test_topic_counters_under_kafkas_names() -> None:
    metrics = RequestCounters()
    orders = metrics.topic("orders")
    orders.messages_in, orders.bytes_in, orders.bytes_out = 10, 1000, 500
    orders.produces, orders.fetches, orders.failed_produces, orders.failed_fetches = 4, 3, 2, 1
    metrics.topic('odd"name').messages_in = 5
    samples = scrape(state(metrics))
    prefix = "kafka_server_brokertopicmetrics_"
    assert value(samples, prefix + "messagesin_total", topic="orders") == 10
    assert value(samples, prefix + "messagesin_total", topic='odd"name') == 5
    assert value(samples, prefix + "bytesin_total", topic="orders") == 1000
    assert value(samples, prefix + "bytesout_total", topic="orders") == 500
    assert value(samples, prefix + "totalproducerequests_total", topic="orders") == 4
    assert value(samples, prefix + "totalfetchrequests_total", topic="orders") == 3
    assert value(samples, prefix + "failedproducerequests_total", topic="orders") == 2
    assert value(samples, prefix + "failedfetchrequests_total", topic="orders") == 1


def test_request_counters_errors_and_times() -> None:
    metrics = RequestCounters()
    produce = metrics.api(ApiKey.PRODUCE)
    for ms in (0.5, 1.0, 1.5, 40_000.0):
        produce.answered(ms)
    produce.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    produce.failed(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    samples = scrape(state(metrics))
    prefix = "kafka_network_requestmetrics_"
    assert value(samples, prefix + "requests_total", request="Produce") == 4
    assert value(samples, prefix + "errors_total", request="Produce", error="NOT_LEADER_OR_FOLLOWER") == 2
    times = prefix + "totaltimems"
    assert value(samples, times + "_bucket", request="Produce", le="1.0") == 2
    assert value(samples, times + "_bucket", request="Produce", le="2.0") == 3
    assert value(samples, times + "_bucket", request="Produce", le=str(float(LATENCY_BOUNDS_MS[-1]))) == 3
    assert value(samples, times + "_bucket", request="Produce", le="+Inf") == 4
    assert value(samples, times + "_count", request="Produce") == 4
    assert value(samples, times + "_sum", request="Produce") == 40_003.0


def test_partitions_groups_and_sizes_are_aggregates() -> None:
    gauges = Gauges(
        partitions_by_state={"WRITE": 5, "RECOVER": 2, "OFFLINE": 1},
        groups_by_state={"Stable": 3, "Empty": 1},
        topics=4,
        partitions=9,
        log_bytes_by_topic={"orders": 1 << 30},
    )
    samples = scrape(state(gauges=gauges))
    assert value(samples, "kafka_server_replicamanager_partitioncount") == 8
    assert value(samples, "kafka_server_replicamanager_leadercount") == 5
    assert value(samples, "kafka_server_replicamanager_offlinereplicacount") == 1
    assert value(samples, "kafka_controller_kafkacontroller_globaltopiccount") == 4
    assert value(samples, "kafka_controller_kafkacontroller_globalpartitioncount") == 9
    assert value(samples, "bmq_partitions", state="recover") == 2
    assert value(samples, "kafka_coordinator_group_groupmetadatamanager_numgroups") == 4
    assert value(samples, "kafka_coordinator_group_groupmetadatamanager_numgroupsstable") == 3
    assert value(samples, "kafka_coordinator_group_groupmetadatamanager_numgroupsdead") == 0
    assert value(samples, "kafka_log_log_size", topic="orders") == 1 << 30


def test_a_process_that_coordinates_no_groups_counts_none() -> None:
    prefix = "kafka_coordinator_group_groupmetadatamanager_numgroups"
    assert (prefix, ()) not in scrape(state(gauges=Gauges(groups_by_state=None)))
    assert value(scrape(state(gauges=Gauges(groups_by_state={}))), prefix) == 0


def test_the_version_is_a_label() -> None:
    assert value(scrape(state()), "bmq_build_info", version=version("bmq")) == 1


def test_connections_and_ours() -> None:
    metrics, port = RequestCounters(), PortCounters()
    port.connections, port.connections_total, port.connections_refused, metrics.tail_hit_bytes = 3, 8, 1, 99
    own = [OwnMetric("cache_bytes", "Bytes cached", 42), OwnMetric("flushes", "Flushes", 7, is_counter=True)]
    samples = scrape(replace(state(metrics, port=port), own_metrics=lambda: own))
    assert value(samples, "kafka_server_socketservermetrics_connection_count") == 3
    assert value(samples, "kafka_server_socketservermetrics_connection_creation_total") == 8
    assert value(samples, "bmq_connections_refused_total") == 1
    assert value(samples, "bmq_fetch_tail_bytes_total") == 99
    assert value(samples, "bmq_cache_bytes") == 42
    assert value(samples, "bmq_flushes_total") == 7
    assert value(samples, "process_resident_memory_bytes") > 0
    assert value(samples, "process_open_fds") > 0


SHOWN_AS = {
    "connections": "kafka_server_socketservermetrics_connection_count",
    "connections_total": "kafka_server_socketservermetrics_connection_creation_total",
    "connections_refused": "bmq_connections_refused_total",
    "connections_throttled": "bmq_connections_throttled_total",
    "user_connections_refused": "bmq_user_connections_refused_total",
    "connections_idle_closed": "bmq_connections_idle_closed_total",
    "connections_stuck_closed": "bmq_connections_stuck_closed_total",
    "connections_malformed": "bmq_connections_malformed_total",
    "tls_handshakes_failed": "bmq_tls_handshakes_failed_total",
    "request_bytes_held": "bmq_request_bytes_held",
    "requests_outliving": "bmq_requests_outliving",
    "tail_hit_bytes": "bmq_fetch_tail_bytes_total",
    "storage_read_bytes": "bmq_fetch_storage_bytes_total",
}
"""Metrics by the counters of a port and of all requests together."""
SHOWN_BY_TOPIC = {
    "messages_in": "messagesin", "bytes_in": "bytesin", "bytes_out": "bytesout", "produces": "totalproducerequests",
    "fetches": "totalfetchrequests", "failed_produces": "failedproducerequests",
    "failed_fetches": "failedfetchrequests",
}  # fmt: skip


def test_each_counter_of_clients_is_shown() -> None:
    """A new counter is shown, or is in the process's own metrics; a counter that is shown nowhere is not kept."""
    metrics, port = RequestCounters(), PortCounters()
    by_topic_and_api, settings = {"topics", "other_topics", "apis"}, {"topics_max", "traffic"}
    counters = set(RequestCounters.__slots__) - by_topic_and_api - settings
    assert counters | {each.name for each in fields(port)} == SHOWN_AS.keys() | {"authentications"}
    for number, name in enumerate(SHOWN_AS, 1):
        setattr(metrics if name in counters else port, name, number)
    port.count_authentication("failed_authentication", "OUT", "PLAIN")
    assert set(TopicCounters.__slots__) == SHOWN_BY_TOPIC.keys()
    for number, name in enumerate(SHOWN_BY_TOPIC, 100):
        setattr(metrics.topic("orders"), name, number)
    samples = scrape(state(metrics, port=port))
    for number, name in enumerate(SHOWN_AS.values(), 1):
        assert value(samples, name) == number
    failed = "kafka_server_socketservermetrics_failed_authentication_total"
    assert value(samples, failed, listener="OUT", mechanism="PLAIN") == 1
    for number, name in enumerate(SHOWN_BY_TOPIC.values(), 100):
        assert value(samples, f"kafka_server_brokertopicmetrics_{name}_total", topic="orders") == number


def test_lines_do_not_grow_with_partitions() -> None:
    few = render(take(state(gauges=Gauges(partitions_by_state={"WRITE": 1}, partitions=1))))
    many = render(take(state(gauges=Gauges(partitions_by_state={"WRITE": 10_000}, partitions=10_000))))
    assert few.count(b"\n") == many.count(b"\n")


def test_what_was_taken_does_not_change_with_the_counters() -> None:
    """Rendering runs in a thread while the loop goes on counting and topics come and go."""
    metrics = RequestCounters()
    metrics.topic("orders").messages_in = 1
    metrics.api(ApiKey.FETCH).answered(3.0)
    states = {"WRITE": 1}
    numbers = take(state(metrics, Gauges(partitions_by_state=states)))
    metrics.topic("orders").messages_in = 100
    metrics.api(ApiKey.FETCH).answered(3.0)
    metrics.topic("another")
    states["WRITE"] = 100
    text = render(numbers).decode()
    assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="orders"} 1.0' in text
    assert 'kafka_network_requestmetrics_requests_total{request="Fetch"} 1.0' in text
    assert "kafka_server_replicamanager_partitioncount 1.0" in text
    assert "another" not in text


def test_names_of_requests_and_errors() -> None:
    assert request_name(ApiKey.LIST_OFFSETS) == "ListOffsets"
    assert request_name(ApiKey.OFFSET_FOR_LEADER_EPOCH) == "OffsetForLeaderEpoch"
    assert request_name(ApiKey.INIT_PRODUCER_ID) == "InitProducerId"
    assert request_name(12_345) == "12345"
    assert error_name(0) == "NONE"
    assert error_name(9_999) == "9999"


def test_topics_past_the_bound_share_a_series_and_none_is_lost() -> None:
    metrics = RequestCounters(topics_max=2)
    for number in range(100):
        metrics.topic(f"t{number}").messages_in += 1
    assert len(metrics.topics) == 2
    samples = scrape(state(metrics))
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    by_topic = {labels: count for (sample, labels), count in samples.items() if sample == name}
    assert len(by_topic) == 3
    assert sum(by_topic.values()) == 100
    assert value(samples, name, topic=OTHER_TOPICS) == 98
    metrics.topics.pop("t0")  # deleted
    metrics.topic("another").messages_in += 5
    assert value(scrape(state(metrics)), name, topic="another") == 5


def test_no_topic_can_be_named_as_those_that_share_a_series() -> None:
    assert not is_topic_name(OTHER_TOPICS)


def test_own_histograms_in_seconds_and_own_metrics_with_labels() -> None:
    flush = Histogram()
    for ms in (1.0, 3.0, 60_000.0):
        flush.observe(ms)
    own: list[Own] = [
        OwnSeries("kafka_consumergroup_lag_sum", "Lag", ("consumergroup", "topic"), [(('g"1', "orders"), 7)]),
        OwnHistogram("produce_stage_seconds", "Stages", {"flush": flush, "queue": Histogram()}, "stage"),
        OwnHistogram("loop_delay_seconds", "Delay", {"": flush}),
        OwnMetric("moves", "Moves", 2, True, "why", "dead"),
        OwnMetric("moves", "Moves", 3, True, "why", "drain"),
        OwnMetric("kafka_controller_kafkacontroller_activecontrollercount", "Leads", 1),
    ]
    numbers = take(replace(state(), own_metrics=lambda: own))
    flush.observe(1.0)  # after the copy
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(numbers).decode())
        for sample in family.samples
    }
    stage = "bmq_produce_stage_seconds"
    assert value(samples, f"{stage}_bucket", stage="flush", le="0.001") == 1
    assert value(samples, f"{stage}_bucket", stage="flush", le="0.005") == 2
    assert value(samples, f"{stage}_bucket", stage="flush", le="+Inf") == 3
    assert value(samples, f"{stage}_count", stage="queue") == 0
    assert value(samples, f"{stage}_sum", stage="flush") == pytest.approx(60.004)
    assert value(samples, "bmq_loop_delay_seconds_count") == 3
    assert value(samples, "kafka_consumergroup_lag_sum", consumergroup='g"1', topic="orders") == 7
    assert value(samples, "bmq_moves_total", why="dead") == 2
    assert value(samples, "bmq_moves_total", why="drain") == 3
    assert value(samples, "kafka_controller_kafkacontroller_activecontrollercount") == 1

"""The chart's Grafana dashboards: what they show is said here, and `tests.chart.drawn` writes their JSON.

In an expression `$S` stands for the matchers of the cluster that is looked at, `$R` for the interval of a rate.
Metrics are those of docs/metrics.md, without recording rules: a dashboard works where the rules are not installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLUSTER = 'namespace="$namespace",app_kubernetes_io_instance="$cluster"'
RATE = "$__rate_interval"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _PER_ROW = 8, 8, 3


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and how its series are called."""

    expr: str
    legend: str

    @property
    def written(self) -> str:
        return self.expr.replace("$S", CLUSTER).replace("$R", RATE)


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph over time."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    """Unit, by Grafana's name of it."""
    description: str = ""
    most: float | None = None
    """Upper end of the axis."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the head of a dashboard: the values of one label of one metric."""

    name: str
    metric: str
    label: str
    is_multi: bool = False

    @property
    def written(self) -> str:
        return f"label_values({self.metric.replace('$S', CLUSTER)}, {self.label})"


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Panels in order, three a row."""

    name: str
    title: str
    panels: Sequence[Panel]
    variables: Sequence[Variable] = ()


def quantiles(metric: str, by: str, legend: str, selector: str = "$S") -> list[Query]:
    """Return the median and the 99th percentile of a histogram, by a label."""
    return [
        Query(
            f"histogram_quantile({q}, sum by ({by}, le) (rate({metric}_bucket{{{selector}}}[$R])))", f"{legend} {name}"
        )
        for q, name in ((0.5, "p50"), (0.99, "p99"))
    ]


def total(name: str, legend: str) -> Query:
    """Return a gauge, summed over the cluster."""
    return Query(f"sum({name}{{$S}})", legend)


def by_pod(name: str) -> Query:
    """Return a gauge of each process."""
    return Query(f"sum by (pod) ({name}{{$S}})", "{{pod}}")


def speed(name: str, legend: str, by: str = "") -> Query:
    """Return a counter's rate, summed over the cluster or by a label."""
    return Query(f"sum{f' by ({by})' if by else ''} (rate({name}{{$S}}[$R]))", legend)


_TOPIC = '$S,topic=~"$topic"'
_GROUP = '$S,consumergroup=~"$group"'


def topic_speed(name: str) -> Query:
    return Query(f"sum by (topic) (rate(kafka_server_brokertopicmetrics_{name}_total{{{_TOPIC}}}[$R]))", "{{topic}}")


OVERVIEW = Dashboard(
    "overview",
    "BMQ: overview",
    [
        Panel("Leaders", [total("bmq_is_leader", "leading controllers")],
              description="Not 1 for long: nothing moves, no admin acts."),
        Panel("Members", [Query("max(bmq_cluster_members{$S})", "members")]),
        Panel("OFFLINE partitions", [total("kafka_server_replicamanager_offlinereplicacount", "OFFLINE")],
              description="docs/operations.md, A partition that is OFFLINE"),
        Panel("Records in", [speed("kafka_server_brokertopicmetrics_messagesin_total", "records")], "cps"),
        Panel("Bytes", [speed("kafka_server_brokertopicmetrics_bytesin_total", "in"),
                        speed("kafka_server_brokertopicmetrics_bytesout_total", "out")], "Bps"),
        Panel("Requests", [speed("kafka_network_requestmetrics_requests_total", "{{request}}", "request")], "reqps"),
        Panel("Produce latency", quantiles("kafka_network_requestmetrics_totaltimems", "request", "{{request}}",
                                           '$S,request="Produce"'), "ms"),
        Panel("Request errors", [speed("kafka_network_requestmetrics_errors_total", "{{request}} {{error}}",
                                       "request, error")], "reqps"),
        Panel("Lag of groups", [total("kafka_consumergroup_lag_sum", "records")]),
        Panel("Partitions", [
            Query("sum by (pod) (bmq_assigned_partitions{$S})", "assigned {{pod}}"),
            Query('sum by (pod) (bmq_partitions{$S,state="write"})', "writing {{pod}}")]),
        Panel("Partitions that refuse or wait", [
            total("bmq_partitions_without_owner", "without an owner"),
            total("bmq_partitions_not_served", "not served"),
            total("bmq_under_min_isr", "under min.insync.replicas"),
            total("kafka_server_replicamanager_underreplicatedpartitions", "with fewer copies than asked"),
            total("bmq_waiting_for_place", "waiting for an open file"),
            total("bmq_waiting_for_store", "waiting for the metadata store"),
            total("bmq_produces_kept", "produces kept")]),
        Panel("Groups not served, keys not used", [
            total("bmq_shards_without_owner", "shards without an owner"),
            Query("sum by (reason) (bmq_shards_not_loaded{$S})", "shards not loaded: {{reason}}"),
            total("bmq_quarantined", "quarantined")]),
        Panel("Moves", [Query("sum by (why) (increase(bmq_moves_total{$S}[$R]))", "{{why}}"),
                        total("bmq_moves_pending", "under way")]),
        Panel("Members declared dead", [
            Query("sum by (cause) (increase(bmq_members_declared_dead_total{$S}[$R]))", "{{cause}}")]),
        Panel("Alarms", [Query("sum by (pod) (increase(bmq_alarms_total{$S}[$R]))", "{{pod}}")],
              description="The log has the text."),
    ],
)  # fmt: skip

TOPICS = Dashboard(
    "topics",
    "BMQ: topics",
    [
        Panel("Records in", [topic_speed("messagesin")], "cps"),
        Panel("Bytes in", [topic_speed("bytesin")], "Bps"),
        Panel("Bytes out", [topic_speed("bytesout")], "Bps"),
        Panel("Produces, by partition", [topic_speed("totalproducerequests")], "reqps"),
        Panel("Fetches, by partition", [topic_speed("totalfetchrequests")], "reqps"),
        Panel("Failed", [
            Query(f"sum by (topic) (rate(kafka_server_brokertopicmetrics_failedproducerequests_total{{{_TOPIC}}}[$R]))",
                  "{{topic}} produce"),
            Query(f"sum by (topic) (rate(kafka_server_brokertopicmetrics_failedfetchrequests_total{{{_TOPIC}}}[$R]))",
                  "{{topic}} fetch")], "reqps"),
        Panel("Bytes on storage, one copy", [Query(f"sum by (topic) (kafka_log_log_size{{{_TOPIC}}})", "{{topic}}")],
              "bytes"),
        Panel("Topics and partitions", [
            Query("max(kafka_controller_kafkacontroller_globaltopiccount{$S})", "topics"),
            Query("max(kafka_controller_kafkacontroller_globalpartitioncount{$S})", "partitions")]),
        Panel("Deleted topics on storage", [total("bmq_deleted_topics", "to be removed"),
                                            total("bmq_deleted_topics_failing", "cannot be removed")]),
    ],
    [Variable("topic", "kafka_server_brokertopicmetrics_messagesin_total{$S}", "topic", is_multi=True)],
)  # fmt: skip

GROUPS = Dashboard(
    "groups",
    "BMQ: consumer groups",
    [
        Panel("Lag", [Query(f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_GROUP}}})",
                            "{{consumergroup}} {{topic}}")], description="Records."),
        Panel("Lag in time", [Query(
            f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_GROUP}}}) / on (topic) group_left ()"
            " (sum by (topic) (rate(kafka_server_brokertopicmetrics_messagesin_total{$S}[$R])) > 0)",
            "{{consumergroup}} {{topic}}")], "s",
            "The lag in records, by the rate at which records come: so long ago they were written, if that has been the"
            " rate. Nothing where nothing is written."),
        Panel("Lag of groups that stand still", [Query(
            f"sum by (consumergroup, topic) (kafka_consumergroup_lag_sum{{{_GROUP}}}) * on (consumergroup, topic)"
            f" (max by (consumergroup, topic) (max_over_time(kafka_consumergroup_current_offset_sum{{{_GROUP}}}[30m]))"
            " == bool min by (consumergroup, topic)"
            f" (min_over_time(kafka_consumergroup_current_offset_sum{{{_GROUP}}}[30m])))",
            "{{consumergroup}} {{topic}}")],
            description="Records of groups whose committed offsets have not changed for half an hour, else 0. It needs"
                        " no producers."),
        Panel("Consumed", [Query(
            "sum by (consumergroup, topic)"
            f" (clamp_min(deriv(kafka_consumergroup_current_offset_sum{{{_GROUP}}}[$R]), 0))",
            "{{consumergroup}} {{topic}}")], "cps"),
        Panel("Partitions that lag most", [Query(
            f"topk(10, sum by (consumergroup, topic, partition) (kafka_consumergroup_lag{{{_GROUP}}}))",
            "{{consumergroup}} {{topic}}-{{partition}}")]),
        Panel("Groups by state", [
            total(f"kafka_coordinator_group_groupmetadatamanager_numgroups{state}", state)
            for state in ("stable", "empty", "preparingrebalance", "completingrebalance", "dead")]),
        Panel("Shards not loaded", [Query("sum by (reason) (bmq_shards_not_loaded{$S})", "{{reason}}")],
              description="Their groups are not served; bmq cluster status names them."),
        Panel("Requests of groups", [Query(
            'sum by (request) (rate(kafka_network_requestmetrics_requests_total{$S,request=~'
            '"JoinGroup|SyncGroup|Heartbeat|OffsetCommit|OffsetFetch|LeaveGroup"}[$R]))', "{{request}}")], "reqps"),
        Panel("Latency of commits", quantiles("kafka_network_requestmetrics_totaltimems", "request", "{{request}}",
                                              '$S,request="OffsetCommit"'), "ms"),
        Panel("Partitions of unknown lag", [total("bmq_group_lag_unknown", "partitions")]),
    ],
    [Variable("group", "kafka_consumergroup_lag_sum{$S}", "consumergroup", is_multi=True)],
)  # fmt: skip

TRANSACTIONS = Dashboard(
    "transactions",
    "BMQ: transactions",
    [
        Panel("Open transactional ids, by state", [Query(
            'sum by (state) (bmq_transactions{$S,state=~"Ongoing|PrepareCommit|PrepareAbort"})', "{{state}}")],
            description="In the Prepare states the end is decided, and markers are on their way: for milliseconds, if"
                        " all partitions are served."),
        Panel("Other transactional ids, by state", [Query(
            'sum by (state) (bmq_transactions{$S,state=~"Empty|CompleteCommit|CompleteAbort"})', "{{state}}")],
            description="Ids without an open transaction, kept for transactional.id.expiration.ms."),
        Panel("Oldest open transaction", [Query("max(bmq_oldest_transaction_age_seconds{$S})", "oldest")], "s",
              "Readers of committed records wait for it. Past its producer's time-out the coordinator aborts it."),
        Panel("Waiting for verification", [
            total("bmq_unverified_batches", "batches"), total("bmq_unverified_offset_commits", "offset commits")],
            description="Until the coordinator says that the partition is in the transaction: above 0 for long, brokers"
                        " cannot reach a coordinator."),
        Panel("Markers not written", [by_pod("bmq_markers_not_written")],
              description="After a failed try. The alert BmqMarkersNotWritten has a runbook."),
        Panel("Oldest marker not written", [by_pod("bmq_oldest_marker_not_written_seconds")], "s"),
        Panel("Requests of transactions", [Query(
            'sum by (request) (rate(kafka_network_requestmetrics_requests_total{$S,request=~'
            '"InitProducerId|AddPartitionsToTxn|AddOffsetsToTxn|TxnOffsetCommit|EndTxn"}[$R]))', "{{request}}")],
            "reqps"),
        Panel("Latency of ends", quantiles("kafka_network_requestmetrics_totaltimems", "request", "{{request}}",
                                           '$S,request="EndTxn"'), "ms"),
        Panel("Shards not loaded", [Query("sum by (reason) (bmq_shards_not_loaded{$S})", "{{reason}}")],
              description="Their groups or transactions are not served; bmq cluster status names them."),
    ],
)  # fmt: skip

STORAGE = Dashboard(
    "storage",
    "BMQ: storage and metadata store",
    [
        Panel("Produce, by stage", quantiles("bmq_produce_stage_seconds", "stage", "{{stage}}"), "s",
              "queue: waits for its flush; flush: until storage acknowledges; route: from proxy to broker and back,"
              " with both."),
        Panel("Fetch, by stage", quantiles("bmq_fetch_stage_seconds", "stage", "{{stage}}"), "s",
              "wait: for records to come; read: from storage or from blocks in memory."),
        Panel("Checkpoints and takeovers", [
            Query("histogram_quantile(0.99, sum by (le) (rate(bmq_checkpoint_flush_seconds_bucket{$S}[$R])))",
                  "checkpoint p99"),
            Query("histogram_quantile(0.99, sum by (le) (rate(bmq_takeover_seconds_bucket{$S}[$R])))",
                  "takeover p99")], "s"),
        Panel("Unflushed", [by_pod("bmq_unflushed_bytes"),
                            Query("max(bmq_unflushed_bytes_limit{$S})", "limit of one process")], "bytes"),
        Panel("Open segments", [by_pod("bmq_open_pipelines"),
                                Query("min(bmq_open_pipelines_limit{$S})", "least limit")]),
        Panel("Waiting for an open file", [total("bmq_waiting_for_place", "partitions"),
                                           Query("max(bmq_longest_wait_for_place_seconds{$S})", "longest wait, s")]),
        Panel("Copies", [
            total("kafka_server_replicamanager_underreplicatedpartitions", "fewer than asked"),
            total("kafka_server_replicamanager_underminisrpartitioncount", "under min.insync.replicas")]),
        Panel("Storage stalled", [by_pod("bmq_storage_stalled")]),
        Panel("Sent to consumers, by source", [
            Query("sum(rate(bmq_fetch_tail_bytes_total{$S}[$R]))", "tail cache"),
            Query("sum(rate(bmq_fetch_storage_bytes_total{$S}[$R]))", "storage or block cache")], "Bps"),
        Panel("Read from storage", [speed("bmq_storage_read_bytes_total", "storage"),
                                    speed("bmq_block_cache_hit_bytes_total", "block cache")], "Bps"),
        Panel("Hits of the block cache", [Query(
            "sum(rate(bmq_block_cache_hits_total{$S}[$R]))"
            " / (sum(rate(bmq_block_cache_hits_total{$S}[$R])) + sum(rate(bmq_storage_reads_total{$S}[$R])))",
            "hits")], "percentunit", most=1),
        Panel("Bytes on storage, one copy", [Query("topk(10, sum by (topic) (kafka_log_log_size{$S}))", "{{topic}}")],
              "bytes"),
        Panel("Compacted logs not cleaned, by reason", [
            Query("sum by (reason) (bmq_logs_not_cleaned{$S})", "{{reason}}")],
            description="docs/operations/compaction.md, How to see it: most reasons are normal. bmq topic describe"
                        " names the reason of each partition."),
        Panel("Uncleanable partitions", [by_pod("kafka_log_logcleanermanager_uncleanable_partitions_count")],
              description="Damage stops the cleaning. The alert BmqUncleanable has a runbook."),
        Panel("Dirtiest compacted log", [by_pod("kafka_log_logcleanermanager_max_dirty_percent")], "percent",
              "Bytes since its last cleaning, of all that a round reads.", most=100),
        Panel("Compaction delay", [by_pod("kafka_log_logcleaner_max_compaction_delay_secs")], "s",
              "By how much the oldest record not yet cleaned is past max.compaction.lag.ms."),
        Panel("Cleaned", [
            Query("sum(rate(bmq_cleaning_bytes_before_total{$S}[$R]))", "before"),
            Query("sum(rate(bmq_cleaning_bytes_after_total{$S}[$R]))", "after")], "Bps",
            "Bytes of segments that rounds have read and written."),
        Panel("Rounds of cleaning", [Query("sum by (pod) (increase(bmq_cleaning_rounds_total{$S}[$R]))", "{{pod}}")]),
        Panel("etcd's database", [
            Query("max(bmq_etcd_database_bytes{$S})", "size"),
            Query("max(bmq_etcd_database_bytes_in_use{$S})", "in use"),
            Query("max(bmq_etcd_quota_bytes{$S})", "quota")], "bytes"),
        Panel("Calls to etcd", quantiles("bmq_etcd_call_seconds", "call", "{{call}}"), "s"),
        Panel("Calls to etcd that failed", [speed("bmq_etcd_calls_failed_total", "{{pod}}", "pod")], "reqps"),
    ],
)  # fmt: skip

PROCESS = Dashboard(
    "process",
    "BMQ: processes",
    [
        Panel("Processor", [Query("sum by (pod) (rate(process_cpu_seconds_total{$S}[$R]))", "{{pod}}")], "percentunit",
              "1 is one core; a process uses no more."),
        Panel("Idle event loop", [by_pod("kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent")],
              "percentunit", most=1),
        Panel("Late timers of the loop, p99", [Query(
            "histogram_quantile(0.99, sum by (pod, le) (rate(bmq_loop_delay_seconds_bucket{$S}[$R])))", "{{pod}}")],
            "s"),
        Panel("Resident memory", [by_pod("process_resident_memory_bytes")], "bytes"),
        Panel("Caches and their budget", [
            Query("sum by (pod) (bmq_tail_cache_bytes{$S} + bmq_block_cache_bytes{$S})", "{{pod}}"),
            Query("max(bmq_cache_budget_bytes{$S})", "budget of one process")], "bytes"),
        Panel("Bytes of requests and responses held", [
            Query("sum by (pod) (bmq_request_bytes_held{$S})", "{{pod}} requests"),
            Query("sum by (pod) (bmq_fetch_response_bytes_held{$S})", "{{pod}} fetch responses")], "bytes"),
        Panel("Connections", [by_pod("kafka_server_socketservermetrics_connection_count")]),
        Panel("Connections accepted", [speed("kafka_server_socketservermetrics_connection_creation_total", "{{pod}}",
                                             "pod")], "cps"),
        Panel("Connections closed", [
            speed("bmq_connections_refused_total", "over a limit"),
            speed("bmq_connections_idle_closed_total", "idle"),
            speed("bmq_connections_stuck_closed_total", "stuck"),
            speed("bmq_connections_malformed_total", "no Kafka request"),
            speed("bmq_clients_given_up_total", "all, after a standstill"),
            speed("bmq_tls_handshakes_failed_total", "no TLS")], "cps"),
        Panel("Open files", [by_pod("process_open_fds"),
                             Query("min(process_max_fds{$S})", "least limit")]),
        Panel("Fetches that wait", [total("bmq_fetches_parked", "for records"),
                                    total("bmq_fetch_responses_waiting", "for memory")]),
        Panel("Fetch sessions", [by_pod("kafka_server_fetchsessioncache_numincrementalfetchsessions")]),
        Panel("Age of the lease", [by_pod("bmq_lease_age_seconds")], "s",
              "Renewed every few seconds; the process is out of the cluster at 10 s."),
        Panel("Peers connected", [by_pod("bmq_peers_connected"), total("bmq_ways_relayed", "relayed ways")]),
        Panel("Versions", [Query("sum by (version) (bmq_build_info{$S})", "{{version}}")]),
    ],
)  # fmt: skip

_SOCKET = "kafka_server_socketservermetrics"
_BY_MECHANISM, _OF_MECHANISM = "listener, mechanism", "{{listener}} {{mechanism}}"

SECURITY = Dashboard(
    "security",
    "BMQ: security and quotas",
    [
        Panel("Log-ins that failed", [
            speed(f"{_SOCKET}_failed_authentication_total", _OF_MECHANISM, _BY_MECHANISM),
            speed("bmq_http_logins_failed_total", "HTTP {{scheme}}", "scheme")], "reqps",
            "The log has the addresses."),
        Panel("Log-ins", [
            speed(f"{_SOCKET}_successful_authentication_total", _OF_MECHANISM, _BY_MECHANISM),
            speed("bmq_http_logins_total", "HTTP {{scheme}}", "scheme")], "reqps"),
        Panel("Sessions of Kafka clients", [
            speed(f"{_SOCKET}_successful_reauthentication_total", "renewed"),
            speed(f"{_SOCKET}_failed_reauthentication_total", "not renewed"),
            speed(f"{_SOCKET}_expired_connections_killed_count_total", "over")], "reqps"),
        Panel("Denied", [
            Query('sum by (request, error) (rate(kafka_network_requestmetrics_errors_total{$S,error=~'
                  '".+_AUTHORIZATION_FAILED"}[$R]))', "{{request}} {{error}}"),
            speed("bmq_http_denied_total", "HTTP {{reason}}", "reason")], "reqps",
            "The log has operation, resource, principal and address."),
        Panel("Certificates expire in", [
            Query("min by (listener) (bmq_certificate_expires_in_seconds{$S})", "{{listener}}")], "s"),
        Panel("TLS handshakes that failed", [speed("bmq_tls_handshakes_failed_total", "{{pod}}", "pod")], "cps"),
        Panel("Throttled", [
            speed("bmq_quota_throttled_total", "{{quota}}", "quota"),
            speed("bmq_connections_throttled_total", "connections")], "cps",
            "Clients that were held up, by quota; connections past a rate."),
        Panel("Throttle time", [speed("bmq_quota_throttled_seconds_total", "{{quota}}", "quota")], "s",
              "Seconds a second for which clients were told to wait."),
        Panel("Refused past a user's bound", [
            speed("bmq_user_connections_refused_total", "connections"),
            speed("bmq_user_groups_refused_total", "groups"),
            speed("bmq_user_transactional_ids_refused_total", "transactional ids")], "reqps",
            "max_connections, max_groups, max_transactional_ids; the log names the user."),
        Panel("Sessions of the console", [by_pod("bmq_http_console_sessions")]),
        Panel("Audit lines", [
            speed("bmq_audit_lines_total", "written"),
            speed("bmq_audit_lines_left_out_total", "left out, {{priority}}", "priority"),
            speed("bmq_audit_write_failures_total", "writes that failed")], "cps",
            "Lines that found no room are in no log."),
        Panel("Audit log behind", [
            Query("sum by (pod) (bmq_audit_lines_waiting{$S})", "{{pod}} waiting"),
            Query("max by (pod) (bmq_audit_is_failing{$S})", "{{pod}} failing")], "short",
            "Lines that wait to be written; 1: the last write has failed."),
    ],
)  # fmt: skip

DASHBOARDS = (OVERVIEW, TOPICS, GROUPS, TRANSACTIONS, STORAGE, PROCESS, SECURITY)


def files(chart: Path) -> Iterator[tuple[Path, str]]:
    """Yield each dashboard's path and its text as it should be."""
    for dashboard in DASHBOARDS:
        path = chart / "files" / "dashboards" / f"{dashboard.name}.json"
        yield path, json.dumps(document(dashboard), indent=2) + "\n"


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    choices = [
        Variable("namespace", "bmq_build_info", "namespace"),
        Variable("cluster", 'bmq_build_info{namespace="$namespace"}', "app_kubernetes_io_instance"),
        *dashboard.variables,
    ]
    return {
        "uid": f"bmq-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["bmq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "BMQ",
                "tags": ["bmq"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                *map(_variable, choices),
            ]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(dashboard.panels)],
    }


def _variable(variable: Variable) -> dict[str, Any]:
    drawn = {
        "name": variable.name,
        "type": "query",
        "datasource": _DATASOURCE,
        "query": variable.written,
        "refresh": 2,
    }
    if variable.is_multi:
        everything = {"text": ["All"], "value": ["$__all"]}
        drawn |= {"multi": True, "includeAll": True, "allValue": ".*", "current": everything, "sort": 1}
    return drawn


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _PER_ROW)
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _DATASOURCE,
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query.written, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }

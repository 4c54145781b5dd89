"""A live cluster's /metrics, as promtool judges it, and as the dashboards ask for it through a real Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.chart.drawn import CHART
from tests.monitoring.secured import ADMINS, Secured
from tests.monitoring.world import (
    WITHIN_S,
    Clients,
    cluster,
    filled_in,
    queries,
    rules,
    scrape,
    targets,
)
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for
from tests.services.prometheus import Prometheus, PromtoolRefuses, promtool

COMPLAINTS = {
    # Kafka's names.
    "kafka_server_socketservermetrics_connection_count": "non-histogram and non-summary metrics should not have"
    ' "_count" suffix',
    "kafka_log_logcleanermanager_uncleanable_partitions_count": "non-histogram and non-summary metrics should not have"
    ' "_count" suffix',
    # kafka_exporter's.
    "kafka_consumergroup_current_offset_sum": 'non-histogram and non-summary metrics should not have "_sum" suffix',
    "kafka_consumergroup_lag_sum": 'non-histogram and non-summary metrics should not have "_sum" suffix',
}
"""Metrics to which `promtool check metrics` objects, and which stay, with its text."""
OF_KERBEROS = {"bmq_hdfs_login_failures_total", "bmq_hdfs_ticket_left_seconds", "bmq_hdfs_token_left_seconds"}
"""Metrics of processes that log in to HDFS, which nobody does here: tests/unit/server/queries/test_login_metrics.py."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BmqServer]]:
    """Two processes with all roles, a producer and a group; one with TLS, log-ins and ACLs, whose clients try them."""
    folder = tmp_path_factory.mktemp("live")
    with (
        EtcdCluster() as etcd,
        cluster(folder, etcd, a="", b="") as made,
        Clients(made["a"].bootstrap),
    ):
        secured = Secured(folder, etcd)
        with secured.server:
            wait_for(secured.guess(), "a refused log-in", timeout_s=WITHIN_S)
            secured.be_denied()
            assert (secured.http("admin", ADMINS), secured.http("admin", "wrong")) == (200, 401)
            yield {**made, "secured": secured.server}


@pytest.fixture(scope="module")
def prometheus(servers: dict[str, BmqServer]) -> Iterator[Prometheus]:
    """One that has scraped these for so long that every rate has two samples."""
    with Prometheus(targets(servers)) as server:
        server.wait(lambda p: bool(p.query("rate(kafka_consumergroup_lag_sum[30s])")), "two samples", WITHIN_S)
        yield server


def test_promtool_accepts_the_metrics(servers: dict[str, BmqServer], prometheus: Prometheus) -> None:
    """Compare promtool's complaints, once the lag of groups is among the metrics: `prometheus` has waited for it."""
    complaints: dict[str, str] = {}
    for server in servers.values():
        with pytest.raises(PromtoolRefuses) as refused:
            promtool("check", "metrics", text=scrape(server))
        complaints |= re.findall(r"^(\w+) (.+)$", str(refused.value), re.MULTILINE)
    assert complaints == COMPLAINTS


def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    empty = [f"{name}: {expression}" for name, expression in queries() if not prometheus.query(expression)]
    assert not empty


def test_every_choice_of_a_dashboard_has_values(prometheus: Prometheus) -> None:
    found = {}
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                asked = re.fullmatch(r"label_values\((.+), (\w+)\)", filled_in(variable["query"]))
                assert asked is not None
                found[variable["name"]] = {labels[asked[2]] for labels, _ in prometheus.query(asked[1])}
    assert found == {
        "namespace": {"kafka"}, "cluster": {"orders"}, "topic": {"orders"}, "group": {"billing"},
    }  # fmt: skip


def test_every_rule_finds_its_metrics(prometheus: Prometheus) -> None:
    """An alert is silent here, as all is well; its metrics are there."""
    for rule in rules():
        if "record" in rule:
            assert prometheus.query(rule["expr"].replace("[5m]", "[30s]")), rule["record"]
        else:
            assert prometheus.query(rule["expr"]) == [], rule["alert"]
            for metric in set(re.findall(r"\b(?:bmq|kafka)_\w+", rule["expr"])) - OF_KERBEROS:
                assert prometheus.query(metric), f"{rule['alert']}: {metric}"

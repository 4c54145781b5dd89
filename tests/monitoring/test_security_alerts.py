"""Alerts of security and quotas: each is caused at a process with TLS, log-ins and ACLs, fires, and clears.

Rates are over a minute here, five in the chart: an alert clears once its cause is a minute old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.monitoring.secured import ADMINS, Secured
from tests.monitoring.test_alerts import clears, fires, impatient
from tests.monitoring.world import WITHIN_S, targets
from tests.services.etcd import EtcdCluster
from tests.services.prometheus import Prometheus

BYTE_RATE = 20_000.0
VALUE = bytes(5_000)


def quick_rates() -> dict[str, Any]:
    """Return the chart's rules, whose alerts fire at once, with rates over a minute."""
    found = impatient()
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["expr"] = rule["expr"].replace("[5m]", "[1m]")
    return found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with EtcdCluster() as etcd:
        made = Secured(tmp_path_factory.mktemp("secured"), etcd)
        with made.server:
            yield made


@pytest.fixture(scope="module")
def prometheus(secured: Secured) -> Iterator[Prometheus]:
    with Prometheus(targets({"secured": secured.server}), quick_rates()) as server:
        yield server


def guess_until_it_fires(secured: Secured, prometheus: Prometheus) -> None:
    """Try a wrong password until the alert fires; the client ends with this function."""
    guess = secured.guess()

    def is_firing(prometheus: Prometheus) -> bool:
        return guess() and "BmqLoginsFailing" in prometheus.firing()

    prometheus.wait(is_firing, "BmqLoginsFailing fires", WITHIN_S)


def test_log_ins_that_fail(secured: Secured, prometheus: Prometheus) -> None:
    guess_until_it_fires(secured, prometheus)
    found = fires(prometheus, "BmqLoginsFailing")
    assert found["pod"] == "secured"
    assert "log-ins a second fail at secured" in found["summary"]
    clears(prometheus, "BmqLoginsFailing")


def test_denials(secured: Secured, prometheus: Prometheus) -> None:
    def is_firing(prometheus: Prometheus) -> bool:
        secured.be_denied()
        return "BmqDenials" in prometheus.firing()

    prometheus.wait(is_firing, "BmqDenials fires", WITHIN_S)
    assert "requests a second are denied at secured" in fires(prometheus, "BmqDenials")["summary"]
    clears(prometheus, "BmqDenials")


def test_a_certificate_that_expires(secured: Secured, prometheus: Prometheus) -> None:
    """Serve one with a day left, until its file is replaced: no restart."""
    prometheus.wait(lambda p: bool(p.query("bmq_certificate_expires_in_seconds")), "a scrape", WITHIN_S)
    clears(prometheus, "BmqCertificateExpires")
    secured.expire_soon()
    found = fires(prometheus, "BmqCertificateExpires")
    assert found["listener"] == "OUT"
    assert "of listener OUT of secured expires in 23h" in found["summary"]
    secured.certificates.issue_server()
    clears(prometheus, "BmqCertificateExpires")


def test_clients_that_are_throttled(secured: Secured, prometheus: Prometheus) -> None:
    admin = AdminClient(secured.client("admin", ADMINS))
    admin.create_topics([NewTopic("orders", 1, -1)])["orders"].result(30)
    asyncio.run(secured.set_quota("admin", producer_byte_rate=BYTE_RATE))
    producer = Producer(secured.client("admin", ADMINS, **{"linger.ms": 0}))

    def is_firing(prometheus: Prometheus) -> bool:
        for _ in range(20):
            producer.produce("orders", VALUE)
        producer.flush(30)
        return "BmqThrottled" in prometheus.firing()

    prometheus.wait(is_firing, "BmqThrottled fires", WITHIN_S)
    assert fires(prometheus, "BmqThrottled")["quota"] == "producer_byte_rate"
    asyncio.run(secured.set_quota("admin", producer_byte_rate=None))
    clears(prometheus, "BmqThrottled")

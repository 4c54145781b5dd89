"""A client that has worked with a proxy for a while goes on with another when that one is gone for good.

franz-go takes a leader epoch of -1 in Metadata, once it has been given one of 0 or more for the partition, for "no
leader is elected yet": it keeps the leader that it has, and asks again (twmb/franz-go#1331).  So either all proxies
give the epoch at all times, or none does ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.clients.drivers.program import Franz
from tests.integration.cluster.conftest import SETTINGS
from tests.services.bmq_cluster import PROXY, BmqCluster
from tests.services.etcd import EtcdCluster

pytestmark = pytest.mark.clients
TOPIC = "orders"
REFRESHES = 8
"""The client asks a proxy of its choice each time: after so many it has asked both of them."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[BmqCluster]:
    """Two proxies, and one broker that is neither."""
    with (
        EtcdCluster() as etcd,
        BmqCluster(
            (tmp_path / "root").as_uri(),
            etcd,
            proxies=2,
            brokers=1,
            controllers=1,
            coordinators=1,
            environment=SETTINGS,
        ) as cluster,
    ):
        yield cluster


def test_franz_go_goes_on_when_the_proxy_that_led_is_killed(small: BmqCluster) -> None:
    client = Franz(small.bootstrap)
    try:
        client.create_topic(TOPIC, 1)
        for _ in range(REFRESHES):
            leader = client.exchange(TOPIC)
        small.kill(small.names(PROXY)[leader])
        assert client.exchange(TOPIC) != leader
    finally:
        client.close()

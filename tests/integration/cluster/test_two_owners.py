"""Two processes that both believe to be owner of the same thing: a fence must keep them apart.

A paused process is the worst of them: it was owner when it stopped, has requests in its sockets and bytes in its
pipelines, and goes on in the middle of it.  One that is cut off from etcd goes on all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from bmq.core.model import PartitionKey
from tests.integration.cluster.conftest import Site
from tests.integration.cluster.stored import name_of, segments_of
from tests.integration.cluster.test_faults import incarnation_of
from tests.integration.cluster.workload import Workload, workload
from tests.integration.history import report
from tests.integration.load import create_topic, delete_topic
from tests.services.bmq_cluster import BROKER, CONTROLLER, COORDINATOR, BmqCluster

Loses = Callable[[str], Callable[[], None]]


@pytest.fixture(params=["paused", "cut off from etcd"])
def loses(request: pytest.FixtureRequest, cluster: BmqCluster, site: Site) -> Loses:
    """Return a function that makes a member miss the loss of its work; the call that it returns undoes this."""
    if request.param == "paused":

        def pause(name: str) -> Callable[[], None]:
            cluster.pause(name)
            return lambda: cluster.resume(name)

        return pause
    request.getfixturevalue("links")

    def cut(name: str) -> Callable[[], None]:
        cluster.cut(name, site.etcd_host)
        return cluster.restore

    return cut


def test_a_former_owner_writes_nothing_more(
    cluster: BmqCluster, site: Site, loses: Loses, request: pytest.FixtureRequest
) -> None:
    """Let a former owner go on after others took its partitions: no fenced segment grows.

    KafScale's two brokers of one partition both wrote and acknowledged overlapping offsets.
    """
    with workload(cluster) as load:
        cluster.wait_stable()
        name = cluster.busiest(BROKER)
        incarnation, before = incarnation_of(cluster, name), cluster.records()
        lost = [key for key, record in before.items() if record.owner == incarnation]
        assert lost, f"{name} owns nothing"
        hears = loses(name)
        cluster.wait(lambda: _have_moved(cluster, lost, incarnation), f"{lost} with others")
        load.progress()
        fenced = _fenced(cluster, site, load, lost)
        hears()
        cluster.wait_ready([name])
        load.progress()
        now = {path: length for key in lost for path, length in segments_of(cluster, site, load, key).items()}
        assert {path: now[path] for path in fenced} == fenced, "a fenced segment grew"
        raised = {key: (before[key].epoch, cluster.records()[key].epoch) for key in lost}
        assert all(new > old for old, new in raised.values()), raised
    report(request, f"{len(lost)} partitions taken from {name}, {len(fenced)} fenced segments; {load.summary()}")


def _have_moved(cluster: BmqCluster, keys: list[PartitionKey], incarnation: str) -> bool:
    records = cluster.records()
    return all(records[key].owner not in ("", incarnation) for key in keys)


def _fenced(cluster: BmqCluster, site: Site, load: Workload, keys: list[PartitionKey]) -> dict[str, int]:
    """Return the segments of earlier owners of these partitions: they must never grow again."""
    records = cluster.records()
    found = {
        path: length
        for key in keys
        for path, length in segments_of(cluster, site, load, key).items()
        if name_of(path).epoch < records[key].epoch
    }
    assert found, f"no earlier owner has written to {load.topic}"
    return found


def test_a_former_coordinator_answers_for_no_group(
    cluster: BmqCluster, loses: Loses, request: pytest.FixtureRequest
) -> None:
    """Let a former coordinator go on after others took its shards: no commit is lost.

    KafScale's two coordinators of one group did not see each other's commits.
    """
    with workload(cluster) as load:
        cluster.wait_stable()
        name = cluster.busiest(COORDINATOR)
        hears = loses(name)
        cluster.wait(lambda: name not in cluster.shards().values(), f"no shard of {name} left")
        load.progress()
        committed = [[position.committed for position in group.positions] for group in load.groups]
        hears()
        heard_at = time.monotonic()
        cluster.wait_ready([name])
        load.rebalance()  # the coordinator must have all commits: each member asserts where it begins
        load.progress()
        took = time.monotonic() - heard_at
        for group, earlier in zip(load.groups, committed, strict=True):
            assert all(now.committed >= then for now, then in zip(group.positions, earlier, strict=True))
    report(request, f"groups at work {took:.1f} s after the former coordinator heard of it; {load.summary()}")


def test_a_former_leader_takes_nothing_back(cluster: BmqCluster, loses: Loses, request: pytest.FixtureRequest) -> None:
    """Let a former leader go on in a term that is over: what the next leader did since stands."""
    with workload(cluster) as load:
        cluster.wait_stable()
        name, shards = cluster.leader(), cluster.shard_owners()
        assert name is not None
        hears = loses(name)
        others = [other for other in cluster.names(CONTROLLER) if other != name]
        cluster.wait(lambda: cluster.leader() in others, f"one of {others} leads")
        topic = f"{load.topic}-later"
        create_topic(load.bootstrap, topic, 3)
        created = set(cluster.partitions())  # the records of deleted topics stay for a while
        cluster.wait(lambda: created <= set(cluster.records()), "each partition with an owner")
        epochs = {key: record.epoch for key, record in cluster.records().items() if key in created}
        hears()
        cluster.wait_ready([name])
        load.progress()
        cluster.wait_stable()
        records, numbers = cluster.records(), cluster.shard_owners()
        assert created == set(cluster.partitions()), "the topics are not those of the next leader"
        assert all(records[key].epoch >= epoch for key, epoch in epochs.items()), "an epoch was taken back"
        assert all(numbers[shard].number >= owner.number for shard, owner in shards.items()), "a shard was taken back"
        delete_topic(load.bootstrap, topic)
    report(request, f"{name} was leader, {cluster.leader()} leads; {load.summary()}")

"""Findings about processes and the store, from facts, each with its remedy."""

from __future__ import annotations

import pytest

from bmq.cli.doctor.checks import (
    Health,
    check_clock,
    check_copies,
    check_health,
    check_lease,
    check_members,
    check_servers,
    check_store,
    check_unreadable,
)
from bmq.meta.cluster.member import Member
from bmq.meta.maintenance import LeaseLeft, StoreMember, StoreStatus

ALL = frozenset({"proxy", "broker", "controller", "coordinator"})


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (StoreStatus(bytes=70, bytes_in_use=1, quota_bytes=100, is_full=False), ""),
        (StoreStatus(bytes=80, bytes_in_use=1, quota_bytes=100, is_full=False), "80 bytes of 100"),
        (StoreStatus(bytes=80, bytes_in_use=1, quota_bytes=0, is_full=False), ""),
        (StoreStatus(bytes=80, bytes_in_use=1, quota_bytes=0, is_full=True), "NOSPACE"),
    ],
)
def test_a_store_that_is_nearly_full_is_found(status: StoreStatus, message: str) -> None:
    found = check_store("etcd://e", status)
    assert bool(found) == bool(message)
    assert all(message in finding.what and "defrag" in finding.remedy for finding in found)


def test_store_keys_that_cannot_be_read_are_found() -> None:
    assert check_unreadable("etcd://e", {}) == []
    (found,) = check_unreadable("etcd://e", {"/b": "of format 2", "/a": "no JSON"})
    assert found.what == "/a, and 1 more keys cannot be read: no JSON"


def test_too_few_live_nodes_for_the_copies_are_found() -> None:
    assert check_copies("hdfs://h", 3, {"a": 3, "b": 1}) == []
    (found,) = check_copies("hdfs://h", 2, {"a": 3, "b": 1})
    assert found.what == "2 live nodes, and topics a want 3 copies at most"


def test_missing_roles_versions_and_drains_of_members_are_found() -> None:
    one = Member(incarnation="m", roles=ALL, version="1")
    assert check_members([one], "m") == []
    assert [found.what for found in check_members([], None)] == ["no process is registered"]
    assert [found.what for found in check_members([one], None)] == ["no controller leads"]
    two = Member(incarnation="n", roles=ALL, version="2", is_draining=True)
    assert [found.what for found in check_members([one, two], "m")] == [
        "processes of 2 versions: 1, 2",
        "it is draining",
    ]
    subjects = [found.subject for found in check_members([two], "m")]
    assert subjects == ["proxy", "broker", "controller", "coordinator", "n"]


def test_several_hdfs_users_are_found_by_their_names() -> None:
    one = Member(incarnation="m", roles=ALL, hdfs_user="bmq")
    unknown = Member(incarnation="o", roles=ALL)  # of storage without users, or that did not show it
    assert check_members([one, unknown, Member(incarnation="n", roles=ALL, hdfs_user="bmq")], "m") == []
    (found,) = check_members([one, unknown, Member(incarnation="n", roles=ALL, hdfs_user="alice")], "m")
    assert (found.area, found.what) == ("members", "processes of 2 HDFS users: alice, bmq")
    assert "end those of all users but one" in found.remedy


ALIVE = StoreMember("e1:2379", version="3.5.12", has_leader=True)


@pytest.mark.parametrize(
    ("server", "expected", "remedy"),
    [
        (ALIVE, "", ""),
        (ALIVE._replace(error="refused"), "it does not answer: refused", "a majority"),
        (ALIVE._replace(has_leader=False), "it has no leader", "endpoint status"),
        (ALIVE._replace(is_learner=True), "it is a learner", "member promote"),
        (ALIVE._replace(behind=5_000), "it has 5000 entries to apply", "disk"),
        (ALIVE._replace(version="3.5.7"), "it is etcd 3.5.7", "3.5.8 or later"),
        (ALIVE._replace(version="3.10.0-rc.1"), "", ""),
    ],
)
def test_a_store_server_that_is_not_healthy_is_found(server: StoreMember, expected: str, remedy: str) -> None:
    found = check_servers("etcd://e", [server])
    assert [each.what for each in found] == ([expected] if expected else [])
    assert all(remedy in each.remedy for each in found)


def test_store_servers_of_two_versions_are_found() -> None:
    patched = ALIVE._replace(version="3.5.13")
    assert check_servers("etcd://e", [ALIVE, patched]) == [], "a patch release is no other version"
    (found,) = check_servers("etcd://e", [ALIVE, ALIVE._replace(version="3.6.0")])
    assert found.what == "servers of versions 3.5, 3.6"


@pytest.mark.parametrize(
    ("ahead", "message"), [(None, ""), (5.0, ""), (-5.0, ""), (61.0, "61 s ahead of"), (-7.2, "7 s behind")]
)
def test_a_clock_that_differs_by_seconds_is_found(ahead: float | None, message: str) -> None:
    found = check_clock("store", "e1:2379", ahead)
    assert bool(found) == bool(message)
    assert all(message in each.what and "NTP" in each.remedy for each in found)


def test_a_lease_that_is_not_renewed_is_found() -> None:
    assert check_lease("m", LeaseLeft(4.0, 10.0)) == []
    (late,) = check_lease("m", LeaseLeft(3.0, 10.0))
    assert late.what == "its lease of 10 s ends in 3 s: it is not renewed"
    assert check_lease("m", LeaseLeft(-1.0, 0.0)), "there is no such lease"


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        (Health(200, ""), ""),
        (Health(200, "shard 3"), "a part is not served: shard 3"),
        (Health(503, "draining"), "it is not ready: draining"),
        (Health(0, "refused"), "http://h does not answer: refused"),
        (Health(200, "", 100.0), "its clock is 100 s ahead of this machine's"),
    ],
)
def test_a_process_that_is_not_healthy_is_found(health: Health, expected: str) -> None:
    assert [found.what for found in check_health("m", "http://h", health)] == ([expected] if expected else [])

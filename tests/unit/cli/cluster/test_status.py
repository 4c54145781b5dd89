"""``bmq cluster status``: over Kafka's protocol on a cluster in memory, and over HTTP on a console."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import pytest

from bmq.cli import admin_client
from bmq.cli.cluster import status as cluster_status
from bmq.cli.cluster.http_client import Console
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition
from tests.unit.cli.fake_console import FakeCluster
from tests.unit.cli.fake_console import ask_cluster as ask

pytestmark = pytest.mark.slow


Run = Callable[..., int]
Told = pytest.CaptureFixture[str]
Facts = dict[str, object]


def test_status_over_kafka_shows_nodes_and_counts(admin: FakeAdmin, bmq: Run, capsys: Told) -> None:
    admin.add_topic("orders", FakePartition(), FakePartition())
    assert bmq("cluster", "status", "--bootstrap-server", "k:9092") == 0
    assert capsys.readouterr().out.splitlines() == [
        "cluster abcdefghijklmnopqrstuv",
        "  topics       1",
        "  partitions   2, none without a leader",
        "NODE  HOST       PORT  RACK  CONTROLLER",
        "   1  127.0.0.1  9001     -          no",
        "   2  127.0.0.1  9002     -         yes",
    ]


def test_status_over_kafka_fails_when_a_partition_cannot_be_used(admin: FakeAdmin, bmq: Run, capsys: Told) -> None:
    admin.add_topic("orders", FakePartition(), FakePartition(leader=-1))
    assert bmq("cluster", "status", "--bootstrap-server", "k:9092", "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["partitions"], printed["partitions_without_leader"]) == (2, 1)
    assert printed["brokers"][0] == {"node_id": 1, "host": "127.0.0.1", "port": 9001, "rack": None}


def test_status_over_kafka_does_not_say_of_bmq_that_all_is_served(admin: FakeAdmin, bmq: Run, capsys: Told) -> None:
    admin.add_topic("orders", FakePartition())
    admin.configs["orders"] = {"flush.mode": "hflush"}
    assert bmq("cluster", "status", "--bootstrap-server", "k:9092") == 0
    assert "1, of BMQ: `bmq cluster status --http" in capsys.readouterr().out
    assert bmq("cluster", "status", "--bootstrap-server", "k:9092", "--json") == 0
    assert json.loads(capsys.readouterr().out)["partitions_without_leader"] is None


@pytest.mark.parametrize(
    ("words", "settings", "is_kafka"),
    [
        ((), {}, False),
        ((), {"BMQ_BOOTSTRAP": "k:1"}, True),
        ((), {"BMQ_BOOTSTRAP": "k:1", "BMQ_HTTP_URL": "here"}, False),
        (("--bootstrap-server", "k:1"), {"BMQ_HTTP_URL": "here"}, True),
        (("--http", "here"), {"BMQ_BOOTSTRAP": "k:1"}, False),
    ],
)
def test_an_option_wins_over_the_environment_and_http_over_kafka(
    words: tuple[str, ...], settings: dict[str, str], is_kafka: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers in options and in the environment: an option wins over the environment, and HTTP over Kafka."""
    ways: list[str] = []
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    def over_kafka(arguments: argparse.Namespace) -> int:
        ways.append(arguments.bootstrap_server)
        return 0

    def over_http(console: Console, arguments: argparse.Namespace) -> int:
        ways.append("http")
        return 0

    monkeypatch.setattr(admin_client, "run", over_kafka)
    monkeypatch.setattr(cluster_status, "over_http", over_http)
    assert ask("status", *words) == 0
    assert ways == ["k:1" if is_kafka else "http"]


def test_status_over_http_shows_members_and_moves(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.moves = [{"topic": "orders", "partition": 3, "from": "broker-1a", "to": "broker-1b", "why": "asked"}]
    cluster.members["proxy-1"]["http"] = ""
    assert ask("status", "--http", url + "/") == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "cluster bmq (abc)",
        "topics 1",
        "partitions 6, none without an owner",
        "shards none without an owner",
        "leader controller-1",
        "balancing",
        "MEMBER ROLES ZONE INTERNAL KAFKA VERSION PARTITIONS SHARDS IN+OUT/S REQ/S STATE",
        "broker-1a broker - 10.0.0.1:9093 - 0.1.0 4 0 2.0 KiB 7 -",
        "broker-1b broker b 10.0.0.2:9093 - 0.1.0 2 0 0 B 0 unreachable for 1",
        "controller-1 controller,coordinator - - - 0.1.0 0 50 0 B 0 leads",
        "proxy-1 proxy - - 10.0.0.4:9092 0.1.0 0 0 0 B 0 draining",
        "1 moves under way",
        "TOPIC PARTITION FROM TO WHY",
        "orders 3 broker-1a broker-1b asked",
    ]


def test_status_shows_levels_of_features_that_are_or_may_be_above_0(
    cluster: FakeCluster, url: str, capsys: Told
) -> None:
    def feature(name: str, level: int, highest: int, *, intended: int | None = None, is_held: bool = False) -> Facts:
        facts = {"feature": name, "level": level, "intended": intended, "is_held": is_held}
        return facts | {"lowest": 0, "highest": highest}

    cluster.features = [
        feature("a.version", 2, 2),
        feature("b.version", 1, 2, is_held=True),
        feature("c.version", 0, 1, intended=1),
        feature("later.version", 0, 0, intended=1),
        feature("unused.version", 0, 0),
    ]
    assert ask("status", "--http", url) == 0
    (shown,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  features")]
    assert shown == (
        "  features     a.version 2 (0 to 2 supported), b.version 1 (0 to 2 supported, held there),"
        " c.version 0 (0 to 1 supported, 1 is about to be),"
        " later.version 0 (0 to 0 supported, 1 is about to be)"
    )
    cluster.features = None
    assert ask("status", "--http", url) == 0
    assert "features" not in capsys.readouterr().out


def test_status_as_json_is_the_servers_response(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("status", "--http", url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == cluster.status("proxy-1")


def test_status_fails_when_a_partition_has_no_owner(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.unassigned = 2
    assert ask("status", "--http", url) == 1
    assert "6, 2 without an owner" in capsys.readouterr().out


def test_status_fails_when_no_member_of_a_role_lives(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.members["controller-1"]["roles"] = ["controller"]
    cluster.unassigned_shards = 50
    assert ask("status", "--http", url) == 1
    out = capsys.readouterr().out
    assert "  shards       50 without an owner" in out
    assert "no coordinator lives: start one" in out
    assert "no broker lives" not in out


def test_status_fails_when_the_metadata_store_takes_no_writes(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.store_trouble = "it takes no writes (NOSPACE)"
    assert ask("status", "--http", url) == 1
    assert "the metadata store: it takes no writes (NOSPACE)" in capsys.readouterr().out


def test_status_fails_when_groups_are_not_served(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.not_loaded = [{"kind": "groups", "shard": 3, "coordinator": "proxy-1", "why": "the log ends at 566"}]
    assert ask("status", "--http", url) == 1
    out = capsys.readouterr().out
    assert "1 shards are not loaded: their groups or transactions are not served" in out
    assert ["groups", "3", "proxy-1", "the", "log", "ends", "at", "566"] in [line.split() for line in out.splitlines()]


def test_status_fails_when_partitions_are_not_served(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.not_served = [
        {"topic": "orders", "partition": number, "broker": "broker-1a", "why": "offline: a hole"} for number in range(3)
    ]
    assert ask("status", "--http", url) == 1
    out = capsys.readouterr().out
    assert "3 partitions are not served, 1 of them:" in out
    assert "orders 0 broker-1a offline: a hole" in [" ".join(line.split()) for line in out.splitlines()]


def test_status_fails_when_storage_acknowledges_nothing(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.members["broker-1a"]["storage_trouble"] = "storage acknowledges nothing: no room"
    assert ask("status", "--http", url) == 1
    assert "broker-1a: storage acknowledges nothing: no room" in capsys.readouterr().out


def test_status_names_members_that_do_not_respond(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.silent = ["broker-1b"]
    assert ask("status", "--http", url) == 0
    assert "no answer to what they cannot serve: broker-1b" in capsys.readouterr().out


def test_status_without_a_leader_names_the_member_whose_view_it_is(
    cluster: FakeCluster, url: str, capsys: Told
) -> None:
    cluster.is_from_leader = False
    for each in cluster.members.values():
        each.update(bytes_per_s=None, requests_per_s=None, unreachable_for=None, is_leader=False)
    assert ask("status", "--http", url) == 1
    out = capsys.readouterr().out
    assert "  leader       none" in out
    assert "no controller leads: nothing is assigned" in out
    assert "this is the view of proxy-1" in out

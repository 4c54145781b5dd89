"""``bmq cluster``: over Kafka's protocol on a cluster in memory, and on consoles' HTTP addresses."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bmq.cli import admin_client, progress
from bmq.cli.cluster import operations
from bmq.cli.cluster import status as cluster_status
from bmq.cli.cluster.http_client import Console
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition, parse
from tests.unit.cli.fake_console import FakeCluster, member

pytestmark = pytest.mark.slow

Run = Callable[..., int]
Told = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BMQ_HTTP_URL", raising=False)
    monkeypatch.delenv("BMQ_BOOTSTRAP", raising=False)
    monkeypatch.setattr(operations, "POLL_S", 0.001)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(
        member("broker-1a", "broker", internal="10.0.0.1:9093", partitions=4, bytes_per_s=2048, requests_per_s=7),
        member("broker-1b", "broker", internal="10.0.0.2:9093", partitions=2, zone="b", unreachable_for=1),
        member("controller-1", "controller", "coordinator", is_leader=True, shards=50, http="10.0.0.3:1"),
        member("proxy-1", "proxy", kafka="10.0.0.4:9092", is_draining=True),
    )


@pytest.fixture
def url(cluster: FakeCluster) -> Iterator[str]:
    with cluster.console("proxy-1") as url:
        yield url


def ask(*words: str) -> int:
    """``bmq cluster`` as the command line runs it."""
    arguments = parse("cluster", *words)
    status = arguments.run(arguments)
    assert isinstance(status, int)
    return status


# ------------------------------------------------------------------------------------------------------ over Kafka


def test_status_over_kafka(admin: FakeAdmin, bmq: Run, capsys: Told) -> None:
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
    told = json.loads(capsys.readouterr().out)
    assert (told["partitions"], told["partitions_without_leader"]) == (2, 1)
    assert told["brokers"][0] == {"node_id": 1, "host": "127.0.0.1", "port": 9001, "rack": None}


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
def test_which_way_status_asks(
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


def test_configs(bmq: Run, capsys: Told) -> None:
    assert bmq("cluster", "configs", "--node", "2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "NODE  CONFIG          VALUE  SOURCE                READ-ONLY",
        "   2  num.partitions  3      STATIC_BROKER_CONFIG        yes",
    ]
    assert bmq("cluster", "configs", "--all", "--json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["node_id"], line["config"]) for line in lines] == [
        (1, "log.retention.ms"),
        (1, "num.partitions"),
        (2, "log.retention.ms"),
        (2, "num.partitions"),
    ]
    assert bmq("cluster", "configs", "--node", "3") == 2
    assert "there is no node 3; there are 1, 2" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- status over HTTP


def test_status(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.moves = [{"topic": "orders", "partition": 3, "from": "broker-1a", "to": "broker-1b", "why": "asked"}]
    cluster.members["proxy-1"]["http"] = ""
    assert ask("status", "--http", url + "/") == 0
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "cluster bmq (abc)",
        "topics 1",
        "partitions 6, none without an owner",
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


def test_status_as_json_is_what_the_server_says(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("status", "--http", url, "--json") == 0
    assert json.loads(capsys.readouterr().out) == cluster.status("proxy-1")


def test_status_fails_when_a_partition_has_no_owner(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.unassigned = 2
    assert ask("status", "--http", url) == 1
    assert "6, 2 without an owner" in capsys.readouterr().out


def test_status_fails_when_groups_are_not_served(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.not_loaded = [{"shard": 3, "coordinator": "proxy-1", "why": "the log ends at 566"}]
    assert ask("status", "--http", url) == 1
    out = capsys.readouterr().out
    assert "1 shards of __consumer_offsets are not loaded: their groups are not served" in out
    assert ["3", "proxy-1", "the", "log", "ends", "at", "566"] in [line.split() for line in out.splitlines()]


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


def test_status_names_who_does_not_answer(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.silent = ["broker-1b"]
    assert ask("status", "--http", url) == 0
    assert "no answer to what they cannot serve: broker-1b" in capsys.readouterr().out


def test_status_without_a_leader_says_who_tells(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.is_from_leader = False
    for each in cluster.members.values():
        each.update(bytes_per_s=None, requests_per_s=None, unreachable_for=None, is_leader=False)
    assert ask("status", "--http", url) == 0
    out = capsys.readouterr().out
    assert "  leader       none" in out
    assert "this is the view of proxy-1" in out


def test_an_address_needs_no_scheme(cluster: FakeCluster, url: str, capsys: Told) -> None:
    """Give the address without `http://`, in the form that `bmq serve --http` takes."""
    assert ask("status", "--http", url.removeprefix("http://")) == 0
    assert "proxy-1" in capsys.readouterr().out


def test_an_address_that_is_no_console(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("status", "--http", f"{url}/elsewhere") == 2
    assert "Not Found: is it the HTTP address of a `bmq serve`" in capsys.readouterr().err
    assert ask("status", "--http", "ftp://127.0.0.1:9080") == 2
    assert "is not like http://" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for command in (("status",), ("balance",), ("move", "orders", "1", "b"), ("drain", "b")):
        assert ask(*command, "--http", f"http://127.0.0.1:{port}") == 2
        assert "Connection refused: is it the HTTP address of `bmq serve`?" in capsys.readouterr().err


def test_an_address_that_does_not_answer(capsys: Told) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        assert ask("status", "--http", url, "--timeout", "0.2") == 2
    assert "did not answer within 0.2 s; try again, or give it longer with --timeout" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- acts


def test_balance(cluster: FakeCluster, url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMQ_HTTP_URL", url)
    assert ask("balance") == 0
    assert capsys.readouterr().out == "4 moves begun; `bmq cluster status` shows them\n"
    assert ask("balance", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"moves": 4}
    assert cluster.acts == [("balance", {})] * 2
    cluster.refuses = 200, {"moves": 0}
    assert ask("balance") == 0
    assert capsys.readouterr().out == "the brokers are even: nothing moves\n"


def test_move(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("move", "orders", "3", "broker-1b", "--http", url) == 0
    assert capsys.readouterr().out == "orders-3 is assigned to broker-1b\n"
    assert cluster.acts == [("move", {"topic": "orders", "partition": 3, "member": "broker-1b"})]
    with pytest.raises(SystemExit):
        ask("move", "orders", "-3", "broker-1b", "--http", url)


def test_log_levels_are_shown_and_set(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("log-level", "broker-1a", "--http", url) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["LOGGER", "LEVEL", "SET"],
        ["root", "INFO", "yes"],
        ["bmq.broker", "DEBUG", "yes"],
        ["bmq.broker.cleanup.janitor", "DEBUG"],
    ], "libraries' loggers are shown when they are asked for, or have a level of their own"
    assert ask("log-level", "broker-1a", "bmq.broker", "--http", url, "--json") == 0
    assert [json.loads(line)["logger"] for line in capsys.readouterr().out.splitlines()] == [
        "bmq.broker",
        "bmq.broker.cleanup.janitor",
    ]
    assert ask("log-level", "broker-1a", "bmq.brok", "--http", url) == 1
    assert "broker-1a has no logger 'bmq.brok'; leave it out" in capsys.readouterr().err
    cluster.refuses = 200, {"member": "broker-1a", "logger": "bmq", "level": "DEBUG", "is_set": True}
    assert ask("log-level", "broker-1a", "bmq", "debug", "--http", url) == 0
    assert capsys.readouterr().out == "bmq of broker-1a has level DEBUG, until it ends\n"


def test_a_log_level_reaches_the_member_under_its_name(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.refuses = None
    ask("log-level", "10.0.0.1:9093", "bmq", "default", "--http", url, "--json")
    assert cluster.acts == [("log-level 10.0.0.1%3A9093", {"logger": "bmq", "level": "default"})]


@pytest.mark.parametrize(
    "words",
    [
        ("balance",),
        ("move", "orders", "1", "b"),
        ("drain", "broker-1a"),
        ("log-level", "broker-1a"),
        ("log-level", "broker-1a", "bmq", "debug"),
    ],
)
def test_a_refusal_is_told(words: tuple[str, ...], cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.refuses = 409, {"error": "ambiguous_member", "message": "two members have this name"}
    assert ask(*words, "--http", url) == 1
    assert capsys.readouterr().err == "bmq: two members have this name\n"


@pytest.mark.parametrize("named", ["broker-1a", "broker-1a"[:9], "10.0.0.1:9093"])
def test_drain_waits_until_it_has_gone(named: str, cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("drain", named, "--http", url, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told.pop("seconds") >= 0
    assert told == {"member": "broker-1a", "partitions": 4, "shards": 0, "unassigned": 0}
    assert cluster.acts == [("drain", {"member": "broker-1a"})]
    assert "broker-1a" not in cluster.members


def test_a_drain_tells_how_far_it_is(url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drain a broker that hands over its four partitions, and has no shard, all at once: progress stays 0 of 4."""
    monkeypatch.setattr(progress, "LOG_S", 0.0)
    assert ask("drain", "broker-1a", "--http", url) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert set(lines) == {"bmq: drain broker-1a: 0 of 4 partitions and shards handed over (0 %)"}


@pytest.mark.parametrize("url", ["http://[::1", "http://u:secret@a\u2100b:80"])
def test_an_address_that_is_none(url: str, capsys: Told) -> None:
    assert ask("status", "--http", url) == 2
    told = capsys.readouterr().err
    assert "is not like http://127.0.0.1:9080" in told
    assert "secret" not in told


def test_names_of_members_reach_no_terminal_as_commands(
    cluster: FakeCluster, url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was asked may be anybody's."""
    monkeypatch.setattr(progress, "LOG_S", 0.0)
    evil = "broker-9\x1b[2J"
    cluster.members[evil] = member(evil, "broker", partitions=1)
    cluster.is_from_leader = False
    with cluster.console(evil) as asked:
        for words in (("status",), ("drain", evil)):
            ask(*words, "--http", asked)
            shown = capsys.readouterr()
            assert "broker-9\\x1b[2J" in shown.out
            assert "\x1b" not in shown.out + shown.err, words


def test_drain_of_what_nobody_can_tell(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("drain", "broker-1", "--http", url) == 1
    assert "'broker-1' may mean broker-1a, broker-1b; give more of the name" in capsys.readouterr().err
    assert ask("drain", "nobody", "--http", url) == 1
    assert "there is no member 'nobody'; there are broker-1a, " in capsys.readouterr().err
    assert cluster.acts == []


def test_the_last_of_a_role_is_drained_by_force_only(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("drain", "controller", "--http", url) == 1
    assert "is the last controller, coordinator: start another one first" in capsys.readouterr().err
    cluster.members["broker-1b"]["is_draining"] = True
    assert ask("drain", "broker-1a", "--http", url) == 1
    assert "broker-1a is the last broker" in capsys.readouterr().err
    assert cluster.acts == []
    cluster.unassigned = 4
    assert ask("drain", "broker-1a", "--http", url, "--force") == 1
    out, err = capsys.readouterr()
    assert "broker-1a has left after" in out
    assert "4 partitions have no owner" in err


def test_a_drain_that_takes_too_long_goes_on(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.drained_after = 1_000_000
    assert ask("drain", "broker-1a", "--http", url, "--timeout", "0.2") == 1
    err = capsys.readouterr().err
    assert "is still there and has 4 partitions and 0 shards; it continues" in err


def test_the_process_that_was_asked_may_be_the_one_that_goes(cluster: FakeCluster, url: str, capsys: Told) -> None:
    """Then another is asked; not one at the same address of another cluster."""
    with cluster.console("broker-1a", ends_with_drain=True) as own:
        assert ask("drain", "broker-1a", "--http", own) == 0
    assert "broker-1a has left" in capsys.readouterr().out


def test_of_the_only_process_the_end_of_its_console_is_the_end(capsys: Told) -> None:
    """Drain a single process, as over SQLite: its partitions have no owner until it is started again."""
    single = FakeCluster(member("0-1f", "broker", "controller", "coordinator", "proxy", partitions=3, shards=50))
    with single.console("0-1f", ends_with_drain=True) as own:
        assert ask("drain", "0-1f", "--http", own, "--force") == 1
    out, err = capsys.readouterr()
    assert "0-1f has left after" in out
    assert "3 partitions have no owner; start a broker" in err


def test_nobody_may_be_left_to_tell(cluster: FakeCluster, capsys: Told) -> None:
    stranger = FakeCluster(member("broker-1b", "broker"))
    stranger.cluster_id = "another"
    with stranger.console("broker-1b") as other, cluster.console("broker-1a", ends_with_drain=True) as own:
        cluster.members["broker-1b"]["http"] = other.removeprefix("http://")
        cluster.members["controller-1"]["http"] = ""
        assert ask("drain", "broker-1a", "--http", own, "--timeout", "1") == 2
    err = capsys.readouterr().err
    assert "broker-1a was told to drain; no server shows whether it has ended" in err


def test_an_answer_of_another_kind(
    cluster: FakeCluster, url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def something_else(asked: str) -> dict[str, Any]:
        return {"hello": "world"}

    monkeypatch.setattr(cluster, "status", something_else)
    assert ask("status", "--http", url) == 2
    assert "answers, but not as `bmq serve`" in capsys.readouterr().err

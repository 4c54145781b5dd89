"""``bmq cluster drain``, ``balance``, ``move`` and ``log-level`` on a console."""

from __future__ import annotations

import json

import pytest

from bmq.cli import progress
from tests.unit.cli.fake_console import FakeCluster, member
from tests.unit.cli.fake_console import ask_cluster as ask

pytestmark = pytest.mark.slow


Told = pytest.CaptureFixture[str]


def test_balance_prints_how_many_moves_begin(
    cluster: FakeCluster, url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BMQ_HTTP_URL", url)
    assert ask("balance") == 0
    assert capsys.readouterr().out == "4 moves begun; `bmq cluster status` shows them\n"
    assert ask("balance", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"moves": 4}
    assert cluster.acts == [("balance", {})] * 2
    cluster.refuses = 200, {"moves": 0}
    assert ask("balance") == 0
    assert capsys.readouterr().out == "the brokers are even: nothing moves\n"


def test_move_assigns_one_partition(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("move", "orders", "3", "broker-1b", "--http", url) == 0
    assert capsys.readouterr().out == "orders-3 is assigned to broker-1b\n"
    assert cluster.acts == [("move", {"topic": "orders", "partition": 3, "member": "broker-1b"})]
    with pytest.raises(SystemExit):
        ask("move", "orders", "-3", "broker-1b", "--http", url)


def test_log_levels_are_shown_and_set(cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("log-level", "broker-1a", "--http", url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:-1]] == [
        ["LOGGER", "LEVEL", "SET"],
        ["root", "INFO", "yes"],
        ["bmq.broker", "DEBUG", "yes"],
    ], "loggers of libraries and modules are shown when they are asked for, or have a level of their own"
    assert lines[-1] == "2 more have the level of the logger above; a LOGGER shows those below it"
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
def test_a_servers_refusal_is_printed_as_it_is(
    words: tuple[str, ...], cluster: FakeCluster, url: str, capsys: Told
) -> None:
    cluster.refuses = 409, {"error": "ambiguous_member", "message": "two members have this name"}
    assert ask(*words, "--http", url) == 1
    assert capsys.readouterr().err == "bmq: two members have this name\n"


@pytest.mark.parametrize("named", ["broker-1a", "broker-1a"[:9], "10.0.0.1:9093"])
def test_drain_waits_until_the_member_has_left(named: str, cluster: FakeCluster, url: str, capsys: Told) -> None:
    assert ask("drain", named, "--http", url, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("seconds") >= 0
    assert printed == {"member": "broker-1a", "partitions": 4, "shards": 0, "unassigned": 0, "unassigned_shards": 0}
    assert cluster.acts == [("drain", {"member": "broker-1a"})]
    assert "broker-1a" not in cluster.members


def test_a_drain_shows_its_progress(url: str, capsys: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drain a broker that hands over its four partitions, and has no shard, all at once: progress stays 0 of 4."""
    monkeypatch.setattr(progress, "LOG_S", 0.0)
    assert ask("drain", "broker-1a", "--http", url) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert set(lines) == {"bmq: drain broker-1a: 0 of 4 partitions and shards handed over (0 %)"}


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


def test_a_name_of_no_member_or_of_several_drains_none(cluster: FakeCluster, url: str, capsys: Told) -> None:
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
    assert "0 partitions and 0 shards moved" in out
    assert "4 partitions have no owner; start a broker" in err


def test_a_drain_of_the_last_coordinator_says_which_shards_are_left(
    cluster: FakeCluster, url: str, capsys: Told
) -> None:
    cluster.unassigned_shards = 50
    assert ask("drain", "controller-1", "--http", url, "--force") == 1
    out, err = capsys.readouterr()
    assert "0 partitions and 0 shards moved" in out
    assert "50 shards have no owner; start a coordinator" in err


def test_a_drain_waits_while_other_brokers_take_over_what_is_left(cluster: FakeCluster, url: str, capsys: Told) -> None:
    """The leader assigns the partitions of a member that left early in its next plan."""
    cluster.unassigned_after = iter([4, 4, 4, 2, 0])
    assert ask("drain", "broker-1a", "--http", url) == 0
    assert "4 partitions and 0 shards moved" in capsys.readouterr().out


def test_a_drain_continues_after_the_commands_timeout(cluster: FakeCluster, url: str, capsys: Told) -> None:
    cluster.drained_after = 1_000_000
    assert ask("drain", "broker-1a", "--http", url, "--timeout", "0.2") == 1
    err = capsys.readouterr().err
    assert "is still there and has 4 partitions and 0 shards; it continues" in err


def test_another_console_is_asked_when_the_drained_one_ends(cluster: FakeCluster, url: str, capsys: Told) -> None:
    """Then another is asked; not one at the same address of another cluster."""
    with cluster.console("broker-1a", ends_with_drain=True) as own:
        assert ask("drain", "broker-1a", "--http", own) == 0
    assert "broker-1a has left" in capsys.readouterr().out


def test_a_single_process_has_left_when_its_console_ends(capsys: Told) -> None:
    """Drain a single process, as over SQLite: its partitions have no owner until it is started again."""
    single = FakeCluster(member("0-1f", "broker", "controller", "coordinator", "proxy", partitions=3, shards=50))
    with single.console("0-1f", ends_with_drain=True) as own:
        assert ask("drain", "0-1f", "--http", own, "--force") == 1
    out, err = capsys.readouterr()
    assert "0-1f has left after" in out
    assert "3 partitions and 50 shards have no owner; start a broker and a coordinator" in err


def test_a_drain_fails_when_no_console_can_show_its_end(cluster: FakeCluster, capsys: Told) -> None:
    stranger = FakeCluster(member("broker-1b", "broker"))
    stranger.cluster_id = "another"
    with stranger.console("broker-1b") as other, cluster.console("broker-1a", ends_with_drain=True) as own:
        cluster.members["broker-1b"]["http"] = other.removeprefix("http://")
        cluster.members["controller-1"]["http"] = ""
        assert ask("drain", "broker-1a", "--http", own, "--timeout", "1") == 2
    err = capsys.readouterr().err
    assert "broker-1a was told to drain; no server shows whether it has ended" in err

"""``bmq topic`` on a cluster in memory: tables, JSON, exit status, what errors say."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.unit.cli.fake_admin import FakeAdmin, FakePartition, parse

pytestmark = pytest.mark.slow

Run = Callable[..., int]


def test_list(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders", FakePartition(), FakePartition())
    admin.add_topic("__consumer_offsets", FakePartition())
    assert bmq("topic", "list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC               PARTITIONS  REPLICATION  INTERNAL",
        "__consumer_offsets           1            2       yes",
        "orders                       2            2        no",
    ]
    assert bmq("topic", "list", "--exclude-internal", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "topic": "orders",
        "partitions": 2,
        "replication_factor": 2,
        "is_internal": False,
    }


def test_create(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("topic", "create", "orders", "--partitions", "4", "--config", "a=b=c", "--config", "empty=") == 0
    assert capsys.readouterr().out == "topic orders created: 4 partitions, replication factor 2\n"
    assert len(admin.topics["orders"]) == 4
    assert admin.configs["orders"] == {"a": "b=c", "empty": ""}
    assert bmq("topic", "create", "more", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "topic": "more",
        "created": True,
        "topic_id": "00000000-0000-0000-0000-000000000005",
        "partitions": 3,
        "replication_factor": 2,
    }


def test_copies_are_not_replicas_on_bmq(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Kafka's replicas are servers there; the copies of a topic's files are storage's."""
    assert bmq("topic", "create", "orders", "--partitions", "4", "--config", "flush.mode=hsync") == 0
    assert capsys.readouterr().out == "topic orders created: 4 partitions, 2 copies of its files\n"
    assert bmq("topic", "describe", "orders") == 0
    assert "  partitions   4, each served by 2 servers; /api/v1/topics shows the copies" in capsys.readouterr().out


def test_create_again(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders", FakePartition())
    assert bmq("topic", "create", "orders") == 1
    assert capsys.readouterr().err == (
        "bmq: topic orders was not created: there is a topic of that name already (TOPIC_ALREADY_EXISTS)\n"
    )
    assert bmq("topic", "create", "orders", "--if-not-exists") == 0
    assert len(admin.topics["orders"]) == 1


def test_create_only_asks(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("topic", "create", "orders", "--validate-only") == 0
    assert "could be created" in capsys.readouterr().out
    assert admin.topics == {}


def test_the_servers_reason_is_told(bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("topic", "create", "orders", "--config", "nonsense=1") == 1
    assert "Unknown topic config name: nonsense (INVALID_CONFIG)" in capsys.readouterr().err


def test_describe(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders", FakePartition(earliest=5, latest=1_000), FakePartition(leader=-1))
    admin.configs["orders"] = {"retention.ms": "1000"}
    assert bmq("topic", "describe", "orders") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "topic orders"
    assert lines[2:4] == ["  partitions   2, replication factor 2", "  configs      retention.ms=1000"]
    assert lines[4:7] == [
        "PARTITION  LEADER  EPOCH  REPLICAS  ISR  EARLIEST  LATEST  SIZE",
        "        0       1      7  1,2       1           5    1000  2.0 KiB",
        "        1       -      7  1,2       1           -       -  -",
    ]


def test_describe_has_an_empty_line_between_topics_only(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("orders", "visits"):
        admin.add_topic(name, FakePartition())
    assert bmq("topic", "describe") == 0
    out = capsys.readouterr().out
    assert out.count("\n\n") == 1
    assert not out.endswith("\n\n")


@pytest.mark.parametrize(
    ("listed", "given", "shown"), [(7, 7, 7), (7, -1, 7), (-1, 7, 7), (-1, 0, 0), (0, 7, 0), (-1, -1, None)]
)
def test_an_epoch_that_metadata_does_not_have_is_the_leaders_own(
    listed: int, given: int, shown: int | None, admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Metadata of BMQ never has it; of Kafka it has -1 right after a creation."""
    admin.add_topic("orders", FakePartition(epoch=listed, given_epoch=given))
    assert bmq("topic", "describe", "orders") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:3] == ["0", "1", "-" if shown is None else str(shown)]
    assert bmq("topic", "describe", "orders", "--json") == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["leader_epoch"] == shown


def test_a_partition_without_a_leader_has_no_epoch(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.add_topic("orders", FakePartition(leader=-1, epoch=-1))
    assert bmq("topic", "describe", "orders", "--json") == 0
    assert json.loads(capsys.readouterr().out)["partitions"][0]["leader_epoch"] is None


def test_configs_that_a_user_may_not_see_are_not_called_defaults(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.add_topic("orders", FakePartition(latest=9))
    admin.hides_configs = True
    assert bmq("topic", "describe", "orders") == 1
    out, err = capsys.readouterr()
    assert "  configs      -\n" in out
    assert err == "bmq: configs of topic orders: not authorised for DescribeConfigs on it\n"
    admin.hides_configs = False
    assert bmq("topic", "describe", "orders") == 0
    assert "  configs      defaults\n" in capsys.readouterr().out


def test_describe_as_json_goes_on_after_a_missing_one(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.add_topic("orders", FakePartition(latest=9))
    assert bmq("topic", "describe", "missing", "orders", "--json") == 1
    out, err = capsys.readouterr()
    facts = json.loads(out)
    assert (facts["topic"], facts["configs"]) == ("orders", {})
    assert facts["partitions"] == [
        {
            "partition": 0,
            "leader": 1,
            "leader_epoch": 7,
            "replicas": [1, 2],
            "isr": [1],
            "earliest": 0,
            "latest": 9,
            "bytes": 2048,
            "cleaning": None,
        }
    ]
    assert "topic missing: there is no such topic" in err


def test_alter(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders", FakePartition())
    admin.configs["orders"] = {"retention.ms": "1", "old": "x"}
    assert (
        bmq("topic", "alter", "orders", "--partitions", "3", "--config", "retention.ms=2", "--delete-config", "old")
        == 0
    )
    assert capsys.readouterr().out == "topic orders altered: 2 configs, now 3 partitions\n"
    assert admin.configs["orders"] == {"retention.ms": "2"}
    assert len(admin.topics["orders"]) == 3


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "nothing to change"),
        (("--config", "a=1", "--delete-config", "a"), 2, "a: either --config or --delete-config"),
        (("--config", "nonsense=1"), 1, "Unknown topic config name: nonsense (INVALID_CONFIG)"),
        (("--partitions", "1"), 1, "would not be an increase (INVALID_PARTITIONS)"),
    ],
)
def test_alter_refused(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, message: str
) -> None:
    admin.add_topic("orders", FakePartition())
    assert bmq("topic", "alter", "orders", *words) == status
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True)


def test_delete(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders")
    assert bmq("topic", "delete", "missing", "orders", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == {"topic": "orders", "deleted": True}
    assert "topic missing was not deleted: there is no such topic" in err
    assert admin.topics == {}
    assert bmq("topic", "delete", "missing", "--if-exists") == 0


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "x", "--partitions", "0"),
        ("topic", "create", "x", "--config", "retention.ms"),
        ("topic", "create", "x", "--config", "=1"),
        ("topic", "list", "--timeout", "0"),
        ("topic", "list", "--timeout", "soon"),
        ("topic", "delete"),
        ("topic",),
    ],
)
def test_wrong_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2


def test_names_of_topics_reach_no_terminal_as_commands(bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("topic", "delete", "--if-exists", "a\x1b[2J") == 0
    assert capsys.readouterr().out == "topic a\\x1b[2J did not exist\n"

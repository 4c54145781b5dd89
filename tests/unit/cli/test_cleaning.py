"""The cleaning of compacted topics in ``bmq topic describe``: over HTTP, in pages, and unknown where it cannot be."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bmq.cli import cleaning
from bmq.cli.cluster.http_client import Console
from tests.unit.cli.fake_admin import FakeAdmin, FakePartition
from tests.unit.cli.fake_console import FakeCluster

pytestmark = pytest.mark.slow

Run = Callable[..., int]
COMPACT = {"cleanup.policy": "compact,delete", "flush.mode": "hflush"}
CLEANED = {
    "reason": "below_ratio",
    "why": "its dirty ratio is not above min.cleanable.dirty.ratio",
    "dirty_percent": 12.345,
    "cleaned_ms": 1_700_000_000_000,
    "bytes_before": 4 << 20,
    "bytes_after": 1 << 20,
}
JUST_CLEANED = {**CLEANED, "reason": "", "why": "", "dirty_percent": 0.0}
UNKNOWN = dict.fromkeys(CLEANED) | {"reason": "unknown", "why": "its owner does not respond"}


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def http(cluster: FakeCluster) -> Iterator[str]:
    with cluster.console() as url:
        yield url


@pytest.fixture
def accounts(admin: FakeAdmin, cluster: FakeCluster) -> None:
    """Add a compacted topic of three partitions."""
    add(admin, cluster, "accounts", CLEANED, JUST_CLEANED, UNKNOWN)


def add(admin: FakeAdmin, cluster: FakeCluster, name: str, *states: dict[str, Any] | None) -> None:
    admin.add_topic(name, *(FakePartition() for _ in states))
    admin.configs[name] = dict(COMPACT)
    topic_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
    rows = [{"partition": number, "cleaning": state} for number, state in enumerate(states)]
    cluster.topics[name] = {"topic": {"name": name, "topic_id": topic_id}, "partitions": rows}


@pytest.mark.usefixtures("accounts")
def test_each_partition_has_a_line(bmq: Run, http: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("topic", "describe", "accounts", "--http", http) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        "PARTITION  DIRTY   CLEANED                   BEFORE   AFTER    NOT CLEANED NOW",
        "        0  12.3 %  2023-11-14T22:13:20.000Z  4.0 MiB  1.0 MiB  below_ratio: its dirty ratio is not above"
        " min.cleanable.dirty.ratio",
        "        1  0.0 %   2023-11-14T22:13:20.000Z  4.0 MiB  1.0 MiB  -",
        "        2  -       -                         -        -        unknown: its owner does not respond",
    ]


@pytest.mark.usefixtures("accounts")
def test_json_has_the_states_as_the_api_has_them(bmq: Run, http: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("topic", "describe", "accounts", "--json", "--http", http) == 0
    out, err = capsys.readouterr()
    assert [each["cleaning"] for each in json.loads(out)["partitions"]] == [CLEANED, JUST_CLEANED, UNKNOWN]
    assert err == ""


@pytest.mark.usefixtures("accounts")
def test_the_address_may_come_from_the_environment(
    bmq: Run, http: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BMQ_HTTP_URL", http)
    assert bmq("topic", "describe", "accounts", "--bootstrap-server", "there:9092") == 0
    assert "below_ratio: " in capsys.readouterr().out


@pytest.mark.usefixtures("accounts")
def test_servers_of_this_machine_are_asked_by_default(
    bmq: Run, http: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cleaning, "DEFAULT_HTTP", http)
    assert bmq("topic", "describe", "accounts") == 0
    assert "below_ratio: " in capsys.readouterr().out


@pytest.mark.usefixtures("accounts")
def test_partitions_are_read_in_pages(
    bmq: Run, cluster: FakeCluster, http: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cleaning, "PAGE", 2)
    assert bmq("topic", "describe", "accounts", "--json", "--http", http) == 0
    assert len(json.loads(capsys.readouterr().out)["partitions"]) == 3
    path = "/api/v1/topics/accounts"
    assert cluster.topic_pages == [f"{path}?after=-1&limit=2", f"{path}?after=1&limit=2"]


@pytest.mark.parametrize(
    "configs",
    [{}, {"flush.mode": "hflush"}, {"cleanup.policy": "compact"}, {**COMPACT, "cleanup.policy": "delete"}],
)
def test_other_topics_cost_no_request(
    configs: dict[str, str], admin: FakeAdmin, bmq: Run, cluster: FakeCluster, http: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Describe topics of BMQ that are not compacted, and a compacted one of Kafka."""
    add(admin, cluster, "orders", CLEANED)
    admin.configs["orders"] = configs
    assert bmq("topic", "describe", "orders", "--http", http) == 0
    assert "NOT CLEANED NOW" not in capsys.readouterr().out
    assert cluster.topic_pages == []


def test_internal_topics_are_not_cleaned(admin: FakeAdmin, bmq: Run, cluster: FakeCluster, http: str) -> None:
    add(admin, cluster, "__consumer_offsets", None)
    assert bmq("topic", "describe", "--http", http) == 0
    assert cluster.topic_pages == []


@pytest.mark.usefixtures("accounts")
def test_without_an_address_the_cleaning_is_not_known(bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Describe over another server's Kafka address: no HTTP address is guessed."""
    elsewhere = ("topic", "describe", "accounts", "--bootstrap-server", "there:9092")
    why = "the cleaning of topic accounts is not known: it needs a server's HTTP address: --http"
    assert bmq(*elsewhere) == 0
    assert f"\nnote: {why}" in capsys.readouterr().out
    assert bmq(*elsewhere, "--json") == 0
    out, err = capsys.readouterr()
    assert [each["cleaning"] for each in json.loads(out)["partitions"]] == [None] * 3
    assert err.startswith(f"bmq: warning: {why}")


@pytest.mark.usefixtures("accounts")
def test_a_server_that_does_not_respond_is_asked_once(
    admin: FakeAdmin, bmq: Run, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    add(admin, cluster, "users", CLEANED)
    with cluster.console() as url:
        pass
    opened = []
    real = Console.topic

    def topic(console: Console, name: str, after: int, limit: int) -> Any:
        opened.append(name)
        return real(console, name, after, limit)

    monkeypatch.setattr(Console, "topic", topic)
    assert bmq("topic", "describe", "--http", url) == 0
    out = capsys.readouterr().out
    assert out.count("is not known: ") == 2
    assert "Connection refused: is it the HTTP address of `bmq serve`?" in out
    assert opened == ["accounts"]


@pytest.mark.usefixtures("accounts")
def test_an_address_of_another_cluster_is_found_by_the_topics_id(
    bmq: Run, cluster: FakeCluster, http: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.topics["accounts"]["topic"]["topic_id"] = str(uuid.UUID(int=1))
    assert bmq("topic", "describe", "accounts", "--http", http) == 0
    assert "another id at the HTTP address: is it of another cluster?" in capsys.readouterr().out
    del cluster.topics["accounts"]
    assert bmq("topic", "describe", "accounts", "--http", http) == 0
    assert "is not known: there is no topic 'accounts'" in capsys.readouterr().out


@pytest.mark.usefixtures("accounts")
def test_a_server_of_an_earlier_version_does_not_have_it(
    bmq: Run, cluster: FakeCluster, http: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in cluster.topics["accounts"]["partitions"]:
        del each["cleaning"]
    assert bmq("topic", "describe", "accounts", "--http", http) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("unknown: the server at the HTTP address is of an earlier version")
    cluster.topics["accounts"] = {"partitions": []}
    assert bmq("topic", "describe", "accounts", "--http", http) == 0
    assert "answers, but not as `bmq serve`" in capsys.readouterr().out
    assert bmq("topic", "describe", "accounts", "--http", "ftp://x") == 2

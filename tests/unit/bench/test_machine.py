"""The description of a machine: commands without its folders, and the heaps that servers really have."""

import pytest

from bench.machine import command_line, rows, server_versions, summary, versions
from bench.results import Results


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["/opt/venv/bin/bmq", "serve", "--root", "file:///tmp/x/root"], "bmq serve --root file://root"),
        (["bmq", "serve", "--root", "hdfs://127.0.0.1:20000/bench"], "bmq serve --root hdfs://127.0.0.1:20000/bench"),
        (["java", "-Xmx320m", "-cp", "/a/conf:/b/jars/*", "a.b.NameNode"], "java -Xmx320m -cp ... a.b.NameNode"),
        (["java", "-Djava.io.tmpdir=/tmp/a/b", "-Dx=file:///w/y.properties"], "java -Djava.io.tmpdir=b -Dx=file://y.properties"),
        (["etcd", "--data-dir", "/tmp/etcd/data/etcd-0"], "etcd --data-dir etcd-0"),
    ],
)  # fmt: skip
def test_a_command_line_shows_no_folder_of_the_machine(command: list[str], shown: str) -> None:
    assert command_line(command, {}) == shown


def test_a_command_line_begins_with_its_settings() -> None:
    assert command_line(["bmq", "serve"], {"BMQ_B": "2", "BMQ_A": "1"}) == "BMQ_A=1 BMQ_B=2 bmq serve"


def test_servers_are_counted_by_kind_with_their_heaps() -> None:
    servers = {
        "kafka-3/kafka-1": "java -Xms256m -Xmx1024m kafka.Kafka",
        "kafka-3/kafka-2": "java -Xms256m -Xmx1024m kafka.Kafka",
        "bmq-3/bmq": "bmq serve",
        "bmq-3/bmq-1": "bmq serve",
        "bmq-3/namenode-0": "java -Xmx320m NameNode",
        "bmq-3/datanode-0": "java -Xmx256m DataNode",
    }
    assert summary(servers) == (
        "kafka-3: 2 kafka (heap 1024 MB); bmq-3: 2 bmq, 1 namenode (heap 320 MB), 1 datanode (heap 256 MB)"
    )


def test_the_table_has_a_row_for_versions_and_servers_only_where_they_are_known() -> None:
    results = Results(command="", machine={"CPU": "one"}, plan={}, started="")
    assert rows(results) == [("CPU", "one")]
    results.versions, results.servers = {"Python": "3"}, {"kafka-1": "java -Xmx8m"}
    assert rows(results) == [("CPU", "one"), ("Versions", "Python 3"), ("Servers", "1 kafka (heap 8 MB)")]


def test_versions_are_of_what_ran() -> None:
    assert {"Python", "librdkafka", "uvloop"} <= set(versions())
    assert server_versions({"bmq"}) == {}

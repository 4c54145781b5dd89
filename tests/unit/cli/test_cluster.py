"""``bmq cluster`` on a cluster in memory, and on a console's HTTP address."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.unit.cli.fake_admin import FakeAdmin, FakePartition

Run = Callable[..., int]
NODE = {"node_id": 1, "version": "0.1.0", "connections": 4, "partitions_by_state": {"WRITE": 3, "FENCE": 1}}


@pytest.fixture
def http() -> Iterator[Callable[[object], str]]:
    """A server whose /api/v1/cluster answers this JSON: what to answer to its address."""
    answers: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/v1/cluster" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answers[-1]).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing on standard error."""

    def answer(facts: object) -> str:
        answers.append(facts)
        return f"http://127.0.0.1:{server.server_port}"

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield answer
        server.shutdown()
        thread.join()


def test_status(admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
    admin.add_topic("orders", FakePartition(), FakePartition())
    assert bmq("cluster", "status") == 0
    assert capsys.readouterr().out.splitlines() == [
        "cluster abcdefghijklmnopqrstuv",
        "  topics       1",
        "  partitions   2, none without a leader",
        "NODE  HOST       PORT  RACK  CONTROLLER",
        "   1  127.0.0.1  9001     -          no",
        "   2  127.0.0.1  9002     -         yes",
    ]


def test_status_fails_when_a_partition_cannot_be_used(
    admin: FakeAdmin, bmq: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.add_topic("orders", FakePartition(), FakePartition(leader=-1))
    assert bmq("cluster", "status", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["partitions"], told["partitions_without_leader"]) == (2, 1)
    assert told["brokers"][0] == {"node_id": 1, "host": "127.0.0.1", "port": 9001, "rack": None}
    assert "node" not in told


def test_status_with_the_console(bmq: Run, http: Callable[[object], str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bmq("cluster", "status", "--http", http(NODE) + "/") == 0
    out = capsys.readouterr().out
    assert "version 0.1.0, 4 connections" in out
    assert "1 FENCE, 3 WRITE" in out
    assert bmq("cluster", "status", "--http", http(NODE), "--json") == 0
    assert json.loads(capsys.readouterr().out)["node"] == NODE


def test_status_with_an_address_that_is_no_console(
    bmq: Run, http: Callable[[object], str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bmq("cluster", "status", "--http", http(["something else"])) == 2
    assert "answers, but not as `bmq serve`" in capsys.readouterr().err
    assert bmq("cluster", "status", "--http", http(NODE) + "/elsewhere") == 2
    assert "Not Found" in capsys.readouterr().err
    assert bmq("cluster", "status", "--http", "127.0.0.1:9080") == 2
    assert "is not like http://" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert bmq("cluster", "status", "--http", f"http://127.0.0.1:{port}") == 2
    assert "Connection refused: is it the HTTP address of `bmq serve`?" in capsys.readouterr().err


def test_configs(bmq: Run, capsys: pytest.CaptureFixture[str]) -> None:
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

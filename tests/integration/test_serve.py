"""``bmq serve`` as a process: its start, its errors if it cannot start, its HTTP, and its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from tests.services.bmq import BmqServer
from tests.services.processes import free_ports, wait_for
from tests.unit.console.test_http import OPENAPI, faults

BMQ = str(Path(sys.executable).with_name("bmq"))
TIMEOUT_S = 60.0


def run(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BMQ, "serve", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def produce(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce("orders", str(number).encode())
    assert producer.flush(30) == 0


def consume(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[int] = []
    while len(values) < count:
        for message in consumer.consume(count - len(values), 30):
            assert message.error() is None, message.error()
            values.append(int(message.value() or b""))
    consumer.close()
    return values


@pytest.mark.smoke
def test_without_any_setting(tmp_path: Path) -> None:
    """All roles, the fixed addresses, data below the working directory; SIGTERM drains and ends with 0."""
    for port in (9092, 9080):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is taken on this machine")
    server = subprocess.Popen([BMQ, "serve"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("ready kafka=127.0.0.1:9092 http=http://127.0.0.1:9080"), line
        produce("127.0.0.1:9092", 10)
        assert consume("127.0.0.1:9092", 10) == list(range(10))
        assert (tmp_path / "bmq-data" / "meta.db").exists()
        server.send_signal(signal.SIGTERM)
        assert server.wait(TIMEOUT_S) == 0
        assert server.stdout.read() == "", "one line, no more"
    finally:
        server.kill()
        server.communicate()


@pytest.mark.smoke
def test_data_survives_a_polite_restart(tmp_path: Path) -> None:
    with BmqServer((tmp_path / "root").as_uri(), folder=tmp_path) as server:
        produce(server.bootstrap, 100)
        assert consume(server.bootstrap, 50)[:50] == list(range(50))
        server.stop()
        server.start()
        produce(server.bootstrap, 1)
        topics = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=30).topics
        assert "orders" in topics


def test_http(tmp_path: Path) -> None:
    """Ready, metrics in Prometheus' form, and the JSON API with what was produced."""
    with BmqServer((tmp_path / "root").as_uri(), folder=tmp_path) as server:
        produce(server.bootstrap, 100)
        assert len(consume(server.bootstrap, 100)) == 100
        transactional = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "g"})
        transactional.init_transactions(TIMEOUT_S)
        for path in ("/healthz", "/readyz"):
            with urllib.request.urlopen(server.http + path, timeout=10) as response:
                assert response.status == 200
        with urllib.request.urlopen(f"{server.http}/metrics", timeout=10) as response:
            metrics = response.read().decode()
        assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="orders"} 100.0' in metrics
        cluster: dict[str, Any] = {}

        def is_served() -> bool:
            """Return whether all partitions are open; the offsets topic's are only after the group's first response."""
            cluster.update(get(f"{server.http}/api/v1/cluster"))
            return bool(cluster["partitions_by_state"].get("WRITE") == cluster["partitions"])

        wait_for(is_served, "all partitions in WRITE", timeout_s=TIMEOUT_S)
        assert cluster["brokers"][0]["port"] == server.port
        topic = get(f"{server.http}/api/v1/topics/orders")
        assert sum(each["high_watermark"] for each in topic["partitions"]) == 100
        group = get(f"{server.http}/api/v1/groups/g")
        assert sum(each["offset"] for each in group["offsets"]) == 100
        for path, operations in OPENAPI["paths"].items():
            if path.startswith("/api/v1/") and "get" in operations:
                known = {"name": "orders", "id": "g", "partition": 0, "member": cluster["node_id"]}
                filled = path.format(**known)
                parameters = [*operations.get("parameters", ()), *operations["get"].get("parameters", ())]
                needed = {each["name"] for each in parameters if each["in"] == "query" and each.get("required")}
                filled += "?" + urllib.parse.urlencode({name: known[name] for name in sorted(needed)})
                ((_, content),) = operations["get"]["responses"]["200"]["content"].items()
                assert faults(get(server.http + filled), content["schema"]) == [], path
        (record,) = get(f"{server.http}/api/v1/topics/orders/records?partition=0&offset=7&limit=1")["records"]
        assert (record["offset"], record["value"]["text"]) == (7, "7")
        with pytest.raises(urllib.error.HTTPError) as missing:
            get(f"{server.http}/api/v1/topics/none")
        with missing.value as response:
            assert response.code == 404


def test_clients_stay_on_the_listener_that_they_came_to(tmp_path: Path) -> None:
    """Connect two client libraries by each listener: metadata names the address of that listener only."""
    inside, outside = free_ports(2)
    settings = {
        "BMQ_LISTENERS": f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "BMQ_ADVERTISED_LISTENERS": f"OUTSIDE://localhost:{outside}",
        "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
    }
    with BmqServer(tmp_path.joinpath("log").as_uri(), environment=settings) as server:
        advertised = {"127.0.0.1": inside, "localhost": outside}
        assert f"kafka=INSIDE://127.0.0.1:{inside},OUTSIDE://localhost:{outside} " in server.log.read_text()
        for host, port in advertised.items():
            bootstrap = f"{host}:{port}"
            librdkafka = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30)
            assert [f"{each.host}:{each.port}" for each in librdkafka.brokers.values()] == [bootstrap]
            admin = KafkaAdminClient(bootstrap_servers=bootstrap)
            assert [(each["host"], each["port"]) for each in admin.describe_cluster()["brokers"]] == [(host, port)]
            admin.close()
        produce(f"localhost:{outside}", 10)
        assert consume(f"127.0.0.1:{inside}", 10) == list(range(10))
    server.remove(keep_log=False)


def test_a_second_server_on_the_same_data_is_refused(tmp_path: Path) -> None:
    root, meta = (tmp_path / "root").as_uri(), f"sqlite:///{tmp_path / 'meta.db'}"
    with BmqServer(root, meta, folder=tmp_path):
        ports = [f"127.0.0.1:{port}" for port in free_ports(3)]
        second = run(
            "--root", root, "--meta", meta, "--listen", ports[0], "--http", ports[1], "--internal", ports[2],
            folder=tmp_path,
        )  # fmt: skip
    assert second.returncode == 1
    assert "meta.db" in second.stderr
    assert "Traceback" not in second.stderr


def test_an_open_port_must_be_asked_for(tmp_path: Path) -> None:
    """Refuse an address that others reach, say how it is secured, and take it with --insecure, with a warning."""
    kafka, http = (f"0.0.0.0:{port}" for port in free_ports(2))
    refused = run("--listen", kafka, "--http", http, folder=tmp_path)
    assert refused.returncode == 2
    for said in (kafka, http, "ssl.client.auth=required", "http_authentication=basic", "--insecure"):
        assert said in refused.stderr
    assert not (tmp_path / "bmq-data" / "log").exists()
    server = subprocess.Popen(
        [BMQ, "serve", "--listen", kafka, "--http", http, "--insecure"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline().startswith("ready ")
    produce(kafka.replace("0.0.0.0", "127.0.0.1"), 10)
    server.send_signal(signal.SIGTERM)
    _, log = server.communicate(timeout=TIMEOUT_S)
    assert "since insecure is set" in log
    data = tmp_path / "bmq-data"
    assert {path.stat().st_mode & 0o777 for path in (data, *data.rglob("*")) if path.is_dir()} == {0o700}
    assert {path.stat().st_mode & 0o077 for path in data.rglob("*") if path.is_file()} == {0}


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        http = f"127.0.0.1:{free_ports(1)[0]}"
        for arguments, flag in (
            (("--listen", address, "--http", http), "--listen"),
            (("--listen", "127.0.0.1:0", "--http", address), "--http"),
        ):
            refused = run(*arguments, folder=tmp_path)
            assert refused.returncode == 1
            assert address in refused.stderr
            assert flag in refused.stderr
            assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--meta", "etcd://127.0.0.1:1"), "etcd at 127.0.0.1:1 cannot be used"),
        (("--meta", "redis://x"), "names no key-value store"),
        (("--root", "s3://bucket"), "unknown root"),
        (("--root", "webhdfs://127.0.0.1:1/bmq"), "give the same cluster's hdfs:// address"),
        (("--root", Path(__file__).as_uri()), "is a file; a root is a folder"),
        (("--root", "hdfs://127.0.0.1:1/bmq"), "does not respond"),
        (("--advertise", "0.0.0.0:9092"), "clients cannot connect"),
        (("--roles", "proxy"), "one process"),
        (("--config", "missing.toml"), "missing.toml"),
    ],
)
def test_what_cannot_be_served_is_said(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    refused = run(*arguments, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", folder=tmp_path)
    assert refused.returncode in (1, 2)
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_root_of_another_cluster_is_refused(tmp_path: Path) -> None:
    root = (tmp_path / "root").as_uri()
    with BmqServer(root, folder=tmp_path / "a"):
        pass
    other = run(
        "--root", root, "--meta", f"sqlite:///{tmp_path / 'b.db'}", "--listen", "127.0.0.1:0", "--http",
        "127.0.0.1:0", folder=tmp_path,
    )  # fmt: skip
    assert other.returncode == 1
    assert "belongs to cluster" in other.stderr

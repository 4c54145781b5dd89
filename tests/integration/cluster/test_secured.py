"""Three processes with a secret, or TLS, over a real etcd and a local folder: who is kept out, how a secret changes.

No process is down for longer than a restart takes, and what was produced before each step is read after it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
import trustme
from confluent_kafka import Consumer, Producer

from tests.integration.cluster.conftest import SETTINGS
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for

SECRET, OTHER = secrets.token_hex(32), secrets.token_hex(32)
PARTITIONS = 6


class Traffic:
    """Records that are produced and read through every process in turn."""

    def __init__(self, cluster: BmqCluster) -> None:
        self._cluster = cluster
        self._sent = 0
        create_topic(cluster.bootstrap, "t", PARTITIONS)

    def check(self) -> None:
        """Produce through every process, and read all that was ever produced through every process."""
        names = self._cluster.names(NODE)
        for name in names:
            producer = Producer({"bootstrap.servers": self._cluster[name].bootstrap})
            for at in range(PARTITIONS):
                producer.produce("t", b"%d" % self._sent, partition=at)
                self._sent += 1
            assert producer.flush(60) == 0
        for name in names:
            consumer = Consumer({
                "bootstrap.servers": self._cluster[name].bootstrap, "auto.offset.reset": "earliest",
                "group.id": f"{name}-{self._sent}",
            })  # fmt: skip
            consumer.subscribe(["t"])
            values: list[int] = []
            while len(values) < self._sent:
                messages = consumer.consume(self._sent - len(values), 60)
                assert messages, f"{name} gave {len(values)} records of {self._sent}"
                values += [int(message.value() or b"") for message in messages if not message.error()]
            consumer.close()
            assert sorted(values) == list(range(self._sent))


def cluster(root: Path, etcd: EtcdCluster, **environment: str) -> BmqCluster:
    return BmqCluster(
        root.as_uri(), etcd, proxies=0, brokers=0, controllers=0, coordinators=0, nodes=3,
        environment={**SETTINGS, "BMQ_CLUSTER": "bmq", **environment},
    )  # fmt: skip


def wait_end(server: BmqServer) -> None:
    wait_for(lambda: not server.process.is_running, "the end of the process that is kept out", timeout_s=60)


def text_of(server: BmqServer) -> str:
    return server.log.read_text()


@pytest.mark.parametrize("given", [{"BMQ_INTERNAL_SECRET": OTHER}, {}], ids=["another secret", "no secret"])
def test_a_process_without_the_secret_is_kept_out_and_the_cluster_goes_on(
    given: dict[str, str], tmp_path: Path
) -> None:
    with EtcdCluster() as etcd, cluster(tmp_path, etcd, BMQ_INTERNAL_SECRET=SECRET) as three:
        traffic = Traffic(three)
        traffic.check()
        members = three.registered()
        fourth = BmqServer(tmp_path.as_uri(), etcd.url, environment={**SETTINGS, **given})
        fourth.start(wait=False)
        wait_end(fourth)
        said = text_of(fourth)
        assert "this process and a member do not accept each other" in said
        assert "ready" not in said.split()
        logs = "".join(text_of(each) for each in three.members.values())
        assert "the other process does not have this cluster's secret" in logs
        assert SECRET not in logs + said
        assert OTHER not in logs + said
        assert three.registered() == members
        traffic.check()
        fourth.remove(keep_log=False)


def walk(three: BmqCluster, steps: Iterable[Mapping[str, str]]) -> str:
    """Restart the processes one after another for each step's settings, with traffic between; return all logs."""
    traffic = Traffic(three)
    traffic.check()
    for step in steps:
        for name in three.names(NODE):
            three[name].stop()
            three[name].process.environment = {**SETTINGS, **step}
            three.start_again(name)
        traffic.check()
    return "".join(text_of(each) for each in three.members.values())


def test_an_open_cluster_gets_a_secret_and_then_another_one_process_by_process(tmp_path: Path) -> None:
    steps = (
        {"BMQ_INTERNAL_SECRET": SECRET, "BMQ_INTERNAL_SECRET_REQUIRED": "false"},
        {"BMQ_INTERNAL_SECRET": SECRET},
        {"BMQ_INTERNAL_SECRET": f"{SECRET},{OTHER}"},
        {"BMQ_INTERNAL_SECRET": f"{OTHER},{SECRET}"},
        {"BMQ_INTERNAL_SECRET": OTHER},
    )
    with EtcdCluster() as etcd, cluster(tmp_path, etcd) as three:
        logs = walk(three, steps)
        assert "does not have this cluster's secret" not in logs


def test_an_open_cluster_gets_certificates_and_then_another_authority_process_by_process(tmp_path: Path) -> None:
    """Walk the steps of docs/operations/internal-port.md: nobody is kept out meanwhile, and a process without TLS is at
    the end.
    """
    first, second = trustme.CA(), trustme.CA()
    root = tmp_path / "root"
    root.mkdir()
    own, new = certificates(tmp_path, first, "own"), certificates(tmp_path, second, "new")
    both = tmp_path / "both-ca.pem"
    both.write_bytes(first.cert_pem.bytes() + second.cert_pem.bytes())
    trusts_both = {"BMQ_INTERNAL_SSL_TRUSTSTORE_LOCATION": str(both)}
    steps = (
        {**own, "BMQ_INTERNAL_SSL_REQUIRED": "false"},
        own,
        {**own, **trusts_both},
        {**new, **trusts_both},
        new,
    )
    with EtcdCluster() as etcd, cluster(root, etcd) as three:
        logs = walk(three, steps)
        assert "this process and a member do not accept each other" not in logs
        open_one = BmqServer(root.as_uri(), etcd.url, environment=SETTINGS)
        open_one.start(wait=False)
        wait_end(open_one)
        assert "this process and a member do not accept each other" in text_of(open_one)
        open_one.remove(keep_log=False)


def certificates(folder: Path, authority: trustme.CA, name: str) -> dict[str, str]:
    """Return the settings of a process with a certificate of this authority."""
    keystore, truststore = folder / f"{name}.pem", folder / f"{name}-ca.pem"
    keystore.write_bytes(authority.issue_cert(name).private_key_and_cert_chain_pem.bytes())
    authority.cert_pem.write_to_path(truststore)
    return {
        "BMQ_INTERNAL_SSL_KEYSTORE_LOCATION": str(keystore),
        "BMQ_INTERNAL_SSL_TRUSTSTORE_LOCATION": str(truststore),
    }


def test_processes_with_certificates_talk_and_others_are_kept_out(tmp_path: Path) -> None:
    authority = trustme.CA()
    settings = certificates(tmp_path, authority, "member")
    root = tmp_path / "root"
    root.mkdir()
    with EtcdCluster() as etcd, cluster(root, etcd, **settings) as three:
        traffic = Traffic(three)
        traffic.check()
        members = three.registered()
        for given in (certificates(tmp_path, trustme.CA(), "alien"), {}, {"BMQ_INTERNAL_SECRET": SECRET}):
            fourth = BmqServer(root.as_uri(), etcd.url, environment={**SETTINGS, **given})
            fourth.start(wait=False)
            wait_end(fourth)
            assert "this process and a member do not accept each other" in text_of(fourth)
            fourth.remove(keep_log=False)
        assert three.registered() == members
        three.kill("node-1")
        three.start_again("node-1")
        traffic.check()

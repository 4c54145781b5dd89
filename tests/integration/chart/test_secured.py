"""The chart with no open port: TLS, SASL, ACLs, log-ins and mutual TLS, with secrets as mounted files.

The pods start and pass their probes, over an etcd that asks for a user; clients that show who they are, by a password
or a certificate, are served, inside and outside, by Kafka's protocol and by HTTP, and others are not; a certificate is
renewed without a restart; no secret is in a command, an environment or a log.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chart.render import NAMESPACE, RELEASE, Object, template
from tests.integration.chart.conftest import Site
from tests.services.etcd import EtcdCluster
from tests.services.pods import decoded
from tests.services.processes import wait_for

FULLNAME = f"{RELEASE}-bmq"
PROXY = f"{FULLNAME}-proxy-0"
PASSWORD, BOBS, ETCDS = "admin-s3cret", "bob-s3cret", "etcd-s3cret"
CLUSTER = "secured"
MTLS_PORT = 9095
RELOAD_WITHIN_S = 30.0


class Secured:
    """Running release, and the authority of its certificates."""

    def __init__(self, site: Site, etcd: EtcdCluster, folder: Path) -> None:
        self.pods = site.workloads()
        self.etcd = etcd
        self.folder = folder
        self.authority = trustme.CA()
        self.clients = trustme.CA()
        self.members = trustme.CA()
        self.host = self.pods.address(PROXY)
        self.trust = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.trust)
        values = {
            "insecure": False,
            "storage": {"root": f"{site.hdfs.root}/secured"},
            "etcd": {"endpoints": etcd.endpoints, "user": CLUSTER, "passwordSecret": {"name": "etcd-user"}},
            "clusterName": CLUSTER,
            "listener": {"protocol": "SASL_SSL", "tls": {"secret": "kafka-tls"}},
            "moreListeners": [
                {
                    "name": "MTLS", "port": MTLS_PORT, "protocol": "SSL",
                    "tls": {
                        "secret": "kafka-tls", "clientAuth": "required", "clientCaSecret": "clients-ca",
                        "principalMappingRules": "RULE:^.*CN=(.*?)(,.*)?$/$1/L",
                    },
                }
            ],
            "external": {
                "enabled": True, "advertisedHosts": [self.host], "protocol": "SASL_SSL", "tls": {"secret": "kafka-tls"},
                "mechanisms": ["SCRAM-SHA-512", "PLAIN"],
            },
            "sasl": {"plain": {"secret": "plain-users"}},
            "authorization": {"enabled": True, "superUsers": ["User:admin"]},
            "firstUser": {"name": "admin", "passwordSecret": {"name": "admin-password"}},
            "http": {"tls": {"secret": "http-tls"}, "authentication": "basic"},
            "internalTls": {"secret": "internal-tls"},
            "config": {"cache_bytes": 64 << 20, "offsets.topic.num.partitions": 8},
            "proxy": {"replicas": 1}, "broker": {"replicas": 1}, "controller": {"replicas": 1},
            "coordinator": {"replicas": 1},
        }  # fmt: skip
        self._values = folder / "values.json"  # JSON is YAML
        self._values.write_text(json.dumps(values))
        self._rendered = template(values=[self._values])  # once: its internal secret is made anew each time

    def objects(self) -> list[Object]:
        """Return what is rendered, with the Secrets that must exist; their certificates are new each time."""
        domain = f"{NAMESPACE}.svc.cluster.local"
        names = [f"{FULLNAME}-bootstrap.{domain}", f"{PROXY}.{domain}", f"{FULLNAME}-http.{domain}", self.host]
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        secrets = {
            "kafka-tls": tls_secret(self.authority, *names),
            "http-tls": tls_secret(self.authority, *names),
            "internal-tls": tls_secret(self.members, "member"),
            "plain-users": {"users": f'{module} required user_bob="{BOBS}";'},
            "admin-password": {"password": f"{PASSWORD}\n"},
            "etcd-user": {"password": ETCDS},
            "clients-ca": {"ca.crt": self.clients.cert_pem.bytes().decode()},
        }
        made = [{"kind": "Secret", "metadata": {"name": name}, "stringData": data} for name, data in secrets.items()]
        return [*self._rendered, *made]

    def client(self, mechanism: str, user: str, password: str) -> dict[str, Any]:
        """Return a client's settings for the listener outside."""
        return {
            "bootstrap.servers": f"{self.host}:9094", "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.trust), "sasl.mechanism": mechanism, "sasl.username": user,
            "sasl.password": password,
        }  # fmt: skip

    def certificate(self, authority: trustme.CA, name: str) -> Path:
        """Return the file of a client's certificate by this authority, with its key."""
        path = self.folder / f"{name}.pem"
        issued = authority.issue_cert(f"{name}.example.org", common_name=name)
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def topics(self, certificate: Path) -> set[str]:
        """Return the topics that a client of the listener MTLS is shown."""
        settings: dict[str, Any] = {
            "bootstrap.servers": f"{self.host}:{MTLS_PORT}", "security.protocol": "SSL",
            "ssl.ca.location": str(self.trust), "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(certificate),
        }  # fmt: skip
        return set(AdminClient(settings).list_topics(timeout=30).topics)

    def mtls_alert(self, certificate: Path | None) -> str:
        """Return why the listener MTLS ends a client's handshake, by its TLS alert."""
        context = ssl.create_default_context(cafile=str(self.trust))
        if certificate is not None:
            context.load_cert_chain(certificate)
        with (
            socket.create_connection((self.host, MTLS_PORT), timeout=30) as plain,
            pytest.raises(ssl.SSLError) as found,
            context.wrap_socket(plain, server_hostname=self.host) as secured,
        ):
            secured.recv(1)
        return str(found.value.reason)

    def http(self, path: str, user: str = "", password: str = "") -> int:
        """Return the status of a GET."""
        request = urllib.request.Request(f"https://{self.host}:9080{path}")
        if user:
            request.add_header("Authorization", f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}")
        context = ssl.create_default_context(cafile=str(self.trust))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(request, timeout=30) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code


def tls_secret(authority: trustme.CA, *names: str) -> dict[str, str]:
    """Return what a Secret of the type kubernetes.io/tls by cert-manager holds."""
    issued = authority.issue_cert(*names)
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    return {
        "tls.crt": chain.decode(),
        "tls.key": issued.private_key_pem.bytes().decode(),
        "ca.crt": authority.cert_pem.bytes().decode(),
    }


@pytest.fixture(scope="module")
def release(site: Site, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Secured]:
    """Yield a release that is started, with its first user."""
    failed = request.session.testsfailed
    with EtcdCluster(host=site.etcd.host) as etcd:
        etcd.protect(CLUSTER, ETCDS, f"/{CLUSTER}/")
        release = Secured(site, etcd, tmp_path_factory.mktemp("secured"))
        yield from started(release, request, failed)


def started(release: Secured, request: pytest.FixtureRequest, failed: int) -> Iterator[Secured]:
    try:
        release.pods.apply(release.objects())  # each pod is ready by its probes, at https
        assert "SCRAM-SHA-512 user admin is written" in release.pods.run(f"{FULLNAME}-first-user")
        yield release
    finally:
        release.pods.stop(keep_logs=request.session.testsfailed > failed)


def test_the_pods_of_helm_test_log_in(release: Secured) -> None:
    status = release.pods.run(f"{FULLNAME}-test-status")
    assert all(role in status for role in ("proxy", "broker", "controller", "coordinator")), status
    assert "came back" in release.pods.run(f"{FULLNAME}-test-produce-consume")


def test_a_client_outside_produces_by_its_password(release: Secured) -> None:
    settings = release.client("SCRAM-SHA-512", "admin", PASSWORD)
    admin = AdminClient(settings)
    admin.create_topics([NewTopic("orders", 1, -1)])["orders"].result(60)
    errors: list[KafkaError | None] = []
    producer = Producer(settings)
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    assert errors == [None]


def test_who_has_no_right_is_refused(release: Secured) -> None:
    """Log in as a user of PLAIN, who has no ACL, and with a wrong password."""
    bob = AdminClient(release.client("PLAIN", "bob", BOBS))
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        bob.create_topics([NewTopic("others", 1, -1)])["others"].result(60)
    notified: list[int] = []
    wrong = Producer(
        {**release.client("SCRAM-SHA-512", "admin", "wrong"), "error_cb": lambda error: notified.append(error.code())}
    )
    wrong.produce("orders", b"x")

    def is_told() -> bool:
        wrong.poll(0.2)
        return KafkaError._AUTHENTICATION in notified

    wait_for(is_told, "a refused log-in", timeout_s=30)
    wrong.purge()


def test_http_asks_for_a_log_in(release: Secured) -> None:
    assert release.http("/healthz") == release.http("/readyz") == 200
    for path in ("/api/v1/cluster", "/metrics"):
        assert release.http(path) == 401
        assert release.http(path, "admin", "wrong") == 401
        assert release.http(path, "admin", PASSWORD) == 200


def test_a_renewed_certificate_is_served_without_a_restart(release: Secured) -> None:
    def shown(port: int) -> str:
        return ssl.get_server_certificate((release.host, port))

    def is_renewed(port: int) -> bool:
        return shown(port) != before[port]

    before = {port: shown(port) for port in (9080, 9094)}
    release.pods.replace_files(release.objects())
    for port in before:
        wait_for(partial(is_renewed, port), f"a new certificate on {port}", timeout_s=RELOAD_WITHIN_S)
    assert release.http("/api/v1/cluster", "admin", PASSWORD) == 200


def test_a_client_s_certificate_says_who_it_is(release: Secured) -> None:
    """Show the superuser's name, another one's, another authority's, and no certificate."""
    admin = AdminClient(release.client("SCRAM-SHA-512", "admin", PASSWORD))
    admin.create_topics([NewTopic("certified", 1, -1)])["certified"].result(60)
    right = release.certificate(release.clients, "admin")
    assert "certified" in release.topics(right)
    assert release.topics(release.certificate(release.clients, "carol")) == set()
    assert release.mtls_alert(release.certificate(trustme.CA(), "foreign")) == "TLSV1_ALERT_UNKNOWN_CA"
    assert release.mtls_alert(None) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"


def test_no_secret_is_in_a_command_an_environment_or_a_log(release: Secured) -> None:
    files = decoded(release.objects())
    internal = files["Secret", f"{FULLNAME}-internal"]["secret"]
    texts = (PASSWORD, BOBS, ETCDS, internal, "PRIVATE KEY")
    for pod in release.pods.pods.values():
        for process in pod.processes():
            environment = process.environ()
            assert "BMQ_ROLES" in environment, "not the process of a pod"
            shown = "\0".join([*process.cmdline(), *environment.values()])
            assert not [text for text in texts if text in shown], process
        log = pod.log.read_text()
        assert not [text for text in texts if text in log], pod


def test_etcd_serves_no_one_without_the_user(release: Secured) -> None:
    """Ask for a key without a log-in: what the pods have of it, they have by their Secret."""
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://{release.etcd.endpoints[0]}/v3/kv/range", data=b'{"key": "Lw=="}', timeout=30
        )
    with found.value as refused:
        assert b"user name is empty" in refused.read()

"""Process with TLS, log-ins and ACLs, whose metrics anybody may scrape; and clients that do what its metrics count."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bmq.core.security.settings import STANDARD_AUTHORIZER
from bmq.meta.open import open_keyvalue
from bmq.meta.security.client_quotas import make_entity
from bmq.meta.security.quotas_view import QuotasView
from tests.harness.certificates import Certificates
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.processes import free_ports

ADMINS, BOBS = "admin-secret", "bob-secret"
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' user_admin="{ADMINS}" user_bob="{BOBS}";'
)  # fmt: skip
_DENIED = 100
"""Topics of one request that is denied."""


class Secured:
    """One process with a SASL_SSL listener, on the cluster's root and store; admin may do everything, bob nothing."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        own = folder / "secured"
        own.mkdir()
        self.certificates = Certificates.make(own / "tls")
        self._etcd = etcd
        (port,) = free_ports(1)
        self.bootstrap = f"localhost:{port}"
        environment = {
            "BMQ_LISTENERS": f"OUT://127.0.0.1:{port}",
            "BMQ_ADVERTISED_LISTENERS": f"OUT://{self.bootstrap}",
            "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SASL_SSL",
            "BMQ_SASL_ENABLED_MECHANISMS": "PLAIN",
            "BMQ_LISTENER_NAME_OUT_PLAIN_SASL_JAAS_CONFIG": _JAAS,
            "BMQ_LISTENER_NAME_HTTP_PLAIN_SASL_JAAS_CONFIG": _JAAS,
            "BMQ_SSL_KEYSTORE_LOCATION": str(self.certificates.server),
            "BMQ_AUTHORIZER_CLASS_NAME": STANDARD_AUTHORIZER,
            "BMQ_SUPER_USERS": "User:admin",
            "BMQ_HTTP_AUTHENTICATION": "basic",
            "BMQ_HTTP_METRICS_AUTHENTICATION": "false",
            "BMQ_AUDIT_LOG": str(own / "audit.jsonl"),
        }
        self.server = BmqServer(
            f"file://{folder}/root", etcd.url, environment=environment, arguments=("--node-id", "9"), folder=own
        )

    def client(self, user: str, password: str, **more: Any) -> dict[str, Any]:
        """Return a client's settings."""
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
            "ssl.ca.location": str(self.certificates.trust), "sasl.username": user, "sasl.password": password,
            "log_level": 0, **more,
        }  # fmt: skip

    def http(self, user: str, password: str) -> int:
        """Return the status of a request of the HTTP API."""
        sent = base64.b64encode(f"{user}:{password}".encode()).decode()
        request = urllib.request.Request(
            f"{self.server.http}/api/v1/cluster", headers={"Authorization": f"Basic {sent}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def expire_soon(self) -> None:
        """Put a certificate of one day in the place of the server's."""
        issued = self.certificates.authority.issue_cert("localhost", not_after=datetime.now(UTC) + timedelta(days=1))
        issued.private_key_and_cert_chain_pem.write_to_path(self.certificates.server.with_name("soon"))
        self.certificates.server.with_name("soon").replace(self.certificates.server)

    def guess(self) -> Callable[[], bool]:
        """Return a client that tries a wrong password again and again while it is called.

        It returns True once it was told that it does not get in.
        """
        notified: list[int] = []
        producer = Producer(
            self.client(
                "admin", "wrong", error_cb=lambda error: notified.append(error.code()),
                **{"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 10},
            )
        )  # fmt: skip

        def go_on() -> bool:
            producer.poll(0.2)
            return KafkaError._AUTHENTICATION in notified

        return go_on

    def be_denied(self) -> None:
        """Ask for topics without the right to make them."""
        bob = AdminClient(self.client("bob", BOBS))
        names = [f"denied-{number}" for number in range(_DENIED)]
        for done in bob.create_topics([NewTopic(name, 1, -1) for name in names]).values():
            with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
                done.result(30)

    async def set_quota(self, user: str, **values: float | None) -> None:
        """Write a user's quotas into the store; None takes one away."""
        kv = await open_keyvalue(self._etcd.url)
        quotas = QuotasView(kv, "bmq")
        try:
            await quotas.start()
            await quotas.alter({make_entity([("user", user)]): values})
        finally:
            await quotas.close()
            await kv.close()

"""Real clients at `bmq serve`: access tokens by librdkafka and kafka-python, and delegation tokens by Kafka's tools."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.services.bmq import BmqServer
from tests.services.kafka_tools import ToolFailed, run_tool
from tests.services.processes import free_ports
from tests.unit.core.security.issuer import AUDIENCE, CLAIMS, ISSUER, key_set, public_jwk, token

pytestmark = pytest.mark.clients
OAUTH = "BMQ_LISTENER_NAME_OUTSIDE_OAUTHBEARER_SASL_OAUTHBEARER_"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def access_token(**changed: Any) -> tuple[str, float]:
    """Return a token that is right now, and its end."""
    now = time.time()
    return token(CLAIMS | {"iat": now, "exp": now + 600} | changed), now + 600


class Provider(AbstractTokenProvider):  # type: ignore[misc]
    """Access tokens for kafka-python."""

    def token(self) -> str:
        return access_token()[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a listener with OAUTHBEARER, PLAIN and SCRAM."""
    folder: Path = tmp_path_factory.mktemp("sasl")
    (folder / "keys.json").write_bytes(key_set(public_jwk("RSA")))
    inside, outside = free_ports(2)
    environment = {
        "BMQ_LISTENERS": f"PLAINTEXT://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
        "BMQ_LISTENER_NAME_OUTSIDE_SASL_ENABLED_MECHANISMS": "OAUTHBEARER,PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "BMQ_LISTENER_NAME_OUTSIDE_PLAIN_SASL_JAAS_CONFIG": f'{PLAIN} required user_alice="secret";',
        f"{OAUTH}JWKS_ENDPOINT_URL": (folder / "keys.json").as_uri(),
        f"{OAUTH}EXPECTED_ISSUER": ISSUER,
        f"{OAUTH}EXPECTED_AUDIENCE": AUDIENCE,
        "BMQ_DELEGATION_TOKEN_SECRET_KEY": "of the cluster",
    }
    with BmqServer(f"file://{folder}/root", environment=environment):
        yield f"127.0.0.1:{outside}"


def test_librdkafka_shows_access_tokens(server: str) -> None:
    def topics(**changed: Any) -> Any:
        config: Any = {
            "bootstrap.servers": server, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: access_token(**changed), "log_level": 0,
        }  # fmt: skip
        return AdminClient(config).list_topics(timeout=5).topics

    assert isinstance(topics(), dict)
    with pytest.raises(KafkaException, match=r"_TRANSPORT|_TIMED_OUT|_AUTHENTICATION"):
        topics(aud="somebody else")


def test_kafka_python_shows_access_tokens(server: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=server, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )  # fmt: skip
    try:
        assert producer.send("orders", b"one").get(30).offset == 0
    finally:
        producer.close(timeout=5)


def test_kafkas_tools_make_and_use_delegation_tokens(server: str, tmp_path: Path) -> None:
    def tool(name: str, settings: Path, *arguments: str) -> str:
        return run_tool(name, "--bootstrap-server", server, "--command-config", str(settings), *arguments).stdout

    def settings(name: str, mechanism: str, jaas: str) -> Path:
        path = tmp_path / name
        path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n")
        return path

    alice = settings("alice", "PLAIN", f'{PLAIN} required username="alice" password="secret";')
    created = tool("DelegationTokenCommand", alice, "--create", "--max-life-time-period", "-1",
                   "--renewer-principal", "User:bob")  # fmt: skip
    words = next(line for line in created.splitlines() if "User:alice" in line).split()
    token_id, hmac = words[0], words[1]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        by_token = settings(
            "worker", mechanism, f'{SCRAM} required username="{token_id}" password="{hmac}" tokenauth="true";'
        )
        tool("TopicCommand", by_token, "--create", "--topic", f"by-{mechanism}")
    with pytest.raises(ToolFailed, match="Delegation Token requests are not allowed"):
        tool("DelegationTokenCommand", by_token, "--create", "--max-life-time-period", "-1")
    assert token_id in tool("DelegationTokenCommand", alice, "--describe", "--owner-principal", "User:alice")
    tool("DelegationTokenCommand", alice, "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    tool("DelegationTokenCommand", alice, "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    with pytest.raises(ToolFailed):
        tool("TopicCommand", by_token, "--list")

"""Every client with every mechanism that it has, over each protocol, at a server with ACLs (mechanisms.TABLE).

Right credentials make a topic, produce and consume, and reach no topic of others.  Wrong ones end with the client's own
error of authentication, in time.  A producer goes on when its session's life is over.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.integration.clients.drivers.base import Driver
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.drivers.kcat import Kcat
from tests.integration.clients.drivers.login import Login
from tests.integration.clients.drivers.program import Franz, Java, KafkaJs, Sarama
from tests.integration.clients.mechanisms import TABLE, ClientMeans, cells
from tests.integration.clients.secure import PREFIX, REAUTH_MS, SecureServer
from tests.integration.clients.story import messages_for, new_name, require_same
from tests.services.kdc import missing

pytestmark = pytest.mark.clients
KINDS: dict[str, type[Driver]] = {
    kind.name: kind for kind in (Java, Confluent, Kcat, Franz, KafkaPython, Sarama, KafkaJs)
}
MESSAGES = 5
REFUSED_S = 30.0
"""How long the slowest client takes to say that it is refused, its start included."""
AUTHENTICATION = {
    "java": r"SaslAuthenticationException|SslAuthenticationException",
    "confluent": r"code=_AUTHENTICATION|SSL alert",
    "kcat": r"SASL authentication error|SSL alert",
    "franz-go": r"SASL_AUTHENTICATION_FAILED|tls: ",
    "kafka-python": r"[Aa]uthentication|SSL",
    "sarama": r"SASL|tls: ",
    "kafkajs": r"KafkaJSSASLAuthenticationError|SSL",
}
"""How each client says that the server did not believe who it is; for a certificate, that TLS failed."""
STREAM_S = 3.5 * REAUTH_MS / 1000
RECORDS_LEAST = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    with SecureServer(tmp_path_factory.mktemp("secure")) as started:
        yield started
        assert "Traceback" not in started.server.log.read_text()


@contextmanager
def connected(
    server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, address: str, login: Login
) -> Iterator[Driver]:
    """Yield a client; afterwards its program must end by itself."""
    for name, value in login.environment.items():
        monkeypatch.setenv(name, value)
    if row.client == "kcat":
        driver: Driver = Kcat(address, login, replace(server.admin, protocol=login.protocol))
    else:
        driver = KINDS[row.client](address, login)
    try:
        yield driver
    finally:
        driver.close()


def skip_without_kdc(mechanism: str) -> None:
    if mechanism == "GSSAPI" and missing():
        pytest.skip(f"this machine lacks {missing()}")


@pytest.mark.parametrize(
    ("row", "protocol", "mechanism"),
    [pytest.param(*cell, id=f"{cell[0].client}-{cell[1]}-{cell[2]}") for cell in cells()],
)
class TestMechanisms:
    def test_right_credentials(
        self, server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, protocol: str, mechanism: str
    ) -> None:
        skip_without_kdc(mechanism)
        topic = new_name(f"{PREFIX}-{row.client}")
        with connected(
            server, monkeypatch, row, server.bootstrap(protocol), server.right(protocol, mechanism)
        ) as driver:
            driver.create_topic(topic, 1)
            sent = messages_for(driver, seed=topic, count=MESSAGES, partitions=1)
            driver.produce(topic, sent, "none")
            require_same(sent, driver.consume([topic], new_name(PREFIX), MESSAGES), driver, topic)
            with pytest.raises(Exception, match=r"(?i)authori[sz]ation|not authorized"):
                driver.produce("of-bob", sent, "none")

    def test_wrong_credentials(
        self, server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, protocol: str, mechanism: str
    ) -> None:
        skip_without_kdc(mechanism)
        started = time.monotonic()
        with (
            pytest.raises(Exception, match=AUTHENTICATION[row.client]),
            connected(
                server, monkeypatch, row, server.bootstrap(protocol), server.wrong(protocol, mechanism)
            ) as driver,
        ):
            driver.produce(PREFIX, messages_for(driver, seed="wrong", count=1, partitions=1), "none")
        assert time.monotonic() - started < REFUSED_S


RENEWED = [
    pytest.param(row, mechanism, id=f"{row.client}-{mechanism}")
    for row in TABLE
    for mechanism in ("SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
    if mechanism in row.has
]


@pytest.mark.parametrize(("row", "mechanism"), RENEWED)
def test_a_producer_outlives_its_session(
    server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, mechanism: str
) -> None:
    """Sessions end after two seconds: none of its records fails meanwhile, and it is never refused."""
    skip_without_kdc(mechanism)
    again, failed = (
        server.counted(name, "renewed", mechanism)
        for name in ("successful_reauthentication", "failed_reauthentication")
    )
    topic = new_name(f"{PREFIX}-{row.client}")
    login = server.right("SASL_SSL", mechanism)
    with connected(server, monkeypatch, row, server.bootstrap("renewed"), login) as driver:
        driver.create_topic(topic, 1)
        sent = driver.stream(topic, STREAM_S)
        assert sent >= RECORDS_LEAST
        assert len(driver.consume([topic], new_name(PREFIX), sent)) == sent
    assert (server.counted("successful_reauthentication", "renewed", mechanism) - again >= 2) is row.renews
    assert server.counted("failed_reauthentication", "renewed", mechanism) == failed

"""Kafka's client settings as librdkafka takes them, and which errors of a connection are final."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from bmq.core.options import ConfigError
from bmq.core.security.client_settings import security_of_client
from bmq.spark.sink.security import explain, is_final, producer_settings
from tests.harness.certificates import PASSWORD, Certificates

KAFKA = "org.apache.kafka.common.security"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def settings(**given: object) -> dict[str, object]:
    security, _ = security_of_client({key.replace("_", "."): str(value) for key, value in given.items()})
    return producer_settings(security)


@pytest.mark.parametrize("form", ["pem", "encrypted", "p12"])
def test_librdkafka_takes_every_form_of_keystore(made: Certificates, form: str) -> None:
    store = {
        "pem": made.client,
        "encrypted": made.encrypted(made.client, "e.pem"),
        "p12": made.pkcs12(made.client, "c.p12"),
    }
    found = settings(
        security_protocol="SSL", ssl_truststore_location=made.trust, ssl_keystore_location=store[form],
        ssl_keystore_password=PASSWORD, ssl_key_password=PASSWORD,
    )  # fmt: skip
    assert found["ssl.ca.pem"] == made.trust.read_text()
    assert "PRIVATE KEY" not in str(found["ssl.certificate.pem"])
    assert "CERTIFICATE" not in str(found["ssl.key.pem"])
    Producer(found)  # it reads them


def test_names_are_checked_unless_that_is_left_out() -> None:
    key = "ssl.endpoint.identification.algorithm"
    assert settings(security_protocol="SSL")[key] == "https"
    assert settings(security_protocol="SSL", ssl_endpoint_identification_algorithm="")[key] == "none"


def test_cipher_suites_have_openssls_names() -> None:
    found = settings(security_protocol="SSL", ssl_cipher_suites="TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256")
    assert found["ssl.cipher.suites"] == "ECDHE-RSA-AES128-GCM-SHA256"


def test_each_mechanism_has_its_settings(tmp_path: Path) -> None:
    sasl = {"security_protocol": "SASL_PLAINTEXT"}
    jaas = f'{KAFKA}.scram.ScramLoginModule required username="a,=" password="p"'
    found = settings(**sasl, sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=f"{jaas};")
    assert (found["sasl.username"], found["sasl.password"]) == ("a,=", "p")
    with pytest.raises(ConfigError, match="no delegation tokens"):
        settings(**sasl, sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=f'{jaas} tokenauth="true";')
    krb = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="a@R";'
    found = settings(**sasl, sasl_mechanism="GSSAPI", sasl_jaas_config=krb, sasl_kerberos_service_name="kafka")
    assert (found["sasl.kerberos.keytab"], found["sasl.kerberos.principal"]) == ("/k", "a@R")
    (tmp_path / "token").write_text("abc.def.ghi\n")
    url, oauth = (tmp_path / "token").as_uri(), f"{KAFKA}.oauthbearer.OAuthBearerLoginModule required;"
    found = settings(
        **sasl, sasl_mechanism="OAUTHBEARER", sasl_jaas_config=oauth, sasl_oauthbearer_token_endpoint_url=url
    )
    fetch = found["oauth_cb"]
    assert callable(fetch)
    token, expires_at = fetch("")
    assert token == "abc.def.ghi"
    assert expires_at > time.time()


def test_files_that_cannot_be_used_are_named(made: Certificates) -> None:
    with pytest.raises(ConfigError, match=r"ssl.truststore.location: cannot read /no/such"):
        settings(security_protocol="SSL", ssl_truststore_location="/no/such")
    with pytest.raises(ConfigError, match="there is no private key with a certificate"):
        settings(security_protocol="SSL", ssl_keystore_location=made.trust)


@pytest.mark.parametrize(
    ("code", "text", "final"),
    [
        (KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed", True),
        (KafkaError._SSL, "SSL handshake failed: certificate verify failed: broker certificate", True),
        (KafkaError._SSL, "SSL handshake failed: Disconnected", False),
        (KafkaError._TRANSPORT, "Disconnected while requesting ApiVersion", False),
    ],
)
def test_what_no_second_try_mends_is_final(code: int, text: str, final: bool) -> None:
    assert is_final(KafkaError(code, text)) is final


def test_a_missing_right_is_named_with_its_topic() -> None:
    assert explain(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "orders") == (
        "not authorised for Write on topic orders (TOPIC_AUTHORIZATION_FAILED)"
    )
    assert "IdempotentWrite on the cluster" in explain(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), "orders")
    assert explain(KafkaError(KafkaError._MSG_TIMED_OUT, "timed out"), "orders") == "timed out"


def test_a_row_without_a_key_in_a_compacted_topic_is_explained() -> None:
    error = KafkaError(KafkaError.INVALID_RECORD)
    assert "cleanup.policy has compact needs a key in each row" in explain(error, "orders", has_key=False)
    assert "cleanup.policy" not in explain(error, "orders", has_key=True)

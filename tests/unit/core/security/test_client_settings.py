"""Settings of clients: what is taken, what is refused with a guess, and that no text of them shows a secret."""

from __future__ import annotations

import pytest

from bmq.core.options import ConfigError
from bmq.core.security.client_login import Login
from bmq.core.security.client_settings import PLAINTEXT, security_of_client

KAFKA = "org.apache.kafka.common.security"
SCRAM = f'{KAFKA}.scram.ScramLoginModule required username="alice" password="pa,ss" tokenauth="true";'
PLAIN = f'{KAFKA}.plain.PlainLoginModule required username="alice" password="pass";'
OAUTH = f'{KAFKA}.oauthbearer.OAuthBearerLoginModule required clientId="c" clientSecret="pass" extension_pool="x";'
KERBEROS = 'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="alice@R";'


def login(mechanism: str, jaas: str, **others: str) -> Login:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}
    security, _ = security_of_client({**given, **{key.replace("_", "."): value for key, value in others.items()}})
    assert security.login is not None
    assert "pass" not in repr(security)
    assert "pa,ss" not in repr(security)
    return security.login


def test_each_mechanism_has_its_login() -> None:
    assert login("PLAIN", PLAIN) == Login("PLAIN", "alice", "pass")
    assert login("SCRAM-SHA-256", SCRAM) == Login("SCRAM-SHA-256", "alice", "pa,ss", is_token=True)
    url = "https://issuer.example/token"
    expected = Login("OAUTHBEARER", "c", "pass", token_url=url, scope="read", extensions={"pool": "x"})
    assert (
        login("OAUTHBEARER", OAUTH, sasl_oauthbearer_token_endpoint_url=url, sasl_oauthbearer_scope="read") == expected
    )
    kerberos = login("GSSAPI", KERBEROS, sasl_kerberos_service_name="kafka")
    assert kerberos == Login("GSSAPI", "alice@R", service="kafka", keytab="/k")


def test_without_settings_a_client_speaks_plaintext() -> None:
    assert security_of_client({"client.id": "x"}) == (PLAINTEXT, ())


def test_values_are_trimmed_as_java_trims() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="p\xa0";'
    given = {
        "security.protocol": " SASL_SSL\t", "sasl.mechanism": "PLAIN\0", "sasl.jaas.config": f"{jaas} ",
        "ssl.key.password": " p\u2003", "ssl.cipher.suites": " A ,\xa0B, ,",
    }  # fmt: skip
    security, _ = security_of_client(given)
    assert security.login is not None
    assert (security.protocol, security.login.password) == ("SASL_SSL", "p\xa0")
    assert (security.get("ssl.key.password"), security.listed("ssl.cipher.suites")) == ("p\u2003", ("A", "\xa0B"))


def test_settings_of_java_alone_have_no_effect_and_are_named() -> None:
    security, unused = security_of_client({"security.protocol": "ssl", "ssl.protocol": "TLSv1.3", "acks": "all"})
    assert (security.protocol, unused) == ("SSL", ("ssl.protocol",))
    assert security.checks_name
    assert not security_of_client({"ssl.endpoint.identification.algorithm": ""})[0].checks_name


SASL = {"security.protocol": "SASL_SSL"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"security.protocol": "SASL_SLL"},
            "security.protocol: there is no protocol 'SASL_SLL'; there are PLAINTEXT",
        ),
        (
            {"ssl.trustore.location": "x"},
            "unknown setting 'ssl.trustore.location'; did you mean ssl.truststore.location",
        ),
        ({"sasl.mechanisms": "PLAIN"}, "unknown setting 'sasl.mechanisms'; did you mean sasl.mechanism?"),
        ({"sasl.jaas.config": PLAIN}, "security.protocol is PLAINTEXT, and would use no log-in"),
        ({"ssl.truststore.location": "/t"}, "ssl.truststore.location: security.protocol is PLAINTEXT, without TLS"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "ssl.keystore.location": "/k"},
            "ssl.keystore.location: security.protocol is SASL_PLAINTEXT, without TLS: give SSL or SASL_SSL",
        ),
        ({**SASL, "sasl.mechanism": "SCRAM-SHA-1"}, "no mechanism 'SCRAM-SHA-1'; did you mean SCRAM-SHA-"),
        ({**SASL, "sasl.mechanism": "PLAIN"}, "sasl.jaas.config is missing: PLAIN needs"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": SCRAM}, "sasl.mechanism=PLAIN, needs"),
        ({**SASL, "sasl.jaas.config": SCRAM}, "sasl.mechanism=GSSAPI, which is the default, needs"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN[:-1]}, "sasl.jaas.config: the semicolon"),
        ({**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN * 2}, "one login module is expected, not 2"),
        (
            {**SASL, "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{KAFKA}.plain.PlainLoginModule required;"},
            'PLAIN needs the options username="..."',
        ),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER", "sasl.jaas.config": OAUTH}, "token.endpoint.url is missing"),
        (SASL, "sasl.kerberos.service.name is missing"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols: 'TLSv1.1' is not one of TLSv1.2, TLSv1.3"),
        ({"ssl.truststore.type": "BKS"}, "ssl.truststore.type: 'BKS' is not one of PEM, PKCS12, JKS"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "https, or nothing"),
        ({"ssl.engine.factory.class": "x.Y"}, "classes of Java cannot be run"),
        ({"sasl.login.callback.handler.class": "x.Y"}, "classes of Java cannot be run"),
        ({"config.providers": "file"}, "config.providers: values are not taken from other places"),
    ],
)
def test_what_is_wrong_is_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        security_of_client(given)
    assert said in str(refused.value)
    assert "pass" not in str(refused.value).replace('password="..."', "")

"""The users of the HTTP port from a process's settings."""

from __future__ import annotations

import pytest

from bmq.console.access.logins import Logins, NotAuthenticated
from bmq.console.access.schemes import basic_credentials
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.core.security.authentication import AuthenticationContext
from bmq.server.http_access import HttpAccess

PLAIN = {
    "http_authentication": "basic",
    "listener.name.http.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.http.plain.sasl.jaas.config": (
        'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="wonder:land";'
    ),
}
AT = AuthenticationContext("10.0.0.7", "SASL_SSL")


def of(**changed: str) -> NodeConfig:
    return load(file={**PLAIN, **changed}, environment={}, flags={})


def test_nobody_is_asked_by_default() -> None:
    config = HttpAccess(NodeConfig()).config()
    assert (list(config.schemes), config.metrics_ask, config.session_s) == ([], True, 28_800)


async def test_the_users_of_a_jaas_text_log_in() -> None:
    access = HttpAccess(of())
    await access.start()
    logins = Logins(access.config().schemes)
    login = await logins.check(AT, "basic", basic_credentials("alice", "wonder:land"))
    session = login.session
    assert (str(session.principal), session.protocol, session.mechanism) == ("User:alice", "SASL_SSL", "PLAIN")
    for wrong in (("alice", "x"), ("bob", "wonder:land"), ("alice", ""), ("\0alice", "wonder:land"), ("alice", "\0")):
        with pytest.raises(NotAuthenticated):
            await logins.check(AT, "basic", basic_credentials(*wrong))
    await access.close()


def test_the_settings_of_the_port_reach_the_gate() -> None:
    config = HttpAccess(of(http_metrics_authentication="false", http_session_ms="60000")).config()
    assert (config.metrics_ask, config.session_s, config.failed_login_delay_s) == (False, 60, 0.1)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"http_authentication": "none,basic"}, "none alone"),
        ({"http_authentication": "digest"}, "choose from"),
        ({"http_authentication": ","}, "none alone"),
        ({"listener.name.http.plain.sasl.jaas.config": "nonsense"}, "plain.sasl.jaas.config"),
        ({"listener.name.http.sasl.enabled.mechanisms": "GSSAPI"}, "basic needs passwords"),
        ({"http_authentication": "bearer"}, "jwks.endpoint.url is not set"),
        ({"listeners": "HTTP://127.0.0.1:9092", "listener.security.protocol.map": "HTTP:PLAINTEXT"}, "the HTTP port"),
    ],
)
def test_settings_that_let_nobody_in_end_the_start(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HttpAccess(of(**changed))

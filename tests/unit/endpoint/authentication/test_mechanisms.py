"""A SASL listener's gate is made from its settings, or the process does not start."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bmq.core.clock import LoopClock
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.core.metrics.counters import PortCounters
from bmq.core.security.settings import SASL_MECHANISMS
from bmq.endpoint.authentication.gate import AuthenticationGate
from bmq.endpoint.authentication.mechanism import MechanismContext
from bmq.endpoint.authentication.mechanisms import FACTORIES, make_gate
from tests.unit.endpoint.authentication.test_scram import Users
from tests.unit.endpoint.endpoints import endpoint

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="hunter2";'


def config_of(**settings: Any) -> NodeConfig:
    file = {
        "listeners": "OUT://127.0.0.1:0",
        "listener.security.protocol.map": "OUT:SASL_PLAINTEXT",
        **{name.replace("__", "-").replace("_", "."): value for name, value in settings.items()},
    }
    return load(file=file, environment={}, flags={})


def gate_of(**settings: Any) -> AuthenticationGate:
    config = config_of(**settings)
    return make_gate(
        endpoint(), config.listener_security()["OUT"], LoopClock(), PortCounters(),
        delay_ms=config.connection_failed_authentication_delay_ms, users=cast(Any, Users()),
    )  # fmt: skip


def test_settings_of_the_listener_and_its_mechanisms_reach_the_gate() -> None:
    gate = gate_of(
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-512",
        listener_name_out_plain_sasl_jaas_config=JAAS,
        listener_name_out_sasl_server_max_receive_size=2048,
        connections_max_reauth_ms=9000,
        listener_name_out_plain_connections_max_reauth_ms=5000,
        connection_failed_authentication_delay_ms=250,
    )
    assert list(gate.mechanisms) == ["PLAIN", "SCRAM-SHA-512"]
    settings = gate.settings
    assert (settings.listener, settings.protocol, settings.receive_max) == ("OUT", "SASL_PLAINTEXT", 2048)
    assert settings.delay_s == 0.25
    assert settings.reauth_ms == {"PLAIN": 5000, "SCRAM-SHA-512": 9000}
    assert "hunter2" not in repr(gate)


def test_a_mechanisms_settings_show_no_secret() -> None:
    context = MechanismContext(
        mechanism="PLAIN", listener="OUT", protocol="SASL_SSL", settings={"sasl.jaas.config": JAAS}, clock=LoopClock()
    )
    assert "hunter2" not in repr(context)


def test_every_mechanism_that_may_be_enabled_has_a_factory() -> None:
    assert set(FACTORIES) == set(SASL_MECHANISMS)


def test_the_default_is_scram() -> None:
    gate = gate_of()
    assert list(gate.mechanisms) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert gate.settings.receive_max == 524_288
    assert gate.settings.delay_s == 0.1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"sasl_enabled_mechanisms": "PLAIN"}, "listener OUT: plain.sasl.jaas.config is not set"),
        ({"sasl_enabled_mechanisms": "OAUTHBEARER"}, "listener OUT: oauthbearer"),
        ({"sasl_enabled_mechanisms": "GSSAPI"}, "listener OUT: gssapi"),
        ({"sasl_enabled_mechanisms": ","}, "listener OUT: sasl.enabled.mechanisms is empty"),
    ],
)
def test_a_mechanism_without_its_settings_is_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        gate_of(**settings)

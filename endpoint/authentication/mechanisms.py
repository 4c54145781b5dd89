"""The mechanisms that a SASL listener may enable, and the gate of a listener, made from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.clock import Clock
from bmq.core.config import ConfigError
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.request import Dispatch
from bmq.core.options import MECHANISM
from bmq.core.security.listener_settings import TABLE, ListenerSecurity
from bmq.core.security.scram import BY_NAME
from bmq.endpoint.authentication.accounts import ScramTokens, ScramUsers
from bmq.endpoint.authentication.gate import AuthenticationGate, GateSettings
from bmq.endpoint.authentication.gssapi import make_gssapi
from bmq.endpoint.authentication.mechanism import MechanismContext, MechanismFactory, SaslMechanism
from bmq.endpoint.authentication.oauthbearer import make_oauthbearer
from bmq.endpoint.authentication.plain import PLAIN, make_plain
from bmq.endpoint.authentication.scram import make_scram

FACTORIES: Mapping[str, MechanismFactory] = {
    PLAIN: make_plain,
    **dict.fromkeys(BY_NAME, make_scram),
    "OAUTHBEARER": make_oauthbearer,
    "GSSAPI": make_gssapi,
}


def make_gate(
    inner: Dispatch,
    security: ListenerSecurity,
    clock: Clock,
    metrics: PortCounters,
    *,
    delay_ms: int,
    users: ScramUsers,
    tokens: ScramTokens | None = None,
    audit: Audit = NO_AUDIT,
) -> AuthenticationGate:
    """Return the gate of a SASL listener around its endpoint.

    ``delay_ms`` is connection.failed.authentication.delay.ms.  Raises ConfigError, which names the listener, if a
    mechanism's settings are wrong.
    """
    enabled = security.get("sasl.enabled.mechanisms")
    if not enabled:
        raise ConfigError(f"listener {security.name}: sasl.enabled.mechanisms is empty; nobody could authenticate")
    mechanisms: dict[str, SaslMechanism] = {}
    for name in enabled:
        context = MechanismContext(
            mechanism=name, listener=security.name, protocol=security.protocol, settings=_settings(security, name),
            clock=clock, users=users, tokens=tokens,
        )  # fmt: skip
        mechanisms[name] = FACTORIES[name](context)
    settings = GateSettings(
        listener=security.name,
        protocol=security.protocol,
        receive_max=security.get("sasl.server.max.receive.size"),
        delay_s=delay_ms / 1000,
        reauth_ms={name: security.for_mechanism(name, "connections.max.reauth.ms") for name in mechanisms},
    )
    return AuthenticationGate(inner, settings, mechanisms, clock, metrics, audit)


def _settings(security: ListenerSecurity, mechanism: str) -> dict[str, str]:
    """Return the settings of a mechanism as texts."""
    return {
        key: _text(security.for_mechanism(mechanism, key))
        for key, option in TABLE.items()
        if option.metadata["scope"] == MECHANISM
    }


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)

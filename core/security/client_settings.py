"""Security settings of a Kafka client, by Kafka's names: of a file for ``--command-config``, or of Spark's options.

Files that they name are not read here: ``core.security.client_tls`` does that, on the machine that connects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bmq.core.options import ConfigError, meant
from bmq.core.security.client_login import Login, login_of
from bmq.core.security.listener_settings import SASL, TLS
from bmq.core.security.principal import java_trim
from bmq.core.security.settings import STORE_TYPES, TLS_VERSIONS

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SECRETS = frozenset((
    "ssl.keystore.password", "ssl.key.password", "ssl.keystore.key", "ssl.truststore.password", "sasl.jaas.config",
    "sasl.oauthbearer.client.credentials.client.secret",
))  # fmt: skip
_TAKEN = SECRETS | {
    "security.protocol", "ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.certificates",
    "ssl.keystore.location", "ssl.keystore.type", "ssl.keystore.certificate.chain",
    "ssl.endpoint.identification.algorithm", "ssl.enabled.protocols", "ssl.cipher.suites", "sasl.mechanism",
    "sasl.kerberos.service.name", "sasl.login.callback.handler.class", "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.scope",
}  # fmt: skip
_OF_JAVA = frozenset((
    "ssl.protocol", "ssl.provider", "ssl.secure.random.implementation", "ssl.keymanager.algorithm",
    "ssl.trustmanager.algorithm", "security.providers", "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin", "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor", "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter", "sasl.login.refresh.min.period.seconds", "sasl.login.refresh.buffer.seconds",
    "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms", "sasl.login.retry.backoff.ms",
    "sasl.login.retry.backoff.max.ms",
))  # fmt: skip
"""Settings without effect: they say how Java works, not whom the client trusts or who the client is."""
_REFUSED = {
    "config.providers": "values are not taken from other places; write them into the file, or name files",
    "ssl.engine.factory.class": "classes of Java cannot be run",
    "sasl.client.callback.handler.class": "classes of Java cannot be run",
    "sasl.login.class": "classes of Java cannot be run",
}
_TOKEN_HANDLERS = ("OAuthBearerLoginCallbackHandler",)
_FAMILIES = ("ssl.", "sasl.", "security.")


@dataclass(frozen=True, slots=True)
class ClientSecuritySettings:
    """A client's way to connect: immutable, with all settings checked that need no file."""

    protocol: str = "PLAINTEXT"
    login: Login | None = None
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The settings that are given, by Kafka's names.  Some are secrets."""

    @property
    def has_tls(self) -> bool:
        return self.protocol in TLS

    @property
    def has_secret(self) -> bool:
        """True if a setting is a secret itself, and not the name of a file."""
        return any(self.values.get(key) for key in SECRETS)

    @property
    def has_certificate(self) -> bool:
        """True if the client has a certificate to show."""
        return bool(self.get("ssl.keystore.location") or self.get("ssl.keystore.key"))

    @property
    def checks_name(self) -> bool:
        """True if a server's certificate must have the name by which the client connects, as is Kafka's default."""
        return self.get("ssl.endpoint.identification.algorithm", "https") != ""

    def get(self, key: str, default: str = "") -> str:
        """Return the value of a setting, ``default`` if it is not given."""
        return self.values.get(key, default)

    def listed(self, key: str) -> tuple[str, ...]:
        """Return the values of a setting that is a list."""
        return tuple(name for each in self.get(key).split(",") if (name := java_trim(each)))


PLAINTEXT = ClientSecuritySettings()


def is_security(key: str) -> bool:
    """Return whether a setting is one of security, by its name."""
    return key.startswith(_FAMILIES) or key in _REFUSED


def known_settings() -> frozenset[str]:
    """Return the names of all settings that are used here."""
    return _TAKEN


def security_of_client(given: Mapping[str, str]) -> tuple[ClientSecuritySettings, tuple[str, ...]]:
    """Return the security settings among ``given``, and those keys that have no effect.

    Others than those of security are left to the caller.  Raises ConfigError, which shows no secret, if one is unknown
    or wrong.
    """
    values = {key: java_trim(value) for key, value in given.items() if is_security(key)}
    _refuse(values)
    security = ClientSecuritySettings(values={key: value for key, value in values.items() if key in _TAKEN})
    protocol = security.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        hint = meant(protocol, PROTOCOLS) or f"; there are {', '.join(PROTOCOLS)}"
        raise ConfigError(f"security.protocol: there is no protocol {protocol!r}{hint}")
    if protocol == "PLAINTEXT" and (security.get("sasl.mechanism") or security.get("sasl.jaas.config")):
        raise ConfigError("security.protocol is PLAINTEXT, and would use no log-in: give SASL_SSL or SASL_PLAINTEXT")
    _check_tls(security)
    if protocol not in TLS and (given_tls := sorted(key for key in security.values if _means_tls(security, key))):
        raise ConfigError(f"{', '.join(given_tls)}: security.protocol is {protocol}, without TLS: give SSL or SASL_SSL")
    login = login_of(security.get) if protocol in SASL else None
    return ClientSecuritySettings(protocol, login, security.values), tuple(sorted(set(values) & _OF_JAVA))


def _refuse(values: Mapping[str, str]) -> None:
    for key in values:
        if key in _REFUSED:
            raise ConfigError(f"{key}: {_REFUSED[key]}")
        if key not in _TAKEN and key not in _OF_JAVA:
            raise ConfigError(f"unknown setting {key!r}{meant(key, _TAKEN)}")
    handler = values.get("sasl.login.callback.handler.class", "")
    if handler and handler.rpartition(".")[2] not in _TOKEN_HANDLERS:
        raise ConfigError("sasl.login.callback.handler.class: classes of Java cannot be run")


def _means_tls(security: ClientSecuritySettings, key: str) -> bool:
    """Return whether the setting names certificates or keys: its author expects TLS."""
    return key.startswith(("ssl.truststore.", "ssl.keystore.", "ssl.key.")) and bool(security.get(key))


def _check_tls(security: ClientSecuritySettings) -> None:
    for key in ("ssl.keystore.type", "ssl.truststore.type"):
        _check_choices(key, [security.get(key)], STORE_TYPES)
    _check_choices("ssl.enabled.protocols", security.listed("ssl.enabled.protocols"), TLS_VERSIONS)
    algorithm = security.get("ssl.endpoint.identification.algorithm", "https")
    if algorithm.lower() not in ("https", ""):
        raise ConfigError("ssl.endpoint.identification.algorithm: https, or nothing, which checks no names")


def _check_choices(key: str, given: Iterable[str], choices: tuple[str, ...]) -> None:
    for each in given:
        if each not in choices:
            raise ConfigError(f"{key}: {each!r} is not one of {', '.join(filter(None, choices))}")

"""The log-in of a Kafka client: what ``sasl.jaas.config`` and ``sasl.mechanism`` say.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bmq.core.options import ConfigError, meant
from bmq.core.security.jaas import JaasError, LoginModule, parse_jaas
from bmq.core.security.settings import SASL_MECHANISMS

DEFAULT_MECHANISM = "GSSAPI"
"""Kafka's default."""
_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_EXTENSION = "extension_"


@dataclass(frozen=True, slots=True)
class Login:
    """The way in which a client shows who it is.  Fields that its mechanism does not have are empty."""

    mechanism: str
    user: str = ""
    """User of PLAIN and SCRAM, client id of OAUTHBEARER, principal of GSSAPI."""
    password: str = field(default="", repr=False)
    """Password of PLAIN and SCRAM, client secret of OAUTHBEARER."""
    is_token: bool = False
    """True if ``user`` is the id of a delegation token."""
    token_url: str = ""
    scope: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)
    service: str = ""
    keytab: str = ""


def login_of(get: Callable[[str], str]) -> Login:
    """Return the log-in of client settings, read by ``get``.  Raises ConfigError, which shows no secret."""
    mechanism = get("sasl.mechanism") or DEFAULT_MECHANISM
    if mechanism not in SASL_MECHANISMS:
        hint = meant(mechanism, SASL_MECHANISMS) or f"; there are {', '.join(SASL_MECHANISMS)}"
        raise ConfigError(f"sasl.mechanism: there is no mechanism {mechanism!r}{hint}")
    module = _module(get("sasl.jaas.config"), mechanism, is_default=not get("sasl.mechanism"))
    if mechanism == "GSSAPI":
        return _kerberos(module, get)
    if module is None:
        raise ConfigError(f"sasl.jaas.config is missing: {mechanism} needs {_MODULES[mechanism]} required ...;")
    if mechanism == "OAUTHBEARER":
        return _oauth(module, get)
    user, password = module.options.get("username", ""), module.options.get("password", "")
    if not user or not password:
        raise ConfigError(f'sasl.jaas.config: {mechanism} needs the options username="..." and password="..."')
    return Login(mechanism, user, password, is_token=module.options.get("tokenauth", "").lower() == "true")


def _module(text: str, mechanism: str, *, is_default: bool) -> LoginModule | None:
    if not text:
        return None
    try:
        modules = parse_jaas(text)
    except JaasError as error:
        raise ConfigError(f"sasl.jaas.config: {error}") from None
    if len(modules) > 1:
        raise ConfigError(f"sasl.jaas.config: one login module is expected, not {len(modules)}")
    if modules[0].name != _MODULES[mechanism]:
        why = ", which is the default" if is_default else ""
        raise ConfigError(
            f"sasl.jaas.config: the login module is {modules[0].name[:200]!r}; sasl.mechanism={mechanism}{why}, needs"
            f" {_MODULES[mechanism]}"
        )
    return modules[0]


def _oauth(module: LoginModule, get: Callable[[str], str]) -> Login:
    """Return a log-in by access tokens.  Options of JAAS are those of Kafka before 4.1."""
    url = get("sasl.oauthbearer.token.endpoint.url")
    if not url:
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url is missing: https://issuer/token, or file:///path of a token"
        )
    client = get("sasl.oauthbearer.client.credentials.client.id") or module.options.get("clientId", "")
    secret = get("sasl.oauthbearer.client.credentials.client.secret") or module.options.get("clientSecret", "")
    if not url.startswith("file:") and not (client and secret):
        raise ConfigError(
            "OAUTHBEARER needs sasl.oauthbearer.client.credentials.client.id and ...client.secret, or the options"
            " clientId and clientSecret in sasl.jaas.config"
        )
    return Login(
        "OAUTHBEARER",
        client,
        secret,
        token_url=url,
        scope=get("sasl.oauthbearer.scope") or module.options.get("scope", ""),
        extensions={
            name.removeprefix(_EXTENSION): value
            for name, value in module.options.items()
            if name.startswith(_EXTENSION)
        },
    )


def _kerberos(module: LoginModule | None, get: Callable[[str], str]) -> Login:
    options = {} if module is None else module.options
    service = get("sasl.kerberos.service.name") or options.get("serviceName", "")
    if not service:
        raise ConfigError("sasl.kerberos.service.name is missing: first part of the servers' principal, as in kafka")
    keytab = options.get("keyTab", "") if options.get("useKeyTab", "").lower() == "true" else ""
    return Login("GSSAPI", options.get("principal", "") if keytab else "", service=service, keytab=keytab)

"""OAUTHBEARER of one listener, made from its settings; a setting that is wrong ends the start.

``sasl.jaas.config`` may be left out.  Of its options those of TLS are used: ``ssl.truststore.location``, or
``ssl.truststore.certificates``, in PEM, are the authorities that sign the certificate of the issuer's server.

Departures: tokens without a signature are refused, so ``sasl.oauthbearer.jwks.endpoint.url`` is needed (Kafka accepts
them where no callback handler is set).  An address with ``http://`` is refused unless it is this machine.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from bmq.core.aio.backoff import Backoff
from bmq.core.config import ConfigError
from bmq.core.extras import how_to_install
from bmq.core.security.jaas import JaasError, parse_single_jaas
from bmq.core.security.principal import java_trim
from bmq.endpoint.authentication.mechanism import MechanismContext, SaslMechanism

LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_SETTING = "sasl.oauthbearer."
_TRUST_FILE, _TRUST_TEXT = "ssl.truststore.location", "ssl.truststore.certificates"


def make_oauthbearer(context: MechanismContext) -> SaslMechanism:
    """Return the mechanism.  Raises ConfigError if a setting is wrong, or PyJWT is not installed."""
    where = f"listener {context.listener}: oauthbearer."
    try:
        from bmq.core.security.access_token import TokenRules
        from bmq.core.security.jwks import JwksError
        from bmq.core.security.jwks_source import open_source
        from bmq.endpoint.authentication.oauthbearer_mechanism import OAuthBearerSaslMechanism
    except ModuleNotFoundError as error:
        raise ConfigError(f"{where[:-1]} needs the package {error.name}: {how_to_install('oauth')}") from None

    url = context.setting(f"{_SETTING}jwks.endpoint.url")
    if not url:
        raise ConfigError(
            f"{where}{_SETTING}jwks.endpoint.url is not set: it is where the keys of the tokens' issuer are, as in"
            " https://issuer.example/keys; unsigned tokens are not accepted"
        )
    options = _jaas_options(context.setting("sasl.jaas.config"), f"{where}sasl.jaas.config")
    least, most = (_number(context, f"jwks.endpoint.retry.backoff.{each}", of) for each, of in _BACKOFFS)
    if least > most:
        raise ConfigError(f"{where}{_SETTING}jwks.endpoint.retry.backoff.ms exceeds …retry.backoff.max.ms")
    try:
        source = open_source(
            url,
            refresh_s=_number(context, "jwks.endpoint.refresh.ms", 3_600_000) / 1000,
            retry_s=Backoff(least / 1000, most / 1000),
            trust=_trust(options, f"{where}sasl.jaas.config"),
        )
    except JwksError as error:
        raise ConfigError(f"{where}{_SETTING}jwks.endpoint.url: {error}") from None
    audiences = (java_trim(each) for each in context.setting(f"{_SETTING}expected.audience").split(","))
    rules = TokenRules(
        audiences=tuple(each for each in audiences if each),
        issuer=context.setting(f"{_SETTING}expected.issuer") or None,
        scope_claim=context.setting(f"{_SETTING}scope.claim.name", "scope"),
        subject_claim=context.setting(f"{_SETTING}sub.claim.name", "sub"),
        clock_skew_s=_number(context, "clock.skew.seconds", 30),
    )
    return OAuthBearerSaslMechanism(source, rules, context.clock)


_BACKOFFS = (("ms", 100), ("max.ms", 10_000))


def _number(context: MechanismContext, name: str, default: int) -> int:
    return int(context.setting(f"{_SETTING}{name}", str(default)))


def _jaas_options(text: str, where: str) -> Mapping[str, str]:
    if not text:
        return {}
    try:
        options = parse_single_jaas(text, LOGIN_MODULE).options
    except JaasError as error:
        raise ConfigError(f"{where}: {error}") from None
    unsecured = sorted(name for name in options if name.startswith("unsecured"))
    if unsecured:
        raise ConfigError(f"{where}: {unsecured[0]} is for unsigned tokens, which are not accepted; take it out")
    return options


def _trust(options: Mapping[str, str], where: str) -> ssl.SSLContext | None:
    """Return the authorities of the JAAS text; None if it names none."""
    path, text = options.get(_TRUST_FILE), options.get(_TRUST_TEXT)
    if path is None and text is None:
        return None
    kind = options.get("ssl.truststore.type", "PEM")
    if kind != "PEM":
        raise ConfigError(f"{where}: ssl.truststore.type is {kind[:20]!r}; only PEM is read here")
    try:
        return ssl.create_default_context(cafile=path, cadata=text)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        name = _TRUST_FILE if path is not None else _TRUST_TEXT
        raise ConfigError(f"{where}: {name} has no certificates in PEM that can be read: {error}") from None

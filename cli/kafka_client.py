"""Settings of connections as kafka-python takes them."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Any

from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.sasl.scram import SaslMechanismScram, ScramClient

from bmq.cli.command_config import NO_CONFIG, CommandConfig
from bmq.cli.usage import UsageError
from bmq.core.extras import how_to_install
from bmq.core.options import ConfigError
from bmq.core.security.client_login import Login
from bmq.core.security.client_settings import ClientSecuritySettings
from bmq.core.security.client_tls import context_of_client
from bmq.core.security.oauth_token import TokenSource

_TICKETS = "MEMORY:bmq"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a command's connections, with the contents of the files that they name."""

    config: CommandConfig
    context: ssl.SSLContext | None
    _own: dict[str, Any] = field(repr=False)

    @property
    def security(self) -> ClientSecuritySettings:
        return self.config.security

    @property
    def login(self) -> Login | None:
        return self.config.security.login

    def for_kafka_python(self) -> dict[str, Any]:
        """Return keyword arguments of kafka-python's clients.  Some are secrets."""
        return dict(self._own)


def settings_of(config: CommandConfig) -> Settings:
    """Return the settings, with all files read.  Raises UsageError, which shows no secret, if one cannot be used."""
    security = config.security
    try:
        context = context_of_client(security, config.where) if security.has_tls else None
    except ConfigError as error:
        raise UsageError(str(error)) from None
    own: dict[str, Any] = {"client_id": config.client_id, "security_protocol": security.protocol}
    if context is not None:
        own["ssl_context"] = context
    if security.login is not None:
        own |= {"sasl_mechanism": security.login.mechanism, **_by_mechanism(security.login)}
    return Settings(config, context, own)


def _by_mechanism(login: Login) -> dict[str, Any]:
    match login.mechanism:
        case "OAUTHBEARER":
            return {"sasl_oauth_token_provider": _Tokens(login)}
        case "GSSAPI":
            _use_kerberos(login)
            return {"sasl_kerberos_service_name": login.service}
        case "PLAIN":
            return {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        case _:
            if login.is_token:
                register_sasl_mechanism(login.mechanism, _DelegationToken, overwrite=True)
            # kafka-python sends the name as it is; RFC 5802 wants two characters escaped.
            user = login.user.replace("=", "=3D").replace(",", "=2C")
            return {"sasl_plain_username": user, "sasl_plain_password": login.password}


def _use_kerberos(login: Login) -> None:
    """Have the library of Kerberos take tickets by the keytab, if there is one, and keep them in memory.

    Its environment says the same, so that it gets new ones when they end.  Raises UsageError.
    """
    try:
        import gssapi
        from gssapi.raw.misc import GSSError
    except (ImportError, OSError):
        raise UsageError(
            f"GSSAPI needs the package gssapi and Kerberos's library: {how_to_install('kerberos')}"
        ) from None
    if not login.keytab:
        return
    os.environ["KRB5_CLIENT_KTNAME"], os.environ["KRB5CCNAME"] = f"FILE:{login.keytab}", _TICKETS
    try:
        name = gssapi.Name(login.user, gssapi.NameType.kerberos_principal) if login.user else None
        store: dict[bytes | str, bytes | str] = {"client_keytab": f"FILE:{login.keytab}", "ccache": _TICKETS}
        gssapi.Credentials(name=name, usage="initiate", store=store).inquire()
    except GSSError as error:
        who = login.user or "the keytab's principal"
        raise UsageError(f"cannot get a ticket for {who} by {login.keytab}: {error.gen_message()}") from None


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, login: Login) -> None:
        super().__init__()
        self._source = TokenSource(login)
        self._extensions = dict(login.extensions)

    def token(self) -> str:
        return self._source.token()

    def extensions(self) -> dict[str, str]:
        return self._extensions


class _TokenClient(ScramClient):  # type: ignore[misc]
    """SCRAM by a delegation token (KIP-48): an extension says that the user's name is the token's id."""

    def first_message(self) -> bytes:
        bare: bytes = b"n=" + self.user + b",r=" + self.nonce + b",tokenauth=true"
        self.auth_message += bare
        return b"n,," + bare


class _DelegationToken(SaslMechanismScram):  # type: ignore[misc]
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._scram_client = _TokenClient(
            config["sasl_plain_username"], config["sasl_plain_password"], config["sasl_mechanism"]
        )


WITHOUT_CONFIG = settings_of(NO_CONFIG)

"""TLS contexts of listeners, from their settings.

``ServerTls`` keeps a listener's context, and makes a new one when a file has changed.
"""

from __future__ import annotations

import logging
import ssl
import time
from pathlib import Path

from bmq.core.logging.fields import fields
from bmq.core.options import ConfigError
from bmq.core.security.distinguished_name import BadCertificate, subject_of
from bmq.core.security.listener_settings import ListenerSecurity
from bmq.core.security.mapping_rules import BadRule, MappingRules
from bmq.core.security.principal import ANONYMOUS, Principal, user
from bmq.core.security.stores import (
    CERTIFICATE,
    KEY,
    TLS_VERSIONS,
    authorities_of,
    identity_of,
    load_authorities,
    load_identity,
    set_ciphers,
)

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_log = logging.getLogger(__name__)


class ServerTls:
    """The TLS of one listener.  Its context is replaced when a file that it is made of has changed.

    ``reload`` may run in another thread than those that use the rest.
    """

    def __init__(self, security: ListenerSecurity) -> None:
        """Read the files.  Raises ConfigError, which names the setting, if no context can be made of them."""
        self.name = security.name
        self._security = security
        self._rules = _rules(security)
        self._paths = [
            Path(p) for key in ("ssl.keystore.location", "ssl.truststore.location") if (p := security.get(key))
        ]
        self._seen = self._stamps()
        self.context, self.expires_at = _made(security)
        """The context of new connections, and when its certificate expires, in seconds since 1970."""
        self._warned_of = 0.0

    def __repr__(self) -> str:
        return f"<ServerTls {self.name}>"

    @property
    def expires_in_s(self) -> float:
        """Seconds until the listener's certificate expires; below zero once it has."""
        return self.expires_at - time.time()

    def warn_if_expired(self) -> None:
        """Log that the certificate has expired, once for each: a listener goes on with it, as in Kafka."""
        if self.expires_in_s < 0 and self._warned_of != self.expires_at:
            self._warned_of = self.expires_at
            ended = time.strftime("not valid after %Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires_at))
            _log.warning(
                "this listener's certificate has expired; clients that check it do not connect: replace its file",
                extra=fields(listener=self.name, error=ended),
            )

    def reload(self) -> bool:
        """Make a new context if a file has changed; keep the old one, and log why, if that fails.

        Return whether there is a new one.  Each state of the files is tried once.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        try:
            context, expires_at = _made(self._security)
        except ConfigError as error:
            _log.error(
                "cannot use the changed certificates; the listener goes on with those it has",
                extra=fields(listener=self.name, error=error),
            )
            return False
        self.context, self.expires_at = context, expires_at
        _log.info("new connections get the changed certificates", extra=fields(listener=self.name))
        return True

    def principal_of(self, connection: ssl.SSLObject) -> Principal:
        """Return the principal of a connection whose handshake is done: ANONYMOUS without a client's certificate.

        Raises NoRule if the mapping rules have no name for it, BadCertificate if its subject cannot be read.
        """
        certificate = connection.getpeercert(binary_form=True)
        return ANONYMOUS if certificate is None else user(self._rules.name_of(subject_of(certificate)))

    def check_resumed(self, connection: ssl.SSLObject) -> None:
        """Check the client's certificate of a connection whose handshake resumed a session.

        OpenSSL checks it in full handshakes alone, and a session of TLS 1.2 lives for two hours after its handshake.
        Raises BadCertificate if the certificate has expired meanwhile.
        """
        if connection.session_reused and (certificate := connection.getpeercert(binary_form=True)) is not None:
            from cryptography import x509

            ended = x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()
            if ended < time.time():
                shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ended))
                raise BadCertificate(f"the client resumes a session whose certificate expired at {shown}")

    def _stamps(self) -> list[tuple[int, ...]]:
        """Return what changes when a file does, also if it is a link to another one now, as Kubernetes does it."""
        stamps: list[tuple[int, ...]] = []
        for path in (file for each in self._paths for file in _files(each)):
            try:
                found = path.stat()
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(())  # it may be in between two versions
        return stamps


def _files(location: Path) -> list[Path]:
    """Return the files of a keystore or truststore: of a folder, its certificate and its key."""
    return [location / CERTIFICATE, location / KEY] if location.is_dir() else [location]


def _rules(security: ListenerSecurity) -> MappingRules:
    try:
        return MappingRules(security.get("ssl.principal.mapping.rules"))
    except BadRule as error:
        raise ConfigError(f"listener {security.name}: ssl.principal.mapping.rules: {error}") from None


def client_context(security: ListenerSecurity, *, checks_name: bool) -> ssl.SSLContext:
    """Return the context of connections that this process makes with a listener's certificate and authorities.

    The other side must show a certificate of these authorities; with ``checks_name``, one that has its host's name.
    Raises ConfigError.
    """
    context, _ = _made(security, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_name
    return context


def _made(security: ListenerSecurity, protocol: int = ssl.PROTOCOL_TLS_SERVER) -> tuple[ssl.SSLContext, float]:
    """Return a context of the settings, and when its certificate expires.  Raises ConfigError."""
    where = f"listener {security.name}"
    identity = identity_of(security.get, where)
    if identity is None:
        raise ConfigError(
            f"{where}: TLS needs a certificate: give ssl.keystore.location, a file in PEM or"
            " PKCS#12, or ssl.keystore.key with ssl.keystore.certificate.chain"
        )
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # of a client's context alone; its verify mode could not be set else
    versions = [TLS_VERSIONS[each] for each in security.get("ssl.enabled.protocols")]
    if not versions:
        raise ConfigError(f"{where}: ssl.enabled.protocols is empty; give TLSv1.2,TLSv1.3")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # with TLS 1.3 a client that comes again shows its certificate again: `check_resumed`
    # No sni_callback: Python writes a traceback for a name that is not ASCII, which any client can send.
    set_ciphers(context, security.get("ssl.cipher.suites"), where)
    load_identity(context, identity, where)
    context.verify_mode = _VERIFY[security.get("ssl.client.auth")]
    if context.verify_mode is not ssl.CERT_NONE:
        authorities = authorities_of(security.get, where)
        if authorities is None:
            raise ConfigError(
                f"{where}: ssl.client.auth={security.get('ssl.client.auth')} needs the authorities of clients'"
                " certificates: give ssl.truststore.location or ssl.truststore.certificates"
            )
        load_authorities(context, authorities, where)
    return context, _expiry(identity.chain, where)


def _expiry(chain: bytes, where: str) -> float:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc.timestamp()
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{where}: the certificate cannot be read: {error}") from None

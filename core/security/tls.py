"""TLS contexts of listeners, from their settings: PEM and PKCS#12 in, what OpenSSL takes out.

What a file holds is seen in its first bytes, whatever its name.  Java's JKS is not read: the error says by which
command it becomes PKCS#12.  A private key is never written to a disk: OpenSSL reads it from memory that has no name.

`ServerTls` keeps a listener's context, and makes a new one when a file has changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bmq.core.logging.fields import fields
from bmq.core.options import ConfigError
from bmq.core.security.distinguished_name import subject_of
from bmq.core.security.listener_settings import ListenerSecurity
from bmq.core.security.mapping_rules import BadRule, MappingRules
from bmq.core.security.principal import ANONYMOUS, Principal, user

if TYPE_CHECKING:  # it is loaded where it is used: a process without TLS starts sooner
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

STORE_BYTES_MAX = 4 << 20
"""Largest file of certificates: a machine's own list of authorities has 250 KB."""
CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Files of a keystore that is a folder: a Secret of the type kubernetes.io/tls, mounted."""
_SWAPPED = "..data"
"""Kubernetes' link to the folder of a mounted Secret's files, replaced when they change."""
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS_1_3_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_JAVA_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class _Identity:
    """A certificate with its chain, and its private key, in PEM."""

    source: str
    """The setting that gives it, and its file."""
    chain: bytes
    key: bytes
    password: str = ""


class ServerTls:
    """The TLS of one listener.  Its context is replaced when a file that it is made of has changed.

    `reload` may run in another thread than those that use the rest.
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

    The other side must show a certificate of these authorities; with `checks_name`, one that has its host's name.
    Raises ConfigError.
    """
    context, _ = _made(security, ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = checks_name
    return context


def _made(security: ListenerSecurity, protocol: int = ssl.PROTOCOL_TLS_SERVER) -> tuple[ssl.SSLContext, float]:
    """Return a context of the settings, and when its certificate expires.  Raises ConfigError."""
    where = f"listener {security.name}"
    identity = _identity(security, where)
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # of a client's context alone; its verify mode could not be set else
    versions = [_VERSIONS[each] for each in security.get("ssl.enabled.protocols")]
    if not versions:
        raise ConfigError(f"{where}: ssl.enabled.protocols is empty; give TLSv1.2,TLSv1.3")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a client that comes again shows its certificate again
    # No sni_callback: Python writes a traceback for a name that is not ASCII, which any client can send.
    _set_ciphers(context, security.get("ssl.cipher.suites"), where)
    try:
        with _unnamed_file(identity.key + b"\n" + identity.chain) as path:
            context.load_cert_chain(path, password=lambda: identity.password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = _reason(error, identity)
        raise ConfigError(f"{where}: {identity.source}: the certificate and its key cannot be used: {reason}") from None
    context.verify_mode = _VERIFY[security.get("ssl.client.auth")]
    if context.verify_mode is not ssl.CERT_NONE:
        authorities = _authorities(security, where).decode("ascii", "replace")
        try:
            context.load_verify_locations(cadata=authorities)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: the truststore cannot be used: {_reason(error)}") from None
    return context, _expiry(identity.chain, where)


def _reason(error: Exception, identity: _Identity | None = None) -> str:
    """Return OpenSSL's reason in words.  It has none for a key that it cannot decrypt, nor for one that is missing."""
    reason = getattr(error, "reason", None)
    if reason is None and identity is not None:
        if b"ENCRYPTED" in identity.key + identity.chain:
            return "the private key is encrypted, and ssl.key.password is not its password"
        return "there is no private key with a certificate"
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "the private key is not that of the certificate"
    return str(reason or error).replace("_", " ").lower()


def _set_ciphers(context: ssl.SSLContext, suites: tuple[str, ...], where: str) -> None:
    """Allow these suites only.  Those of TLS 1.3 are all safe, and OpenSSL's Python lets nobody choose among them."""
    older = [_openssl_name(each) for each in suites if each not in _TLS_1_3_SUITES]
    if not older:
        return
    for name in older:
        try:
            context.set_ciphers(name)
        except ssl.SSLError:
            raise ConfigError(f"{where}: ssl.cipher.suites: OpenSSL has no suite {name!r}") from None
    context.set_ciphers(":".join(older))


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256 there."""
    if not suite.startswith("TLS_"):
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    parts = [part for part in (exchange.removeprefix("RSA") if exchange == "RSA" else exchange, cipher) if part]
    return "-".join(parts).replace("_", "-")


# ---------------------------------------------------------------------------------------------------- certificates


def _identity(security: ListenerSecurity, where: str) -> _Identity:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    location = security.get("ssl.keystore.location")
    key, chain = security.get("ssl.keystore.key"), security.get("ssl.keystore.certificate.chain")
    if not location:
        if not key or not chain:
            raise ConfigError(
                f"{where}: {security.protocol} needs a certificate: give ssl.keystore.location, a file in PEM or"
                " PKCS#12, or ssl.keystore.key with ssl.keystore.certificate.chain"
            )
        source = "ssl.keystore.certificate.chain, ssl.keystore.key"
        return _Identity(source, _pem(chain), _pem(key), security.get("ssl.key.password"))
    if key or chain:
        raise ConfigError(f"{where}: give either ssl.keystore.location or ssl.keystore.key, not both")
    setting = f"{where}: ssl.keystore.location"
    source = f"ssl.keystore.location={location}"
    if Path(location).is_dir():
        swapped = Path(location, _SWAPPED)  # both files of one moment, also while Kubernetes replaces them
        folder = swapped.resolve() if swapped.is_dir() else Path(location)
        chain, key = (_pem_file(folder / each, setting) for each in (CERTIFICATE, KEY))
        return _Identity(source, chain, key, security.get("ssl.key.password"))
    data, is_pem = _store(location, security.get("ssl.keystore.type"), setting)
    if is_pem:
        pem = _pem(data.decode("latin-1"))
        return _Identity(source, pem, b"", security.get("ssl.key.password"))
    store = _pkcs12(data, security.get("ssl.keystore.password"), f"{setting}={location}", "ssl.keystore.password")
    if store.key is None or store.cert is None:
        raise ConfigError(f"{setting}={location} holds no private key with a certificate")
    certificates = _in_order(store.cert.certificate, [each.certificate for each in store.additional_certs])
    password = os.urandom(16).hex()
    encrypted = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
    return _Identity(source, chain, encrypted, password)


def _authorities(security: ListenerSecurity, where: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    location, given = security.get("ssl.truststore.location"), security.get("ssl.truststore.certificates")
    if bool(location) == bool(given):
        raise ConfigError(
            f"{where}: ssl.client.auth={security.get('ssl.client.auth')} needs the authorities of clients'"
            f" certificates: give {'either ' if given else ''}ssl.truststore.location or ssl.truststore.certificates"
        )
    if given:
        return _pem(given)
    setting = f"{where}: ssl.truststore.location"
    data, is_pem = _store(location, security.get("ssl.truststore.type"), setting)
    if is_pem:
        return _pem(data.decode("latin-1"))
    store = _pkcs12(data, security.get("ssl.truststore.password"), f"{setting}={location}", "ssl.truststore.password")
    found = [each.certificate for each in (*((store.cert,) if store.cert else ()), *store.additional_certs)]
    if not found:
        raise ConfigError(f"{setting}={location} holds no certificate")
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def _pem_file(path: Path, setting: str) -> bytes:
    data, _ = _store(str(path), "PEM", setting)
    return _pem(data.decode("latin-1"))


def _store(location: str, kind: str, setting: str) -> tuple[bytes, bool]:
    """Return a file, and whether it is PEM.  Raises ConfigError, also if it is neither PEM nor PKCS#12."""
    try:
        with Path(location).open("rb") as stream:
            data = stream.read(STORE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {location}: {error.strerror}") from None
    if len(data) > STORE_BYTES_MAX:
        raise ConfigError(f"{setting}={location} is larger than {STORE_BYTES_MAX} bytes")
    if data.startswith(_JAVA_MAGIC):
        raise ConfigError(
            f"{setting}={location} is a JKS file, which only Java reads; convert it: keytool -importkeystore"
            f" -srckeystore {location} -destkeystore {Path(location).with_suffix('.p12')} -deststoretype PKCS12"
        )
    is_pem = b"-----BEGIN " in data
    if not is_pem and not data.startswith(b"\x30"):
        raise ConfigError(f"{setting}={location} is neither PEM nor PKCS#12")
    if kind in ("PEM", "PKCS12") and is_pem is not (kind == "PEM"):
        raise ConfigError(f"{setting}={location} is {'PEM' if is_pem else 'PKCS#12'}, not the type that is set, {kind}")
    return data, is_pem


def _pem(text: str) -> bytes:
    """Return the certificates and keys of a PEM text, in lines as OpenSSL wants them, whatever the blanks between."""
    blocks = []
    for label, body in _PEM.findall(text):
        if ":" in body:  # headers of an old encrypted key, whose lines count
            blocks.append(f"-----BEGIN {label}-----{body}-----END {label}-----\n")
        else:
            packed = "".join(body.split())
            lines = "\n".join(packed[pos : pos + 64] for pos in range(0, len(packed), 64))
            blocks.append(f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
    return "".join(blocks).encode("latin-1", "replace")


def _pkcs12(data: bytes, password: str, where: str, setting: str) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        return pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise ConfigError(f"{where} cannot be read as PKCS#12: is {setting} its password?") from None


def _in_order(leaf: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """Return the certificate, then each one's issuer, as TLS sends them."""
    chain, left = [leaf], list(others)
    while found := [each for each in left if each.subject == chain[-1].issuer]:
        chain.append(found[0])
        left.remove(found[0])
    return chain


def _expiry(chain: bytes, where: str) -> float:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(chain)[0].not_valid_after_utc.timestamp()
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{where}: the certificate cannot be read: {error}") from None


@contextlib.contextmanager
def _unnamed_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory that holds `data` until the end of the body.

    Where there is no such memory, of a file that nobody else may read and that is removed then.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("bmq-tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile() as named:  # mode 0600
        named.write(data)
        named.flush()
        yield named.name

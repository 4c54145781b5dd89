"""Keystores and truststores: PEM and PKCS#12 in, what OpenSSL takes out.

The first bytes of a file show its kind, whatever its name.  Java's JKS is not read: the error says by which command it
becomes PKCS#12.  A private key is never written to a disk: OpenSSL reads it from memory that has no name.

Settings have Kafka's names, and are read by a function from a key to its value, empty if it is not set: listeners and
clients have the same ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bmq.core.options import ConfigError

if TYPE_CHECKING:  # it is loaded where it is used: a process without TLS starts sooner
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

STORE_BYTES_MAX = 4 << 20
"""Largest file of certificates: a machine's own list of authorities has 250 KB."""
TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS_1_3_SUITES = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_JAVA_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_PEM = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
CERTIFICATE, KEY = "tls.crt", "tls.key"
"""Files of a keystore that is a folder: a Secret of the type kubernetes.io/tls, mounted."""
_SWAPPED = "..data"
"""Kubernetes' link to the folder of a mounted Secret's files, replaced when they change."""
Get = Callable[[str], Any]


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKeyEntry:
    """A certificate with its chain, and its private key, in PEM."""

    source: str
    """The setting that gives it, and its file."""
    chain: bytes
    key: bytes
    password: str = ""


def load_identity(context: ssl.SSLContext, identity: PrivateKeyEntry, where: str) -> None:
    """Make a context show this certificate.  Raises ConfigError if OpenSSL cannot use it with its key."""
    try:
        with _unnamed_file(identity.key + b"\n" + identity.chain) as path:
            context.load_cert_chain(path, password=lambda: identity.password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        reason = _reason(error, identity)
        raise ConfigError(f"{where}: {identity.source}: the certificate and its key cannot be used: {reason}") from None


def load_authorities(context: ssl.SSLContext, authorities: bytes, where: str) -> None:
    """Make a context trust these authorities alone.  Raises ConfigError if OpenSSL cannot read them."""
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: the truststore cannot be used: {_reason(error)}") from None


def _reason(error: Exception, identity: PrivateKeyEntry | None = None) -> str:
    """Return OpenSSL's reason in words.

    OpenSSL has no reason for a key that it cannot decrypt, nor for a missing key."""
    reason = getattr(error, "reason", None)
    if reason is None and identity is not None:
        if b"ENCRYPTED" in identity.key + identity.chain:
            return "the private key is encrypted, and ssl.key.password is not its password"
        return "there is no private key with a certificate"
    if reason in ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"):
        return "the private key is not that of the certificate"
    return str(reason or error).replace("_", " ").lower()


def set_ciphers(context: ssl.SSLContext, suites: tuple[str, ...], where: str) -> None:
    """Allow these suites only.

    The suites of TLS 1.3 are all safe, and OpenSSL's Python lets nobody choose among them.
    """
    older = openssl_suites(suites)
    if not older:
        return
    for name in older:
        try:
            context.set_ciphers(name)
        except ssl.SSLError:
            raise ConfigError(f"{where}: ssl.cipher.suites: OpenSSL has no suite {name!r}") from None
    context.set_ciphers(":".join(older))


def openssl_suites(suites: tuple[str, ...]) -> list[str]:
    """Return OpenSSL's names of those suites that are not of TLS 1.3."""
    return [_openssl_name(each) for each in suites if each not in _TLS_1_3_SUITES]


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a suite: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256 there."""
    if not suite.startswith("TLS_"):
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).replace("_CBC", "").replace("POLY1305_SHA256", "POLY1305")
    parts = [part for part in (exchange.removeprefix("RSA") if exchange == "RSA" else exchange, cipher) if part]
    return "-".join(parts).replace("_", "-")


def identity_of(get: Get, where: str) -> PrivateKeyEntry | None:
    """Return the certificate of the settings ``ssl.keystore.…``; None if there is none.  Raises ConfigError."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

    location = get("ssl.keystore.location")
    key, chain = get("ssl.keystore.key"), get("ssl.keystore.certificate.chain")
    if not location:
        if bool(key) != bool(chain):
            raise ConfigError(
                f"{where}: SSL needs a certificate with its key: ssl.keystore.key and ssl.keystore.certificate.chain"
                " belong together"
            )
        source = "ssl.keystore.certificate.chain, ssl.keystore.key"
        return PrivateKeyEntry(source, _pem(chain), _pem(key), get("ssl.key.password")) if key else None
    if key or chain:
        raise ConfigError(f"{where}: give either ssl.keystore.location or ssl.keystore.key, not both")
    setting = f"{where}: ssl.keystore.location"
    source = f"ssl.keystore.location={location}"
    if Path(location).is_dir():
        swapped = Path(location, _SWAPPED)  # both files of one moment, also while Kubernetes replaces them
        folder = swapped.resolve() if swapped.is_dir() else Path(location)
        chain, key = (_pem_file(folder / each, setting) for each in (CERTIFICATE, KEY))
        return PrivateKeyEntry(source, chain, key, get("ssl.key.password"))
    data, is_pem = _store(location, get("ssl.keystore.type"), setting)
    if is_pem:
        pem = _pem(data.decode("latin-1"))
        return PrivateKeyEntry(source, pem, b"", get("ssl.key.password"))
    store = _pkcs12(data, get("ssl.keystore.password"), f"{setting}={location}", "ssl.keystore.password")
    if store.key is None or store.cert is None:
        raise ConfigError(f"{setting}={location} holds no private key with a certificate")
    certificates = _in_order(store.cert.certificate, [each.certificate for each in store.additional_certs])
    password = os.urandom(16).hex()
    encrypted = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in certificates)
    return PrivateKeyEntry(source, chain, encrypted, password)


def authorities_of(get: Get, where: str) -> bytes | None:
    """Return the authorities of ``ssl.truststore.…`` in PEM; None if there are none.  Raises ConfigError."""
    from cryptography.hazmat.primitives.serialization import Encoding

    location, given = get("ssl.truststore.location"), get("ssl.truststore.certificates")
    if location and given:
        raise ConfigError(f"{where}: give either ssl.truststore.location or ssl.truststore.certificates, not both")
    if not location and not given:
        return None
    if given:
        return _pem(given)
    setting = f"{where}: ssl.truststore.location"
    data, is_pem = _store(location, get("ssl.truststore.type"), setting)
    if is_pem:
        return _pem(data.decode("latin-1"))
    store = _pkcs12(data, get("ssl.truststore.password"), f"{setting}={location}", "ssl.truststore.password")
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


@contextlib.contextmanager
def _unnamed_file(data: bytes) -> Iterator[str]:
    """Yield the path of a file in memory that holds ``data`` until the end of the body.

    Where there is no such memory, it is the path of a file for this user alone, and the file is removed at the end.
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

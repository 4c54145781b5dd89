"""SCRAM (RFC 5802, RFC 7677): its messages, its computations, and the server's side of one exchange.  Pure.

::

    client-first    n,,n=alice,r=<client's nonce>
    server-first    r=<both nonces>,s=<salt>,i=<iterations>
    client-final    c=biws,r=<both nonces>,p=<proof>
    server-final    v=<signature>

The server keeps no password, but what is computed from one (``ScramCredential``), and does no PBKDF2 itself: three
HMACs an exchange.  A stolen credential lets nobody in, but lets passwords be tried.

As in Kafka, names and passwords are taken as they are, without SASLprep, and channel binding is not supported.  Other
than Kafka: the channel binding data in the final message must be the header of the first one, as the RFC asks; names
may have other characters than ASCII.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bmq.core.errors import FormatError

ITERATIONS_LEAST = 4_096
ITERATIONS_MOST = 16_384
"""Kafka's bounds.  A client computes as many HMACs whenever it connects."""
MESSAGE_MAX = 8 << 10
"""Bytes of a client's message at most.  Names, nonces and proofs have less than a hundred each."""
_SALT_BITS = 130  # of randomness in salts and nonces, as in Kafka's ScramFormatter
_SALT_LENGTHS = range(24, 27)
"""Lengths of such a salt in base 36, but for one in a million."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_FIRST = re.compile(
    r"(?P<gs2>[ny],(?:a=(?P<authzid>[^,\0]+))?,)"
    r"(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_FINAL = re.compile(
    r"(?P<bare>c=(?P<binding>[A-Za-z0-9/+=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,\0]+)*?)"
    r",p=(?P<proof>[A-Za-z0-9/+=]+)"
)
_ESCAPE = re.compile(r"=(2C|3D)?")


@dataclass(frozen=True, slots=True)
class ScramMechanism:
    """One of Kafka's two mechanisms.  ``type`` is its number in requests (``ScramMechanism`` of Kafka's clients)."""

    name: str
    type: int
    hash_name: str

    def hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.digest(key, data, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    @property
    def size(self) -> int:
        """Bytes of a key."""
        return hashlib.new(self.hash_name).digest_size


SCRAM_SHA_256 = ScramMechanism("SCRAM-SHA-256", 1, "sha256")
SCRAM_SHA_512 = ScramMechanism("SCRAM-SHA-512", 2, "sha512")
BY_NAME: Mapping[str, ScramMechanism] = {each.name: each for each in (SCRAM_SHA_256, SCRAM_SHA_512)}
BY_TYPE: Mapping[int, ScramMechanism] = {each.type: each for each in BY_NAME.values()}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """The server's knowledge of one user's password, for one mechanism."""

    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


def credential_of(mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a password that was salted already, as administrators' clients send it (KIP-554)."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    server_key = mechanism.hmac(salted_password, b"Server Key")
    return ScramCredential(salt, iterations, mechanism.hash(client_key), server_key)


def credential_of_password(
    mechanism: ScramMechanism, password: str, iterations: int, salt: bytes | None = None
) -> ScramCredential:
    """Return the credential of a password, by PBKDF2: some ten milliseconds, so not for clients' requests."""
    salt = random_text().encode() if salt is None else salt
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
    return credential_of(mechanism, salted, salt, iterations)


def random_text() -> str:
    """Return a salt or nonce: 130 random bits, in letters and digits."""
    return _in_digits(secrets.randbits(_SALT_BITS))


class CredentialForm(NamedTuple):
    """The form of a credential, which depends on the program that made it.  Clients see it before their proof."""

    iterations: int
    salt_bytes: int
    """Length of the salt; 0 for the salt of Kafka's ScramFormatter, whose length differs from user to user."""
    is_text: bool
    """True if the salt has small letters and digits only."""


USUAL_FORM = CredentialForm(ITERATIONS_LEAST, 0, is_text=True)
"""The form of the credentials that Kafka's tools and ``bmq cluster add-scram`` make without further options."""


def form_of(credential: ScramCredential) -> CredentialForm:
    """Return the form of a credential."""
    is_text = not credential.salt.translate(None, _DIGITS.encode())
    size = len(credential.salt)
    return CredentialForm(credential.iterations, 0 if is_text and size in _SALT_LENGTHS else size, is_text)


def decoy_form(secret: bytes, name: str, counts: Mapping[CredentialForm, int]) -> CredentialForm:
    """Return the form of the decoy of ``name``: each form as often as users have it, by the cluster's ``secret``.

    A change of the counts changes as few names' forms as it can: a form has the chance of its count to win (weighted
    rendezvous hashing).
    """

    def score(form: CredentialForm) -> float:
        drawn = hmac.digest(
            secret, f"form,{form.iterations},{form.salt_bytes},{form.is_text},{name}".encode(), "sha256"
        )
        return -counts[form] / math.log((int.from_bytes(drawn[:8]) + 1) / (2**64 + 1))

    return max(counts, key=score, default=USUAL_FORM)


def decoy(mechanism: ScramMechanism, secret: bytes, name: str, form: CredentialForm) -> ScramCredential:
    """Return the credential of a user that does not exist: it is always the same, and fits no password.

    It depends on the cluster's ``secret``, so that it cannot be told from a real one, whichever proxy gives it.
    """
    about = f"{mechanism.name},{name}".encode()
    stored_key = mechanism.hmac(secret, b"stored key," + about)
    return ScramCredential(
        _decoy_salt(secret, about, form), form.iterations, stored_key, mechanism.hmac(secret, b"server key," + about)
    )


def _decoy_salt(secret: bytes, about: bytes, form: CredentialForm) -> bytes:
    drawn = hmac.digest(secret, b"salt," + about, "sha256")
    if form.salt_bytes == 0 and form.is_text:
        return _in_digits(int.from_bytes(drawn) >> (256 - _SALT_BITS)).encode()
    salt = b""
    while len(salt) < form.salt_bytes:
        salt += drawn
        drawn = hmac.digest(secret, drawn, "sha256")
    salt = salt[: form.salt_bytes]
    return bytes(ord(_DIGITS[byte % len(_DIGITS)]) for byte in salt) if form.is_text else salt


class ClientFirst(NamedTuple):
    """A client's first message."""

    gs2_header: str
    acts_as: str
    """Authorization identity; empty if the client gave none."""
    name: str
    nonce: str
    extensions: Mapping[str, str]
    bare: str

    @property
    def is_by_token(self) -> bool:
        """True if the name is a delegation token's id (KIP-48)."""
        return self.extensions.get("tokenauth", "").lower() == "true"


class ClientFinal(NamedTuple):
    """A client's final message."""

    binding: bytes
    nonce: str
    proof: bytes
    bare: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Return the parts of a first message.  Raises FormatError, which shows nothing of it, if it is none."""
    found = _FIRST.fullmatch(_text(message))
    if found is None:
        raise FormatError("not a SCRAM client-first message")
    extensions = {}
    for each in filter(None, found["extensions"].split(",")):
        name, _, value = each.partition("=")
        extensions[name] = value
    acts_as = _unescaped(found["authzid"] or "")
    return ClientFirst(found["gs2"], acts_as, _unescaped(found["name"]), found["nonce"], extensions, found["bare"])


def parse_client_final(message: bytes) -> ClientFinal:
    """Return the parts of a final message.  Raises FormatError, which shows nothing of it, if it is none."""
    found = _FINAL.fullmatch(_text(message))
    if found is None:
        raise FormatError("not a SCRAM client-final message")
    try:
        binding = base64.b64decode(found["binding"], validate=True)
        proof = base64.b64decode(found["proof"], validate=True)
    except binascii.Error:
        raise FormatError("a SCRAM client-final message with wrong Base64") from None
    return ClientFinal(binding, found["nonce"], proof, found["bare"])


class ScramServerMessages:
    """The server's messages of one exchange, from the client's first message on."""

    def __init__(
        self, mechanism: ScramMechanism, first: ClientFirst, credential: ScramCredential, nonce: str | None = None
    ) -> None:
        """``nonce`` is the server's part; a random one if None."""
        self._mechanism = mechanism
        self._first = first
        self._credential = credential
        self._nonce = first.nonce + (random_text() if nonce is None else nonce)
        salt = base64.b64encode(credential.salt).decode()
        self.first_message = f"r={self._nonce},s={salt},i={credential.iterations}"
        """The server's first message."""

    def __repr__(self) -> str:
        return f"<ScramServerMessages {self._mechanism.name}>"

    def has_nonce(self, final: ClientFinal) -> bool:
        """Return whether the client's final message has the nonce of the server's first one.

        Kafka from 4.0 on requires it, as the RFC does.  librdkafka before 2.6.1 puts its own nonce before it once more.
        """
        return final.nonce == self._nonce

    def final_message(self, final: ClientFinal) -> str | None:
        """Return the server's final message; None if the client's does not prove that it knows the password."""
        mechanism, credential = self._mechanism, self._credential
        message = f"{self._first.bare},{self.first_message},{final.bare}".encode()
        signature = mechanism.hmac(credential.stored_key, message)
        if len(final.proof) != len(signature):
            return None
        client_key = bytes(a ^ b for a, b in zip(final.proof, signature, strict=True))
        is_proven = hmac.compare_digest(mechanism.hash(client_key), credential.stored_key)
        is_same = self.has_nonce(final) and final.binding == self._first.gs2_header.encode()
        if not (is_proven and is_same):
            return None
        return f"v={base64.b64encode(mechanism.hmac(credential.server_key, message)).decode()}"


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_MAX:
        raise FormatError(f"a SCRAM message of {len(message)} bytes, more than {MESSAGE_MAX}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise FormatError("a SCRAM message that is not UTF-8") from None


def _unescaped(name: str) -> str:
    """Return a name with its escapes of commas and equals signs replaced."""

    def replace(found: re.Match[str]) -> str:
        if found[1] is None:
            raise FormatError("a SCRAM name with an equals sign that is not =2C or =3D")
        return "," if found[1] == "2C" else "="

    return _ESCAPE.sub(replace, name)


def _in_digits(number: int) -> str:
    digits = ""
    while number or not digits:
        number, rest = divmod(number, 36)
        digits = _DIGITS[rest] + digits
    return digits

"""DIGEST-MD5 as a SASL client (RFC 2831), the mechanism of Hadoop's tokens, with its security layers.  Pure.

::

    server: realm="0",nonce="...",qop="auth",charset=utf-8,algorithm=md5-sess
    client: charset=utf-8,username="...",realm="0",nonce="...",nc=00000001,cnonce="...",digest-uri="hdfs/0",
            response=...,qop=auth
    server: rspauth=...                                 the server knows the password, too

The client takes the first of its own levels that the server offers (DigestMD5Client of the JDK).  ``auth-int`` and
``auth-conf`` give a ``SecurityLayer`` for the bytes that follow.  A token's identifier and password are the user and
the password, in Base64 (SaslRpcServer.encodeIdentifier).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.security_layer import SecurityLayer, available_ciphers

CHALLENGE_BYTES_MAX = 2048
"""Longest challenge (RFC 2831, section 2.1.1)."""
AUTHENTICATION, INTEGRITY, PRIVACY = "auth", "auth-int", "auth-conf"
LEVELS = {AUTHENTICATION: "authentication", INTEGRITY: "integrity", PRIVACY: "privacy"}
"""Hadoop's names of the levels of protection."""
BUFFER_BYTES = 65536
"""Longest wrapped message of a peer that does not say ``maxbuf``."""
_ONCE = frozenset({"nonce", "algorithm", "charset", "maxbuf", "stale", "rspauth", "qop", "cipher"})
_DIRECTIVE = re.compile(
    r'[\s,]*([!#-\'*+.0-9A-Z^-z|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",=]+))\s*(?=,|$)', re.ASCII | re.DOTALL
)
_END = re.compile(r"[\s,]*\Z")
_FIRST_USE = "00000001"
_CIPHERS_MAX = 8
_BUFFER_BYTES_MIN = 64


class DigestFailed(Exception):
    """The server breaks the rules of the mechanism, or does not know the password.  Never leaves this package."""


class LevelDemanded(DigestFailed):
    """The server offers none of the client's levels; ``levels`` has Hadoop's names of the server's levels."""

    def __init__(self, levels: str) -> None:
        super().__init__(f"a level of protection out of {levels}")
        self.levels = levels


class CipherDemanded(DigestFailed):
    """The server offers no cipher for privacy that this client has; ``ciphers`` has the server's names of them."""

    def __init__(self, ciphers: str) -> None:
        super().__init__(f"a cipher out of {ciphers or 'none'}")
        self.ciphers = ciphers


class DigestMd5:
    """The client's side of one authentication: ``evaluate`` the challenge, then the proof, until ``is_complete``.

    ``levels`` has the client's levels (RFC 2831's ``qop``), best first, and ``cipher`` the only cipher that it takes,
    empty for any.  Once the authentication is complete, ``qop`` is the negotiated level and ``layer`` its security
    layer, None for ``auth``.
    """

    def __init__(
        self,
        user: str,
        password: str,
        digest_uri: str,
        *,
        levels: Sequence[str] = (AUTHENTICATION,),
        cipher: str = "",
        cnonce: str = "",
    ) -> None:
        self._user = user
        self._password = password
        self._digest_uri = digest_uri
        self.levels = tuple(levels)
        self.only_cipher = cipher
        self._cnonce = cnonce or secrets.token_urlsafe(24)
        self._proof = ""
        self._cipher = ""
        self._session_key = b""
        self._peer_buffer_bytes = BUFFER_BYTES
        self.qop = ""
        self.layer: SecurityLayer | None = None
        self.is_complete = False

    @classmethod
    def by_token(cls, token: pb.Token, digest_uri: str, *, levels: Sequence[str] = (AUTHENTICATION,)) -> DigestMd5:
        """Return the authentication as the owner of ``token``."""
        return cls(_text(token.identifier), _text(token.password), digest_uri, levels=levels)

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the response to the challenge, and None to the server's proof.

        Raises DigestFailed for a wrong proof or malformed bytes.  Raises LevelDemanded if the server offers none of the
        client's levels, and CipherDemanded if it offers none of the client's ciphers for privacy.
        """
        if self.is_complete:
            raise DigestFailed("a challenge after the end")
        directives = parse(challenge)
        if not self._proof:
            return self._respond(directives)
        (proof,) = directives.get("rspauth", [""])
        if not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise DigestFailed("the server does not know the password")
        if self.qop != AUTHENTICATION:
            self.layer = SecurityLayer(self._session_key, self._cipher, peer_buffer_bytes=self._peer_buffer_bytes)
        self.is_complete = True
        return None

    def _respond(self, directives: dict[str, list[str]]) -> bytes:
        (nonce,) = directives.get("nonce", [""])
        if not nonce or directives.get("algorithm") != ["md5-sess"]:
            raise DigestFailed("a challenge without a nonce, or with another algorithm than md5-sess")
        if not nonce.isascii():  # RFC 2831 recommends Base64 or hexadecimal, and the JDK sends Base64
            raise DigestFailed("a nonce with other characters than ASCII's")
        offers = [offer.strip().lower() for offer in directives.get("qop", [AUTHENTICATION])[0].split(",")]
        qop = next((level for level in self.levels if level in offers), None)
        if qop is None:
            raise LevelDemanded(", ".join(LEVELS.get(offer, offer[:20]) for offer in offers))
        if qop == PRIVACY:
            self._cipher = self._choose_cipher(directives.get("cipher", [""])[0])
        self._peer_buffer_bytes = _buffer_bytes(directives.get("maxbuf", [str(BUFFER_BYTES)])[0])
        is_utf8 = directives.get("charset", [""])[0].lower() == "utf-8"
        realm = directives.get("realm", [""])[0]  # of several the first: a token's server has one
        key = _digest(b":".join(_hashed(text, is_utf8=is_utf8) for text in (self._user, realm, self._password)))
        encoding = "utf-8" if is_utf8 else "latin-1"
        a1 = key + f":{nonce}:{self._cnonce}".encode(encoding)

        def value(a2: str) -> str:
            whole = a2 if qop == AUTHENTICATION else f"{a2}:{'0' * 32}"
            parts = (self._session_key.hex(), nonce, _FIRST_USE, self._cnonce, qop, _digest(whole.encode()).hex())
            return _digest(":".join(parts).encode(encoding)).hex()

        self.qop = qop
        self._session_key = _digest(a1)
        self._proof = value(f":{self._digest_uri}")
        response = {
            "username": _quoted(self._user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "nc": _FIRST_USE,
            "cnonce": _quoted(self._cnonce),
            "digest-uri": _quoted(self._digest_uri),
            "response": value(f"AUTHENTICATE:{self._digest_uri}"),
            "qop": qop,
        }
        if self._cipher:
            response["cipher"] = _quoted(self._cipher)
        if is_utf8:
            response = {"charset": "utf-8", **response}
        return ",".join(f"{name}={text}" for name, text in response.items()).encode(encoding)

    def _choose_cipher(self, offered: str) -> str:
        names = [name.strip().lower() for name in offered.split(",")]
        for name in available_ciphers():
            if name in names and self.only_cipher in {"", name}:
                return name
        raise CipherDemanded(", ".join(name[:20] for name in names[:_CIPHERS_MAX]))


def parse(challenge: bytes) -> dict[str, list[str]]:
    """Return the directives of a challenge, by lower-case name.  Raises DigestFailed if they are malformed."""
    if len(challenge) > CHALLENGE_BYTES_MAX:
        raise DigestFailed(f"a challenge of {len(challenge)} bytes")
    try:
        text = challenge.decode()
    except UnicodeDecodeError:
        text = challenge.decode("latin-1")
    directives: dict[str, list[str]] = {}
    position = 0
    while not _END.match(text, position):
        match = _DIRECTIVE.match(text, position)
        if match is None:
            raise DigestFailed(f"a malformed challenge at byte {position}")
        name, quoted, plain = match.groups()
        directives.setdefault(name.lower(), []).append(plain if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        position = match.end()
    if twice := [name for name, values in directives.items() if len(values) > 1 and name in _ONCE]:
        raise DigestFailed(f"a challenge with two of {twice[0]}")
    return directives


def _buffer_bytes(text: str) -> int:
    """Return a peer's ``maxbuf``.  RFC 2831 demands more than 16 bytes, and three bytes of length on the wire."""
    if not text.isascii() or not text.isdigit() or len(text) > 8 or not _BUFFER_BYTES_MIN <= int(text) < 1 << 24:
        raise DigestFailed(f"a buffer of {text[:20]!r} bytes")
    return int(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _hashed(text: str, *, is_utf8: bool) -> bytes:
    """Return a name's bytes for the key: ISO 8859-1 wherever it has all of the characters (section 2.1.2.1)."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        if not is_utf8:
            raise DigestFailed("a name that the server's character set does not have") from None
        return text.encode()


def _digest(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()  # the mechanism's own hash

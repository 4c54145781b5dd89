"""DIGEST-MD5 as a SASL client (RFC 2831), the mechanism of Hadoop's tokens.  Pure.

::

    server: realm="0",nonce="...",qop="auth",charset=utf-8,algorithm=md5-sess
    client: charset=utf-8,username="...",realm="0",nonce="...",nc=00000001,cnonce="...",digest-uri="hdfs/0",
            response=...,qop=auth
    server: rspauth=...                                 the server knows the password, too

Only authentication (``qop=auth``) is built, without a layer.  A token's identifier and password are the user and the
password, in Base64 (SaslRpcServer.encodeIdentifier).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from bmq.storage.hdfs import messages_pb2 as pb

CHALLENGE_BYTES_MAX = 2048
"""Longest challenge (RFC 2831, section 2.1.1)."""
QOP = "auth"
LEVELS = {"auth": "authentication", "auth-int": "integrity", "auth-conf": "privacy"}
"""Hadoop's names of the levels of protection."""
_ONCE = frozenset({"nonce", "algorithm", "charset", "maxbuf", "stale", "rspauth", "qop", "cipher"})
_DIRECTIVE = re.compile(
    r'[\s,]*([!#-\'*+.0-9A-Z^-z|~-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",=]+))\s*(?=,|$)', re.ASCII | re.DOTALL
)
_END = re.compile(r"[\s,]*\Z")
_FIRST_USE = "00000001"


class DigestFailed(Exception):
    """The server breaks the rules of the mechanism, or does not know the password.  Never leaves this package."""


class LevelDemanded(DigestFailed):
    """The server demands a layer; ``levels`` has Hadoop's names of what it offers."""

    def __init__(self, levels: str) -> None:
        super().__init__(f"a level of protection out of {levels}")
        self.levels = levels


class DigestMd5:
    """The client's side of one authentication: ``evaluate`` the challenge, then the proof, until ``is_complete``."""

    def __init__(self, user: str, password: str, digest_uri: str, *, cnonce: str = "") -> None:
        self._user = user
        self._password = password
        self._digest_uri = digest_uri
        self._cnonce = cnonce or secrets.token_urlsafe(24)
        self._proof = ""
        self.is_complete = False

    @classmethod
    def by_token(cls, token: pb.Token, digest_uri: str) -> DigestMd5:
        """Return the authentication as the owner of ``token``."""
        return cls(_text(token.identifier), _text(token.password), digest_uri)

    def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the response to the challenge, and None to the server's proof.

        Raises DigestFailed for a wrong proof or malformed bytes, LevelDemanded if the server demands a layer.
        """
        if self.is_complete:
            raise DigestFailed("a challenge after the end")
        directives = parse(challenge)
        if not self._proof:
            return self._respond(directives)
        (proof,) = directives.get("rspauth", [""])
        if not hmac.compare_digest(proof.encode(), self._proof.encode()):
            raise DigestFailed("the server does not know the password")
        self.is_complete = True
        return None

    def _respond(self, directives: dict[str, list[str]]) -> bytes:
        (nonce,) = directives.get("nonce", [""])
        if not nonce or directives.get("algorithm") != ["md5-sess"]:
            raise DigestFailed("a challenge without a nonce, or with another algorithm than md5-sess")
        offers = [offer.strip().lower() for offer in directives.get("qop", [QOP])[0].split(",")]
        if QOP not in offers:
            raise LevelDemanded(", ".join(LEVELS.get(offer, offer[:20]) for offer in offers))
        is_utf8 = directives.get("charset", [""])[0].lower() == "utf-8"
        realm = directives.get("realm", [""])[0]  # of several the first: a token's server has one
        key = _digest(b":".join(_hashed(text, is_utf8=is_utf8) for text in (self._user, realm, self._password)))
        encoding = "utf-8" if is_utf8 else "latin-1"
        a1 = key + f":{nonce}:{self._cnonce}".encode(encoding)

        def value(a2: str) -> str:
            parts = (_digest(a1).hex(), nonce, _FIRST_USE, self._cnonce, QOP, _digest(a2.encode(encoding)).hex())
            return _digest(":".join(parts).encode(encoding)).hex()

        self._proof = value(f":{self._digest_uri}")
        response = {
            "username": _quoted(self._user),
            "realm": _quoted(realm),
            "nonce": _quoted(nonce),
            "nc": _FIRST_USE,
            "cnonce": _quoted(self._cnonce),
            "digest-uri": _quoted(self._digest_uri),
            "response": value(f"AUTHENTICATE:{self._digest_uri}"),
            "qop": QOP,
        }
        if is_utf8:
            response = {"charset": "utf-8", **response}
        return ",".join(f"{name}={text}" for name, text in response.items()).encode(encoding)


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

"""The SASL negotiation at the beginning of an RPC connection (SaslRpcClient, Server.Connection).  Pure.

::

    client: preamble with AUTH_SASL, NEGOTIATE
    server: NEGOTIATE, its offers                       each a method, a mechanism, and the server's name
    client: INITIATE, the chosen offer, a token
    server: CHALLENGE, a token                          repeated, as the mechanism needs it
    client: RESPONSE, a token
    server: SUCCESS, and a last token if the mechanism has one

The server's offers decide; the first is chosen whose method this client has credentials for.  A server without
security answers NEGOTIATE with SUCCESS, or offers SIMPLE: that ends the log-in, unless the fall-back is allowed.
Mechanisms may block, so the machine asks for their steps (``MechanismStep``), and its caller brings the result.

The mechanism also agrees on the protection of what follows (``hadoop.rpc.protection``).  The server offers its levels;
the client chooses the first of its own that the server offers, as Java's mechanisms do.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from bmq.storage.filesystem import NotAllowed, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.logins import REFUSED, SILENT

SASL_CALL_ID = -33
"""The call id of the negotiation's messages; a response has it as an unsigned number of 32 bits."""
SIMPLE, KERBEROS, TOKEN = "SIMPLE", "KERBEROS", "TOKEN"
MECHANISMS = {KERBEROS: "GSSAPI", TOKEN: "DIGEST-MD5"}
"""The mechanism of each method (SaslRpcServer.AuthMethod)."""
FALLBACK = "ipc.client.fallback-to-simple-auth-allowed"
RPC_PROTECTION = "hadoop.rpc.protection"
AUTHENTICATION, INTEGRITY, PRIVACY = "authentication", "integrity", "privacy"
LEVELS = (AUTHENTICATION, INTEGRITY, PRIVACY)
"""Hadoop's names of the levels of protection (SaslRpcServer.QualityOfProtection), the lowest first."""

MESSAGE_BYTES_MAX = 256 << 10
"""Longest frame of a negotiation.  A ticket with the groups of a user of Active Directory has up to 48 KB."""
STEPS_MAX = 10
"""Most messages of the server: Kerberos needs four, DIGEST-MD5 two."""
OFFERS_MAX = 16
"""Most offers of a server, which has three methods to offer."""
RECEIVE_BYTES_MAX = 0xFFFFFF
"""Longest wrapped message that this client announces to take: the highest number in RFC 4752's three bytes.

Hadoop's servers do not keep to it: a response is one message, whatever its length.  ``rpc_frames`` bounds that.
"""
SEND_BYTES_MIN = 1024
"""Least longest message of a server with a layer; Java's default is 64 KB."""
_LAYERS = {AUTHENTICATION: 1, INTEGRITY: 2, PRIVACY: 4}


class LoginFailed(Exception):
    """A log-in did not succeed.  Never leaves this package.

    ``kind`` is the storage error to raise.  ``is_final``: another attempt at once would fail as this one did.
    ``reason`` is one of ``storage.logins``.
    """

    def __init__(
        self, text: str, kind: type[StorageError] = NotAllowed, *, is_final: bool = True, reason: str = REFUSED
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.is_final = is_final
        self.reason = reason


class LoginRefused(LoginFailed):
    """The server refuses the proof of this client's identity.  Never leaves this package."""


class LoginTimedOut(LoginFailed):
    """The server was reached and said nothing more.  Never leaves this package."""

    def __init__(self, text: str) -> None:
        super().__init__(text, StorageUnavailable, is_final=False, reason=SILENT)


class RpcLayer(Protocol):
    """The protection of all messages after a log-in, in both directions.

    Messages must be wrapped in the order of sending, and unwrapped in the order of receiving.
    ``message_bytes_max``: most bytes that a message to the server carries.
    """

    message_bytes_max: int

    def wrap(self, data: bytes) -> bytes:
        """Return the message that carries ``data``.  Raises LayerBroken or ValueError if there is none any more."""

    def unwrap(self, token: bytes) -> bytes:
        """Return the data of the next message.

        Raises LayerBroken or ValueError if it was changed, dropped, repeated or moved on its way.
        """


@dataclass(frozen=True, slots=True)
class Protection:
    """The agreement of both sides: the level, and above authentication the layer."""

    level: str
    layer: RpcLayer | None = None


UNPROTECTED = Protection(AUTHENTICATION)


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """The choice out of a server's offer (RFC 4752): level, the server's longest message, and the response to send."""

    level: str
    peer_bytes_max: int
    response: bytes


@dataclass(frozen=True, slots=True)
class Send:
    """The effect: send this message, and bring the server's next one to ``receive``."""

    message: pb.RpcSasl


@dataclass(frozen=True, slots=True)
class MechanismStep:
    """The effect: have the mechanism answer this challenge, and bring the answer to ``evaluated``.

    ``offer`` is set the first time: the mechanism to begin, and the server's name.  An empty challenge then means that
    the client begins.
    """

    challenge: bytes
    offer: pb.RpcSasl.Auth | None = None


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The effect: send ``last``, if there is one, and the connection context.  ``method`` is the negotiated one."""

    method: str
    last: pb.RpcSasl | None = None


Effect = Send | MechanismStep | LoggedIn


class _State(enum.Enum):
    NEW = enum.auto()
    NEGOTIATING = enum.auto()
    """NEGOTIATE was sent: the server's offers are next."""
    BEGINNING = enum.auto()
    """The mechanism makes its first token."""
    AWAITING = enum.auto()
    """A token was sent: a challenge or the end is next."""
    ANSWERING = enum.auto()
    """The mechanism answers a challenge."""
    ENDING = enum.auto()
    """The server has ended: the mechanism checks the last token."""
    DONE = enum.auto()


class Negotiation:
    """One log-in: ``start``, then ``receive`` and ``evaluated`` in turn, until the effect is ``LoggedIn``.

    ``receive`` and ``evaluated`` raise LoginFailed if the server demands another log-in, or leaves the protocol.
    """

    def __init__(self, server: str, methods: Collection[str], *, is_fallback_allowed: bool = False) -> None:
        self._server = server
        self._methods = methods
        self._is_fallback_allowed = is_fallback_allowed
        self._state = _State.NEW
        self._method = ""
        self._offer = pb.RpcSasl.Auth()
        self._is_complete = False
        self._steps = 0

    def __repr__(self) -> str:
        return f"Negotiation({self._server}, {self._state.name}, {self._method or 'no method yet'})"

    def start(self) -> Send:
        """Return the first message."""
        assert self._state is _State.NEW
        self._state = _State.NEGOTIATING
        return Send(pb.RpcSasl(state=pb.RpcSasl.NEGOTIATE))

    def receive(self, body: bytes) -> Effect:
        """Take the server's next message."""
        self._steps += 1
        if self._steps > STEPS_MAX or len(body) > MESSAGE_BYTES_MAX:
            raise self._broken(f"message {self._steps} of a log-in, {len(body)} bytes long")
        try:
            message = pb.RpcSasl.FromString(body)
        except DecodeError as error:
            raise self._broken(f"a malformed message: {error}") from error
        if not message.IsInitialized():  # the parser takes a missing state for SUCCESS
            raise self._broken("a message without its state, or an offer without its mechanism")
        match self._state, message.state:
            case _State.NEGOTIATING, pb.RpcSasl.NEGOTIATE:
                return self._choose(message)
            case _State.NEGOTIATING, pb.RpcSasl.SUCCESS:
                self._require_fallback("it demands no log-in")
                return self._done(SIMPLE)
            case _State.AWAITING, pb.RpcSasl.CHALLENGE:
                if not message.HasField("token"):
                    raise self._broken("a challenge without a token")
                self._state = _State.ANSWERING
                return MechanismStep(message.token)
            case _State.AWAITING, pb.RpcSasl.SUCCESS:
                if message.HasField("token"):
                    self._state = _State.ENDING
                    return MechanismStep(message.token)
                return self._end()
        raise self._broken(f"{_state_name(message)} while this client is {self._state.name.lower()}")

    def evaluated(self, response: bytes | None, *, is_complete: bool) -> Effect:
        """Take the mechanism's response, None for none; ``is_complete``: the mechanism expects no further challenge."""
        self._is_complete = is_complete
        match self._state:
            case _State.BEGINNING:
                message = pb.RpcSasl(state=pb.RpcSasl.INITIATE, token=response or b"", auths=[self._offer])
            case _State.ANSWERING:
                message = pb.RpcSasl(state=pb.RpcSasl.RESPONSE, token=response or b"")
            case _State.ENDING:
                if response:
                    raise self._broken("an end that needs a response")
                return self._end()
            case _:
                raise AssertionError(f"no challenge is under way: {self!r}")
        self._state = _State.AWAITING
        return Send(message)

    # ---- within

    def _choose(self, message: pb.RpcSasl) -> Effect:
        if len(message.auths) > OFFERS_MAX:
            raise self._broken(f"{len(message.auths)} offers")
        for offer in message.auths:
            if offer.method in self._methods and MECHANISMS.get(offer.method) == offer.mechanism:
                self._method = offer.method
                self._offer.CopyFrom(offer)
                self._offer.ClearField("challenge")
                self._state = _State.BEGINNING
                return MechanismStep(offer.challenge, offer)
        offered = ", ".join(f"{_short(offer.method)} ({_short(offer.mechanism)})" for offer in message.auths) or "none"
        simple = next((offer for offer in message.auths if offer.method == SIMPLE), None)
        if simple is None:
            ours = " or ".join(f"{method} ({MECHANISMS[method]})" for method in self._methods)
            raise LoginFailed(f"{self._server} offers the log-ins {offered}; this client has {ours}")
        self._require_fallback(f"it offers the log-ins {offered}")
        self._done(SIMPLE)  # Hadoop's client does not wait for the SUCCESS of this message either
        return LoggedIn(SIMPLE, pb.RpcSasl(state=pb.RpcSasl.INITIATE, auths=[simple]))

    def _require_fallback(self, why: str) -> None:
        if not self._is_fallback_allowed:
            credentials = " or ".join("a token" if method == TOKEN else "Kerberos" for method in self._methods)
            raise LoginFailed(
                f"{self._server} is not secure ({why}), and this client logs in by {credentials}; {FALLBACK}=true"
                " would allow that"
            )

    def _end(self) -> LoggedIn:
        if not self._is_complete:
            raise self._broken("SUCCESS before its own proof")
        return self._done(self._method)

    def _done(self, method: str) -> LoggedIn:
        self._state = _State.DONE
        self._method = method
        return LoggedIn(method)

    def _broken(self, what: str) -> LoginFailed:
        return LoginFailed(f"{self._server} broke off the rules of a log-in: {what}", StorageUnavailable)


def choose_level(server: str, offered: Sequence[str], levels: Sequence[str]) -> str:
    """Return the first of the client's ``levels`` that the server offers.  Raises LoginFailed if there is none."""
    for level in levels:
        if level in offered:
            return level
    raise no_common_level(server, ",".join(offered) or "(none)", levels)


def no_common_level(server: str, offered: str, levels: Sequence[str]) -> LoginFailed:
    """Return the error for a server that offers the levels ``offered`` and none of the client's."""
    return LoginFailed(
        f"{server} offers {RPC_PROTECTION}={offered}; this client has {RPC_PROTECTION}={','.join(levels)}: both must"
        " have one level in common"
    )


def choose_layer(server: str, offer: bytes, levels: Sequence[str]) -> LayerChoice:
    """Return the choice out of the last challenge of GSSAPI: the server's layers as bits, and its longest message.

    Raises LoginFailed if none of its layers is one of ``levels``, or the offer is malformed.
    """
    if len(offer) != 4:
        raise LoginFailed(f"{server} offers its layers in {len(offer)} bytes, not in 4", StorageUnavailable)
    level = choose_level(server, [name for name, bit in _LAYERS.items() if offer[0] & bit], levels)
    peer_bytes_max = int.from_bytes(offer[1:])
    if level == AUTHENTICATION:
        return LayerChoice(level, 0, bytes((_LAYERS[level], 0, 0, 0)))
    if peer_bytes_max < SEND_BYTES_MIN:
        raise LoginFailed(f"{server} takes wrapped messages of {peer_bytes_max} bytes only", StorageUnavailable)
    return LayerChoice(level, peer_bytes_max, bytes((_LAYERS[level],)) + RECEIVE_BYTES_MAX.to_bytes(3))


def _state_name(message: pb.RpcSasl) -> str:
    return pb.RpcSasl.State.Name(message.state)


def _short(text: str) -> str:
    """Return a server's text, cut and escaped for an error of one line."""
    return repr(text[:40])[1:-1]

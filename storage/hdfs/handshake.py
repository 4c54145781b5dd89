"""The SASL handshake at the beginning of a connection to a datanode (SaslDataTransferClient).  Pure.

::

    client: 0xDEADBEEF, an empty message
    server: a challenge                                 DIGEST-MD5 with the block token as user and password
    client: the response
    server: the proof that it knows the token's password

Messages are protocol buffers with their length before them.  The operation follows on the same connection, in plain
bytes: the level is authentication.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.data_transfer import WireError, decode_varint, delimited
from bmq.storage.hdfs.digest_md5 import DigestFailed, DigestMd5, LevelDemanded

TRANSFER_PROTECTION = "dfs.data.transfer.protection"
MAGIC = (0xDEADBEEF).to_bytes(4)
MESSAGE_BYTES_MAX = 8 << 10
"""Longest message: a challenge has 2 KB at most, an error a few lines of text."""
_DIGEST_URI = "hdfs/0"  # protocol and server name of SaslParticipant
_PRIVILEGED_PORTS = 1024


class HandshakeFailed(Exception):
    """The datanode responds, and refuses the handshake or breaks its rules.  Never leaves this package."""


class TokenRefused(HandshakeFailed):
    """The datanode responds, and refuses the block token: the token has expired, or its key is not known there.

    The NameNode gives another token.  Neither the datanode nor its replica is in doubt.  Never leaves this package.
    """


class _State(enum.Enum):
    NEW = enum.auto()
    AWAITING_CHALLENGE = enum.auto()
    AWAITING_PROOF = enum.auto()
    DONE = enum.auto()


class Handshake:
    """One handshake: send the bytes of ``start``, then the bytes of ``receive``, until ``is_done``."""

    def __init__(self, server: str, digest: DigestMd5) -> None:
        self._server = server
        self._digest = digest
        self._state = _State.NEW
        self._buffer = b""

    def __repr__(self) -> str:
        return f"Handshake({self._server}, {self._state.name})"

    @property
    def is_done(self) -> bool:
        """True once the operation may be sent."""
        return self._state is _State.DONE

    def start(self) -> bytes:
        """Return the first bytes to send."""
        assert self._state is _State.NEW
        self._state = _State.AWAITING_CHALLENGE
        return MAGIC + _message(b"")

    def receive(self, data: bytes) -> bytes:
        """Take the next bytes of the datanode, and return the bytes to send: none while its message is not complete.

        Raises TokenRefused, HandshakeFailed, and Unsupported if the datanode demands a level that is not built.
        """
        assert self._state in {_State.AWAITING_CHALLENGE, _State.AWAITING_PROOF}
        self._buffer += data
        try:
            length, position = decode_varint(self._buffer, 0)
            if max(length, len(self._buffer) - 10) > MESSAGE_BYTES_MAX:
                raise self._broken(f"a message of {max(length, len(self._buffer))} bytes")
            if position < 0 or len(self._buffer) < position + length:
                return b""
            if len(self._buffer) > position + length:
                raise self._broken("bytes behind its message")
            message = pb.Handshake.FromString(self._buffer[position:])
        except (WireError, DecodeError) as error:
            raise self._broken(str(error)) from error
        self._buffer = b""
        if not message.IsInitialized():  # the parser takes a missing status for SUCCESS
            raise self._broken("a message without its status")
        if message.status != pb.Handshake.SUCCESS:
            raise self._refused(message)
        return self._take(message.payload)

    # ---- within

    def _take(self, payload: bytes) -> bytes:
        try:
            response = self._digest.evaluate(payload)
        except LevelDemanded as error:
            raise Unsupported(
                f"datanode {self._server} demands {TRANSFER_PROTECTION}={error.levels}; this client has"
                f" {TRANSFER_PROTECTION}=authentication only"
            ) from error
        except DigestFailed as error:
            raise self._broken(str(error)) from error
        if self._state is _State.AWAITING_CHALLENGE:
            self._state = _State.AWAITING_PROOF
            return _message(response or b"")
        self._state = _State.DONE
        return b""

    def _refused(self, message: pb.Handshake) -> Exception:
        text = f"{self._server} refuses the handshake: {message.message[:500]}"
        # Before Hadoop 3.4 only the text says it: the SaslException of a password that cannot be looked up.
        if message.access_token_error or "InvalidToken" in text or "acquiring password" in text:
            return TokenRefused(text)
        if message.status == pb.Handshake.ERROR_UNKNOWN_KEY:
            return Unsupported(f"{text} (dfs.encrypt.data.transfer is not supported)")
        return HandshakeFailed(text)

    def _broken(self, what: str) -> HandshakeFailed:
        return HandshakeFailed(f"{self._server} broke off the rules of a handshake: {what}")


@dataclass(frozen=True, slots=True)
class TransferSecurity:
    """The protection of connections to datanodes: none, or SASL at the level authentication."""

    is_sasl: bool = False

    def handshake(self, server: str, port: int, token: pb.Token) -> Handshake | None:
        """Return the handshake for a connection to ``server``, None if the datanode expects none.

        It expects none on a port that only root may bind, nor for the empty token of a NameNode without security
        (SaslDataTransferClient.send).
        """
        if not self.is_sasl or port < _PRIVILEGED_PORTS or not token.identifier:
            return None
        return Handshake(server, DigestMd5.by_token(token, _DIGEST_URI))


OPEN_TRANSFER = TransferSecurity()


def _message(payload: bytes) -> bytes:
    return delimited(pb.Handshake(status=pb.Handshake.SUCCESS, payload=payload))

"""The SASL handshake at the beginning of a connection to a datanode (SaslDataTransferClient).  Pure.

::

    client: 0xDEADBEEF, an empty message
    server: a challenge                                 DIGEST-MD5 with the block token as user and password
    client: the response                                for privacy with the offer of AES/CTR
    server: the proof that it knows the token's password    and, with AES, its keys in messages of the SASL layer

Messages are protocol buffers with their length before them.  The operation follows on the same connection: in plain
bytes at the level authentication, through a ``Channel`` at the others.  A cluster with ``dfs.encrypt.data.transfer``
has a data encryption key in place of the token, and always privacy.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from bmq.core.aio.subscribers import no_op
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.channel import AesCtr, Channel, Frames
from bmq.storage.hdfs.data_transfer import WireError, decode_varint, delimited
from bmq.storage.hdfs.digest_md5 import LEVELS, PRIVACY, CipherDemanded, DigestFailed, DigestMd5, LevelDemanded
from bmq.storage.hdfs.encryption_keys import Key, password_of, user_of
from bmq.storage.hdfs.security_layer import LayerBroken, available_ciphers

TRANSFER_PROTECTION = "dfs.data.transfer.protection"
MAGIC = (0xDEADBEEF).to_bytes(4)
MESSAGE_BYTES_MAX = 8 << 10
"""Longest message: a challenge has 2 KB at most, an error a few lines of text."""
_DIGEST_URI = "hdfs/0"  # protocol and server name of SaslParticipant
_PRIVILEGED_PORTS = 1024
_AES_CTR = 2
_AES_KEY_BYTES = {16, 24, 32}
_AES_COUNTER_BYTES = 16


class HandshakeFailed(Exception):
    """The datanode responds, and refuses the handshake or breaks its rules.  Never leaves this package."""


class ProtectionDemanded(HandshakeFailed):
    """The datanode responds, and demands a level or a cipher that this client does not have.

    Other datanodes may have another configuration, as in a rolling change.  Never leaves this package.
    """


class TokenRefused(HandshakeFailed):
    """The datanode responds, and refuses the block token: the token has expired, or its key is not known there.

    The NameNode gives another token.  Neither the datanode nor its replica is in doubt.  Never leaves this package.
    """


class KeyRefused(TokenRefused):
    """The datanode does not know the data encryption key.  The NameNode gives another key.  Never leaves this package.

    The key that was used is forgotten already.
    """


class _State(enum.Enum):
    NEW = enum.auto()
    AWAITING_CHALLENGE = enum.auto()
    AWAITING_PROOF = enum.auto()
    DONE = enum.auto()


class Handshake:
    """One handshake: send the bytes of ``start``, then the bytes of ``receive``, until ``is_done``.

    ``channel`` is then the protection of the rest of the connection, None for plain bytes.  ``on_unknown_key`` is
    called if the datanode does not know the data encryption key.
    """

    def __init__(self, server: str, digest: DigestMd5, on_unknown_key: Callable[[], None] = no_op) -> None:
        self._server = server
        self._digest = digest
        self._on_unknown_key = on_unknown_key
        self._state = _State.NEW
        self._buffer = b""
        self.channel: Channel | None = None

    def __repr__(self) -> str:
        return f"Handshake({self._server}, {self._state.name})"

    @property
    def is_done(self) -> bool:
        """True once the operation may be sent."""
        return self._state is _State.DONE

    @property
    def agreement(self) -> str:
        """The protection that both sides have agreed on, in Hadoop's words, once the handshake is done."""
        level = LEVELS[self._digest.qop]
        if isinstance(self.channel, AesCtr):
            return f"{level}, AES/CTR"
        layer = self._digest.layer
        return f"{level}, {layer.cipher}" if layer is not None and layer.cipher else level

    def start(self) -> bytes:
        """Return the first bytes to send."""
        assert self._state is _State.NEW
        self._state = _State.AWAITING_CHALLENGE
        return MAGIC + _message(b"")

    def receive(self, data: bytes) -> bytes:
        """Take the next bytes of the datanode, and return the bytes to send: none while its message is not complete.

        Raises HandshakeFailed: its ProtectionDemanded if the datanode has no level or cipher of this client.
        """
        assert self._state is not _State.DONE
        if self._state is _State.NEW:
            raise self._broken("a message before this client's first")
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
        return self._take(message)

    # ---- within

    def _take(self, message: pb.Handshake) -> bytes:
        try:
            response = self._digest.evaluate(message.payload)
        except LevelDemanded as error:
            ours = ",".join(LEVELS[level] for level in self._digest.levels)
            raise ProtectionDemanded(
                f"datanode {self._server} demands {TRANSFER_PROTECTION}={error.levels}; this client has"
                f" {TRANSFER_PROTECTION}={ours}"
            ) from error
        except CipherDemanded as error:
            raise ProtectionDemanded(
                f"datanode {self._server} demands a cipher out of {error.ciphers or 'none'}; this client has"
                f" {self._digest.only_cipher or ', '.join(available_ciphers())}"
            ) from error
        except DigestFailed as error:
            raise self._broken(str(error)) from error
        if self._state is _State.AWAITING_CHALLENGE:
            self._state = _State.AWAITING_PROOF
            return _message(response or b"", offers_aes=self._digest.qop == PRIVACY)
        self.channel = self._agreed(message)
        self._state = _State.DONE
        return b""

    def _agreed(self, message: pb.Handshake) -> Channel | None:
        """Return the channel: with AES/CTR if privacy was negotiated and the datanode has sent keys."""
        layer = self._digest.layer
        if layer is None:
            return None
        if self._digest.qop != PRIVACY or not message.cipher_option:
            return Frames(layer)
        option = message.cipher_option[0]
        try:  # in the order in which the datanode has wrapped them
            key, peer_key = layer.unwrap(option.in_key), layer.unwrap(option.out_key)
        except LayerBroken as error:
            raise self._broken(f"keys: {error}") from error
        lengths = {len(option.in_iv), len(option.out_iv)}
        if (
            option.suite != _AES_CTR
            or not {len(key), len(peer_key)} <= _AES_KEY_BYTES
            or lengths != {_AES_COUNTER_BYTES}
        ):
            raise self._broken(f"cipher suite {option.suite} with keys of {len(key)} and {len(peer_key)} bytes")
        return AesCtr(key, option.in_iv, peer_key, option.out_iv)

    def _refused(self, message: pb.Handshake) -> Exception:
        text = f"{self._server} refuses the handshake: {message.message[:500]}"
        # Before Hadoop 3.4 only the text says it: the SaslException of a password that cannot be looked up.
        if message.access_token_error or "InvalidToken" in text or "acquiring password" in text:
            return TokenRefused(text)
        if message.status == pb.Handshake.ERROR_UNKNOWN_KEY:
            self._on_unknown_key()
            return KeyRefused(text)
        return HandshakeFailed(text)

    def _broken(self, what: str) -> HandshakeFailed:
        return HandshakeFailed(f"{self._server} broke off the rules of a handshake: {what}")


@dataclass(frozen=True, slots=True)
class TransferSecurity:
    """The protection of connections to datanodes by block tokens: RFC 2831's levels, best first, or none."""

    levels: tuple[str, ...] = ()

    def handshake(self, server: str, port: int, token: pb.Token) -> Handshake | None:
        """Return the handshake for a connection to ``server``, None if the datanode expects none.

        It expects none on a port that only root may bind, nor for the empty token of a NameNode without security
        (SaslDataTransferClient.send).
        """
        if not self.levels or port < _PRIVILEGED_PORTS or not token.identifier:
            return None
        return Handshake(server, DigestMd5.by_token(token, _DIGEST_URI, levels=self.levels))


OPEN_TRANSFER = TransferSecurity()


def encrypted_handshake(server: str, key: Key, forget: Callable[[Key], None]) -> Handshake:
    """Return the handshake with a data encryption key, which a datanode expects on every port."""
    digest = DigestMd5(user_of(key), password_of(key), _DIGEST_URI, levels=(PRIVACY,), cipher=key.algorithm)
    return Handshake(server, digest, lambda: forget(key))


def _message(payload: bytes, *, offers_aes: bool = False) -> bytes:
    options = [pb.CipherOption(suite=_AES_CTR)] if offers_aes else []
    return delimited(pb.Handshake(status=pb.Handshake.SUCCESS, payload=payload, cipher_option=options))

"""TLS between a client's socket and its ``ClientConnection``: protocol of the one, transport of the other.

::

    socket ──bytes──> get_buffer, buffer_updated ──> OpenSSL ──plain──> ClientConnection.get_buffer, buffer_updated
    socket <──write── one piece at a time <───────── OpenSSL <──plain── write, writelines

The TLS of the event loops is not used.  They report a connection only after its handshake, so nothing bounds the number
of handshakes or logs why a handshake failed. uvloop keeps 256 KB for each connection.  Both loops take everything that
is written, and ``pause_writing`` comes late.  Here a connection counts from its accept, memory is bounded by a piece in
either direction, and written bytes are encrypted only as far as the kernel takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol, cast

from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import Audit
from bmq.core.logging.fields import fields
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.request import Buffer
from bmq.core.security.distinguished_name import BadCertificate
from bmq.core.security.mapping_rules import NoRule
from bmq.core.security.principal import ANONYMOUS
from bmq.core.security.tls import ServerTls

PIECE_BYTES = 64 << 10
"""Bytes that are read from the socket, or encrypted, at once.  OpenSSL's buffers stay as large as the largest piece."""
HANDSHAKE_RECORD = 0x16
_NOT_ACCEPTED = "the client does not accept this listener's certificate: its name, or who signed it"
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has shown no certificate, which ssl.client.auth=required asks for",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of this listener's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_ACCEPTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_ACCEPTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this listener's certificate has expired, says the client",
    "NO_SHARED_CIPHER": "the client and ssl.cipher.suites have no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "the client's versions of TLS are not among ssl.enabled.protocols",
}
_log = logging.getLogger(__name__)
_Read = Callable[[int, memoryview], int]
"""``SSLObject.read`` into memory, whose type the library's stubs lack."""


class TlsOwner(Protocol):
    """The part of ``core.net.listener.Listener`` that is used here.  The listener's module imports this module."""

    metrics: PortCounters
    audit: Audit
    cipher_buffer: memoryview
    """The receive buffer of all TLS connections."""

    def malformed(self, connection: ClientConnection, why: str) -> None:
        """Count and log a connection that is closed because its bytes are not a request."""


class TlsTransport(asyncio.BufferedProtocol, asyncio.Transport):
    """The server's side of one TLS connection."""

    def __init__(
        self, listener: TlsOwner, tls: ServerTls, handshake_s: float, connect: Callable[[], ClientConnection]
    ) -> None:
        """``connect`` makes the connection that is to be secured."""
        super().__init__()
        self._listener = listener
        self._tls = tls
        self._handshake_s = handshake_s
        self._connection = connect()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffer = listener.cipher_buffer
        self._raw: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._backlog: deque[memoryview] = deque()  # written, not encrypted yet
        self._backlog_bytes = 0
        self._is_secure = False  # the handshake is done
        self._is_closed = False
        self._has_begun = False  # a byte has arrived
        self._wants_reads = True  # as the connection says
        self._reads = True  # as the socket's transport was told
        self._is_full = False  # the kernel does not take what was encrypted
        self._is_blocked = False  # as the connection was told
        self._is_decrypt_due = False
        self._has_socket_ended = False  # behind bytes that may not be decrypted yet

    def __repr__(self) -> str:
        return (
            f"<TlsTransport of {self._connection!r}{'' if self._is_secure else ' in handshake'}"
            f" backlog={self._backlog_bytes}{' closed' if self._is_closed else ''}>"
        )

    # ------------------------------------------------------------------------------------------ the socket's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's has the methods, not the base class
        self._connection.connection_made(self)
        self._start_timer()
        if not (self._reads or self._is_closed):
            self._buffer = self._buffer[:1]
            asyncio.get_running_loop().call_soon(self._pause_again)

    def _pause_again(self) -> None:
        """Pause in a turn of its own, too, and read a byte at a time before: see ``ClientConnection``."""
        self._buffer = self._listener.cipher_buffer
        if not (self._reads or self._is_closed):
            self._raw.pause_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        data = self._buffer[:nbytes]
        if not self._has_begun:
            self._has_begun = True
            if data[0] != HANDSHAKE_RECORD:
                protocol = self._connection.session.protocol
                self._fail(f"plain bytes at a TLS port: the client needs security.protocol={protocol}")
                return
        self._incoming.write(data)
        if self._is_secure or self._shake_hands():
            self._decrypt()

    def eof_received(self) -> bool:
        """Return False to close the connection, True if the connection has requests to serve before its close.

        The connection gets the end behind all bytes that came before it.  Bytes that are not decrypted yet may lie
        here: the connection does not read, or reads again and ``_decrypt`` is due in this turn of the loop.
        """
        if self._is_closed:
            return False
        if self._is_secure:
            self._has_socket_ended = True
            self._decrypt()
            return not self._is_closed
        if self._has_begun:  # else it is a load balancer's check
            self._fail(
                "the client has left: it may not trust this listener's certificate, or want another version or suite"
            )
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._is_full = True
        self._block()
        self._read_or_pause()

    def resume_writing(self) -> None:
        self._is_full = False
        self._encrypt()
        if self._is_full or self._is_closed:
            return
        self._read_or_pause()
        self._decrypt_later()
        if self._is_blocked:
            self._is_blocked = False
            self._connection.resume_writing()

    # ------------------------------------------------------------------------------------------------- the handshake

    def _shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is done."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            self._send_encrypted()
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._send_encrypted()  # an alert, by which the client can say why
            self._fail(_reason(error))
            return False
        session = self._connection.session
        try:
            self._tls.check_resumed(self._ssl)
            if session.protocol == "SSL":
                self._connection.session = replace(session, principal=self._tls.principal_of(self._ssl))
        except (NoRule, BadCertificate) as error:
            self._fail(str(error))
            return False
        if session.protocol == "SSL" and self._connection.session.principal != ANONYMOUS:
            self._write("LOGIN", AuditOutcome.ALLOWED)
        self._is_secure = True
        self._stop_timer()
        self._send_encrypted()
        if session.protocol == "SSL" and not self._is_closed:
            self._connection.identified()
        return not self._is_closed

    def _too_late(self) -> None:
        self._timer = None
        self._fail(f"the TLS handshake was not done within {self._handshake_s:g} s")

    def _fail(self, why: str) -> None:
        """Close the connection, whose client does not speak TLS as it is asked for here."""
        self._listener.metrics.tls_handshakes_failed += 1
        _log.warning(
            "closing a connection: its TLS handshake failed",
            extra=fields(connection=self._connection.peer, listener=self._connection.session.listener, error=why),
        )
        self._write("HANDSHAKE", AuditOutcome.FAILED, why)
        self._connection.close()

    def _write(self, act: str, outcome: AuditOutcome, reason: str = "") -> None:
        """Write a log-in by certificate, or a failed handshake, into the audit log."""
        audit, connection = self._listener.audit, self._connection
        if audit.is_on:
            event = AuditEvent(Kind.LOGIN, act, outcome, connection.session, connection.host, reason=reason)
            audit.write(event)

    # ------------------------------------------------------------------------------------------------------- reading

    def _decrypt(self) -> None:
        """Pass what has arrived to the connection, as long as it reads."""
        self._is_decrypt_due = False
        read = cast(_Read, self._ssl.read)
        while self._is_secure and self._may_read and not self._is_closed:
            buffer = self._connection.get_buffer(-1)
            filled, room, is_end, is_empty = 0, len(buffer), False, False
            try:
                while (
                    room
                ):  # a round for each record of TLS: a thousand for a megabyte, with clients that send small ones
                    count = read(room, buffer[filled:])
                    if not count:
                        is_end = True
                        break
                    filled += count
                    room -= count
            except ssl.SSLWantReadError:
                is_empty = True
                is_end = self._has_socket_ended
            except ssl.SSLError as error:
                self._send_encrypted()
                self._listener.malformed(self._connection, f"TLS: {_reason(error)}")
                self._connection.close()
                return
            if filled:
                self._connection.buffer_updated(filled)
            if is_end and not self._is_closed and not self._connection.eof_received():
                self.close()
            if is_end or is_empty:
                break
        if not self._is_closed:
            self._send_encrypted()  # what TLS itself has to say

    def _decrypt_later(self) -> None:
        has_more = self._incoming.pending or self._ssl.pending() or self._has_socket_ended
        if has_more and not self._is_decrypt_due and self._is_secure:
            self._is_decrypt_due = True
            asyncio.get_running_loop().call_soon(self._decrypt)

    @property
    def _may_read(self) -> bool:
        """True if the connection reads, and the kernel takes the bytes of TLS itself or their reader has gone."""
        return self._wants_reads and (not self._is_full or self._connection.has_left)

    def _read_or_pause(self) -> None:
        reads = self._may_read
        if reads != self._reads and not (self._is_closed or self._has_socket_ended):
            self._reads = reads
            if reads:
                self._raw.resume_reading()
            else:
                self._raw.pause_reading()

    # ------------------------------------------------------------------------------------------------------- writing

    def _encrypt(self) -> None:
        """Encrypt and send what was written, as far as the kernel takes it."""
        backlog = self._backlog
        while backlog and not self._is_full:
            pieces: list[memoryview] = []
            size = 0
            while backlog and size < PIECE_BYTES:
                first = backlog.popleft()
                taken = first[: PIECE_BYTES - size]
                if len(taken) < len(first):
                    backlog.appendleft(first[len(taken) :])
                pieces.append(taken)
                size += len(taken)
            self._backlog_bytes -= size
            try:
                self._ssl.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            except ssl.SSLError as error:  # the client has begun a handshake message, and not ended it
                self._listener.malformed(self._connection, f"TLS: {_reason(error)}")
                self._connection.close()
                return
            self._send_encrypted()

    def _send_encrypted(self) -> None:
        if self._outgoing.pending:
            encrypted = self._outgoing.read()
            if not (self._is_full and self._connection.has_left):  # a client that does not read could let it grow
                self._raw.write(encrypted)

    def _block(self) -> None:
        if not self._is_blocked:
            self._is_blocked = True
            self._connection.pause_writing()

    # ---------------------------------------------------------------------------------- the connection's transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._ssl if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closed

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        """Send the data, or keep it and call the connection's ``pause_writing``: it must not change until then."""
        if self._is_closed:
            return
        for data in list_of_data:
            if view := memoryview(data).cast("B") if data else None:
                self._backlog.append(view)
                self._backlog_bytes += len(view)
        self._encrypt()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + self._backlog_bytes

    def pause_reading(self) -> None:
        self._wants_reads = False
        self._read_or_pause()

    def resume_reading(self) -> None:
        self._wants_reads = True
        self._start_timer()
        self._read_or_pause()
        self._decrypt_later()

    def close(self) -> None:
        """Say the end of TLS to the client, and close the socket once that is sent."""
        if self._is_closed:
            return
        self._end()
        if self._is_secure and not self._is_full:
            with contextlib.suppress(ssl.SSLError):  # the client's own end is not waited for, as in Kafka
                self._ssl.unwrap()
            self._send_encrypted()
        if self._is_full:
            self._raw.abort()  # close() would wait until the client reads
        else:
            self._raw.close()

    def abort(self) -> None:
        self._end()
        self._raw.abort()

    def _end(self) -> None:
        """Give back what the transport holds.  Idempotent."""
        self._is_closed = True
        self._stop_timer()
        self._backlog.clear()
        self._backlog_bytes = 0

    def _start_timer(self) -> None:
        """Begin the time of the handshake, at the first read: the connection may wait for a rate of connections."""
        if self._wants_reads and self._timer is None and not (self._is_secure or self._is_closed):
            self._timer = asyncio.get_running_loop().call_later(self._handshake_s, self._too_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _reason(error: ssl.SSLError | ssl.CertificateError) -> str:
    """Return what went wrong in words: OpenSSL's reason, where there are no better ones."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLWantReadError):
        return "a message of TLS itself is not complete, and a response is to be sent"
    reason = getattr(error, "reason", None) or str(error)
    return _REASONS.get(reason, reason.replace("_", " ").lower())

"""One connection to a server before a Kafka client starts: it finds out why a client would not get in.

A Kafka client tries again until its time-out, and then says only that it took too long.  The probe goes the same way
once: TCP, TLS, ApiVersions, the log-in, Metadata.  A certain fault is an exception; an uncertain fault is left to the
client.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, NoReturn

from kafka.errors import KafkaError
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from bmq.cli.kafka_client import Settings
from bmq.core.errors import ErrorCode
from bmq.core.security.oauth_token import TokenError

PROBE_S = 2.0
"""Longest wait, in seconds, for the first bytes of a response."""
_CORRELATION = b"\r\n\r\n"
"""It ends a line: a web server waits for one."""
_API_VERSIONS = struct.pack(">ihh4sh3s", 13, 18, 0, _CORRELATION, 3, b"bmq")
"""Length, API key, version, correlation id, client id."""
_ALERT = b"\x15\x03"
_CONFIG = "give --command-config a file with"
_NAME_CODES = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""
_EXPIRED_CODE = 10


class CannotConnect(Exception):
    """No client with these settings is served here; ``str`` says why, and what to do."""


class LoginRefused(Exception):
    """The server does not let this user in; ``str`` says why."""


class Node(NamedTuple):
    """The address of a server, as the cluster advertises it."""

    host: str
    port: int


def probe(host: str, port: int, settings: Settings, timeout_s: float) -> list[Node]:
    """Return the addresses that the cluster advertises; none if the server does not say them in time.

    Raises OSError if nothing listens, CannotConnect or LoginRefused.
    """
    return _Probe(host, port, settings, timeout_s).run()


class _Probe:
    def __init__(self, host: str, port: int, settings: Settings, timeout_s: float) -> None:
        self._host, self._port = host, port
        self._settings = settings
        self._security = settings.security
        self._timeout_s = timeout_s
        self._where = f"{host}:{port}"

    def run(self) -> list[Node]:
        with self._connection() as plain:
            plain.settimeout(min(self._timeout_s, PROBE_S))
            if not self._security.has_tls:
                return self._speak(plain)
            assert self._settings.context is not None, "settings with TLS have a context"
            with contextlib.ExitStack() as stack:
                try:
                    secured = stack.enter_context(
                        self._settings.context.wrap_socket(plain, server_hostname=self._host.rstrip("."))
                    )
                except TimeoutError:
                    return []
                except (OSError, ValueError) as error:  # SSLError is an OSError
                    self._explain_handshake(error)
                    return []
                return self._speak(secured)

    def _connection(self) -> socket.socket:
        return socket.create_connection((self._host, self._port), timeout=self._timeout_s)

    def _speak(self, connection: socket.socket) -> list[Node]:
        try:
            connection.sendall(_API_VERSIONS)
            head = _received(connection, 8)
        except TimeoutError:
            return []
        except OSError as error:
            self._explain_no_response(error)
            return []
        if head.startswith(b"HTTP/"):
            raise CannotConnect(f"{self._where} answers as HTTP: is it the Kafka port?")
        if head.startswith(_ALERT):
            self._refuse_plain()
        if len(head) < 8 or head[4:] != _CORRELATION:
            self._explain_no_response(None)
            return []
        try:
            size = struct.unpack(">i", head[:4])[0]
            _received(connection, max(0, min(size - 4, 1 << 20)))
            wire = _Wire(connection)
            if self._settings.login is not None:
                connection.settimeout(self._timeout_s)
                self._log_in(wire)
            return self._nodes(wire)
        except TimeoutError:
            return []

    def _nodes(self, wire: _Wire) -> list[Node]:
        """Return the advertised addresses.  A SASL listener closes the connection of a client without a log-in."""
        try:
            response = wire.ask(_metadata())
        except TimeoutError:
            raise
        except (OSError, EOFError):
            if self._settings.login is None:
                raise CannotConnect(
                    f"{self._where} serves nobody without a log-in (SASL): {_CONFIG} security.protocol="
                    f"{'SASL_SSL' if self._security.has_tls else 'SASL_PLAINTEXT'}, sasl.mechanism and sasl.jaas.config"
                ) from None
            return []
        return [Node(each.host, each.port) for each in response.brokers]

    # ------------------------------------------------------------------------------------------------------- log-in

    def _log_in(self, wire: _Wire) -> None:
        assert self._settings.login is not None, "the caller looks"
        mechanism = self._settings.login.mechanism
        try:
            response = wire.ask(SaslHandshakeRequest(mechanism=mechanism, version=1))
        except TimeoutError:
            raise
        except (OSError, EOFError):
            raise CannotConnect(
                f"{self._where} closed the connection at the beginning of a log-in: is it a listener without SASL?"
            ) from None
        if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            there = ", ".join(sorted(response.mechanisms)) or "none"
            raise CannotConnect(f"{self._where} does not have sasl.mechanism={mechanism} enabled; it has {there}")
        if response.error_code != ErrorCode.NONE:
            wanted = "SSL" if self._security.has_tls else "PLAINTEXT"
            raise CannotConnect(
                f"{self._where} takes no log-in: it is a listener without SASL; security.protocol={wanted} fits"
            )
        self._exchange(wire, mechanism)

    def _exchange(self, wire: _Wire, mechanism: str) -> None:
        try:
            exchange = get_sasl_mechanism(mechanism)(host=self._host, **self._settings.for_kafka_python())
        except Exception as error:  # the library of Kerberos has exceptions of its own: no ticket, no such service
            raise LoginRefused(f"cannot log in at {self._where} by {mechanism}: {error}") from error
        try:
            while not exchange.is_done():
                response = wire.ask(SaslAuthenticateRequest(exchange.auth_bytes(), version=1))
                if response.error_code != ErrorCode.NONE:
                    said = (response.error_message or "").strip().rstrip(".")
                    raise LoginRefused(f"{self._refused}: {said}" if said else self._refused)
                exchange.receive(response.auth_bytes)
        except (TimeoutError, LoginRefused):
            raise
        except TokenError as error:
            raise LoginRefused(f"cannot log in at {self._where}: {error}") from None
        except (OSError, EOFError):
            raise LoginRefused(f"{self._refused}: it closed the connection") from None
        except Exception as error:  # as above, and for responses that are not of the mechanism
            raise LoginRefused(f"{self._refused}: {error}") from error

    @property
    def _refused(self) -> str:
        login = self._settings.login
        assert login is not None, "the caller looks"
        who = f" as {login.user}" if login.user else ""
        return f"{self._where} refused the log-in{who} by {login.mechanism}"

    # -------------------------------------------------------------------------------------------------- TLS or not

    def _explain_handshake(self, error: Exception) -> None:
        if isinstance(error, ssl.SSLCertVerificationError):
            if error.verify_code == _EXPIRED_CODE:
                raise CannotConnect(f"the certificate of {self._where} has expired")
            if error.verify_code in _NAME_CODES:
                raise CannotConnect(
                    f"the certificate of {self._where} is not for {self._host}: connect by a name that it has"
                )
            raise CannotConnect(
                f"the certificate of {self._where} is not trusted ({error.verify_message}): ssl.truststore.location in"
                " --command-config names the file of its authority"
            )
        self._explain_alert(error)
        if fits := self._protocol_without_tls():
            raise CannotConnect(
                f"{self._where} is a plain port, without TLS: security.protocol={self._security.protocol} does not fit,"
                f" {fits} does"
            )
        reason = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
        raise CannotConnect(f"the TLS handshake with {self._where} failed: {reason}")

    def _explain_no_response(self, error: Exception | None) -> None:
        """Raise CannotConnect if it is sure why the server ended the connection, or sent something else."""
        if self._security.has_tls:
            self._explain_alert(error)
            self._explain_missing_certificate(error)
        elif self._has_tls():
            self._refuse_plain()

    def _explain_alert(self, error: Exception | None) -> None:
        """Raise LoginRefused for a TLS alert about this client's certificate."""
        reason = str(getattr(error, "reason", None) or "")
        if "ALERT" not in reason:
            return
        if "CERTIFICATE_REQUIRED" in reason or not self._security.has_certificate:
            self._explain_missing_certificate(error)
        elif "EXPIRED" in reason:
            raise LoginRefused(f"{self._where} refused the client's certificate: it has expired")
        elif any(each in reason for each in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "DECRYPT")):
            said = reason.partition("ALERT_")[2].replace("_", " ").lower()
            raise LoginRefused(f"{self._where} refused the client's certificate: {said}")

    def _explain_missing_certificate(self, error: Exception | None) -> None:
        """Raise LoginRefused if the client has no certificate: for sure by an alert, as a guess by a reset."""
        if error is None or self._security.has_certificate:
            return
        is_sure = "ALERT" in str(getattr(error, "reason", None) or "")
        asks = "it asks" if is_sure else "does it ask"
        raise LoginRefused(
            f"{self._where} ended the connection after the TLS handshake: {asks} for a client's certificate"
            f"{',' if is_sure else '?'} ssl.keystore.location in --command-config gives none"
        )

    def _refuse_plain(self) -> NoReturn:
        fits = "SSL, or SASL_SSL if it asks for a log-in"
        if self._security.protocol == "SASL_PLAINTEXT":
            fits = "SASL_SSL, or SSL if it asks for no log-in"
        raise CannotConnect(f"{self._where} speaks TLS: {_CONFIG} security.protocol={fits}")

    def _has_tls(self) -> bool:
        """Return whether the server answers a TLS handshake; nothing is sent over it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

        def shake_hands(plain: socket.socket) -> bool:
            context.wrap_socket(plain).close()
            return True

        return self._answers(shake_hands)

    def _protocol_without_tls(self) -> str:
        """Return the ``security.protocol`` of a listener that speaks Kafka's protocol without TLS; "" of another.

        A listener with SASL closes the connection of a client that asks for metadata without a log-in.
        """

        def speaks_kafka(plain: socket.socket) -> bool:
            plain.sendall(_API_VERSIONS)
            return _received(plain, 8)[4:] == _CORRELATION

        def wants_no_login(plain: socket.socket) -> bool:
            with contextlib.suppress(TimeoutError):  # a listener with SASL does not wait
                _Wire(plain).ask(_metadata())
            return True

        if not self._answers(speaks_kafka):
            return ""
        return "PLAINTEXT" if self._answers(wants_no_login) else "SASL_PLAINTEXT"

    def _answers(self, ask: Callable[[socket.socket], bool]) -> bool:
        try:
            with self._connection() as plain:
                plain.settimeout(min(self._timeout_s, PROBE_S))
                return ask(plain)
        except (OSError, EOFError):
            return False


class _Wire:
    """Requests and responses, one after the other, on a blocking connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._protocol = KafkaProtocol(client_id="bmq")

    def ask(self, request: Any) -> Any:
        """Return the response.  Raises OSError, or EOFError if the server closes the connection."""
        self._protocol.send_request(request)
        self._connection.sendall(self._protocol.send_bytes())
        return next(self._responses())

    def _responses(self) -> Iterator[Any]:
        while True:
            data = self._connection.recv(64 << 10)
            if not data:
                raise EOFError
            try:
                for _, response in self._protocol.receive_bytes(data):
                    yield response
            except KafkaError as error:
                raise EOFError from error


def _metadata() -> MetadataRequest:
    """Return a request for the brokers, without topics."""
    return MetadataRequest(topics=[], allow_auto_topic_creation=False, version=4)


def _received(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes, fewer if the peer closes the connection or says that it is a web server."""
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            break
        data += piece
        if data.startswith((b"HTTP/", _ALERT)):
            break
    return data

"""Kerberos credentials of this process's client of HDFS, and GSSAPI as a SASL client (RFC 4752).

::

    client: AP-REQ                 server: AP-REP             until the context stands on both sides
    client: (empty)                server: wrap(layers, size)
    client: wrap(layer, size)      the level of hadoop.rpc.protection, and the client's longest message

The library blocks (KDC, DNS, replay cache), so its calls run in a thread of the login.  Tickets by keytab
are kept in memory, in a store of their own (``keytab_tickets.py``).  The environment is neither read for them nor
changed, since a listener of the same process shares it.  Needs the extra ``kerberos``.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import TypeVar

import gssapi
from gssapi.raw.misc import GSSError

from bmq.storage.filesystem import CannotLogIn, StorageUnavailable
from bmq.storage.hdfs.keytab_tickets import (
    CLOCK_NUMBERS,
    KDC_AWAY,
    KeytabTickets,
    name_of,
    number_of,
    reason_of,
    text_of,
    used,
)
from bmq.storage.hdfs.krb5_conf import Krb5ConfError, ask_clock, read_conf
from bmq.storage.hdfs.library_thread import LibraryThread
from bmq.storage.hdfs.sasl import (
    AUTHENTICATION,
    PRIVACY,
    UNPROTECTED,
    LoginFailed,
    Protection,
    choose_layer,
)
from bmq.storage.hdfs.security_layer import LayerBroken
from bmq.storage.logins import KEYTAB, LOGINS

_FLAGS = (  # a server offers privacy only to contexts that could have it (GssKrb5Server): the error names its level
    gssapi.RequirementFlag.mutual_authentication
    | gssapi.RequirementFlag.replay_detection
    | gssapi.RequirementFlag.out_of_sequence_detection
    | gssapi.RequirementFlag.integrity
    | gssapi.RequirementFlag.confidentiality
)
_CLOCK_S = 2.0  # bound of the question for a KDC's clock, after an error that says that clocks differ
_NO_TICKET = {141, 195}
T = TypeVar("T")

_HINTS = {  # by the number in Kerberos's table of errors (krb5.h, less ERROR_TABLE_BASE_krb5)
    6: "the KDC does not know the principal",
    7: "the KDC does not know the NameNode's principal: is dfs.namenode.kerberos.principal right?",
    24: "the KDC has another key of the principal: the keytab is out of date",
    31: "the KDC has another key of the principal: the keytab is out of date",
    32: "the ticket has expired: run kinit again, or give a keytab",
    37: "the clocks of this machine and of the KDC differ by more than 5 minutes",
    141: "there is no ticket: run kinit, or give a keytab",
    148: "the clocks of this machine and of the KDC differ by more than 5 minutes",
    154: "krb5.conf names no KDC of the realm",
    156: "no KDC responds",
    195: "there is no ticket: run kinit, or give a keytab",
    220: "krb5.conf names a KDC that has no address",
    224: "krb5.conf has no default_realm, and the principal has no realm",
}
_KEYTAB_HINTS = {
    141: "the keytab has no key of the principal",
    181: "the keytab has no key of the principal",
    195: "the keytab has no key of the principal, or is no keytab",
    213: "the file is no keytab",
    235: "the file is no keytab",
}


class KerberosLogin:
    """The identity of this process: a keytab's principal, or the tickets of a cache that others renew.

    ``principal`` is needed if the keytab holds several; ``keytab`` is a file, or empty for the ticket cache.  The
    cache is the library's own: KRB5CCNAME, else krb5.conf's, as of Hadoop's UserGroupInformation.
    """

    def __init__(self, principal: str = "", keytab: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.principal = principal
        self.keytab = keytab
        self._thread = LibraryThread("hdfs-login")
        self._tickets = KeytabTickets(principal, keytab, clock) if keytab else None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"KerberosLogin({self})"

    def __str__(self) -> str:
        if self.keytab:
            return f"{self.principal or 'the first principal'} of the keytab {self.keytab}"
        return f"{self.principal or 'the principal'} of the ticket cache {_cache_name()}"

    def close(self) -> None:
        """End the threads; calls under way raise LoginFailed, and what they still get is dropped.  Idempotent."""
        self._is_closed = True
        self._thread.close()
        if self._tickets is not None:
            self._tickets.close()

    async def run(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, in a thread.  Raises LoginFailed in place of the library's errors."""
        try:
            future = self._thread.submit(call)
        except RuntimeError as error:
            raise self._closed() from error
        try:
            return await asyncio.wrap_future(future)
        except GSSError as error:
            difference = await self._difference() if number_of(error) in CLOCK_NUMBERS else ""
            raise self._failed(error, difference) from error
        except (asyncio.CancelledError, CancelledError, RuntimeError) as error:
            task = asyncio.current_task()
            if not self._is_closed or (task is not None and task.cancelling()):
                raise
            raise self._closed() from error

    def client(self, server_principal: str, levels: Sequence[str]) -> GssapiClient:
        """Return the client's side of a log-in at this server, at the first of ``levels`` that the server has."""
        return GssapiClient(self, server_principal, levels)

    def credentials(self) -> gssapi.Credentials:
        """Return valid credentials: the keytab's, or those of the ticket cache as it is now.

        Blocks.  Raises GSSError or LoginFailed.
        """
        if self._tickets is not None:
            return self._tickets.current()
        return used(gssapi.Credentials(name=name_of(self.principal), usage="initiate"))

    def note_server(self, server_principal: str) -> None:
        """Note a server that a log-in has reached, or may have to reach."""
        if self._tickets is not None:
            self._tickets.note_server(server_principal)

    def replace_ticket(self) -> None:
        """Have a keytab's ticket replaced in the background, with the servers' tickets.  Others tend a ticket cache."""
        if self._tickets is not None:
            self._tickets.replace()

    # ---- within

    def _closed(self) -> LoginFailed:
        return LoginFailed(f"cannot log in as {self}: the HDFS client was closed", StorageUnavailable)

    async def _difference(self) -> str:
        """Return by how much the KDC's clock differs; empty if no KDC shows it."""
        name, _, realm = self.principal.partition("@")
        try:
            conf = await asyncio.to_thread(read_conf, realm)
            return (await asyncio.to_thread(ask_clock, conf, name or "bmq", realm or conf.realm, _CLOCK_S)).text
        except (Krb5ConfError, OSError, ValueError):
            return ""  # the error says that clocks differ, in any case

    def _failed(self, error: GSSError, difference: str = "") -> LoginFailed:
        number = number_of(error)
        hints = [
            (_KEYTAB_HINTS.get(number, "") if self.keytab else "") or _HINTS.get(number, ""),
            difference,
            "" if number != KDC_AWAY else LOGINS.since,
        ]
        text = f"cannot log in to Kerberos as {self}: {text_of(error)}"
        hint = "; ".join(filter(None, hints))
        return LoginFailed(
            f"{text} ({hint})" if hint else text,
            CannotLogIn,
            is_final=number != KDC_AWAY,
            reason=KEYTAB if number in _NO_TICKET and self.keytab else reason_of(number),
        )


class GssapiClient:
    """The client's side of one log-in: ``evaluate`` each challenge, until ``is_complete``."""

    def __init__(self, login: KerberosLogin, server_principal: str, levels: Sequence[str]) -> None:
        self._login = login
        self._server = server_principal
        self._levels = levels
        self._context: gssapi.SecurityContext | None = None
        self.is_complete = False
        self.protection = UNPROTECTED

    async def evaluate(self, challenge: bytes) -> bytes | None:
        """Return the response to a challenge, the first of which is empty.  Raises LoginFailed."""
        return await self._login.run(lambda: self._evaluate(challenge))

    def _evaluate(self, challenge: bytes) -> bytes | None:
        if self.is_complete:
            raise LoginFailed(f"{self._server} goes on after the end of the log-in", StorageUnavailable)
        if self._context is None:
            self._context = gssapi.SecurityContext(
                name=gssapi.Name(self._server, gssapi.NameType.kerberos_principal),
                creds=self._login.credentials(),
                usage="initiate",
                mech=gssapi.MechType.kerberos,
                flags=_FLAGS,
            )
            return bytes(self._context.step() or b"")
        if not self._context.complete:
            return bytes(self._context.step(challenge) or b"")
        self.is_complete = True
        self._login.note_server(self._server)
        choice = choose_layer(self._server, self._context.unwrap(challenge).message, self._levels)
        response = bytes(self._context.wrap(choice.response, False).message)
        if choice.level != AUTHENTICATION:
            layer = GssapiLayer(self._context, choice.peer_bytes_max, is_private=choice.level == PRIVACY)
            self.protection = Protection(choice.level, layer)
        return response


class GssapiLayer:
    """The protection of messages by an established context: a checksum of each and its place, or encryption too."""

    def __init__(self, context: gssapi.SecurityContext, peer_bytes_max: int, *, is_private: bool) -> None:
        """Take the longest message that the peer takes, ``peer_bytes_max``; ``is_private``: messages are encrypted."""
        self._context = context
        self._is_private = is_private
        self.message_bytes_max = context.get_wrap_size_limit(peer_bytes_max, is_private)

    def wrap(self, data: bytes) -> bytes:
        """Return the message that carries ``data``.  Raises LayerBroken."""
        try:
            wrapped = self._context.wrap(data, self._is_private)
        except GSSError as error:
            raise LayerBroken(f"GSSAPI wraps no message: {text_of(error)}") from error
        if self._is_private and not wrapped.encrypted:
            raise LayerBroken("GSSAPI does not encrypt")
        return bytes(wrapped.message)

    def unwrap(self, token: bytes) -> bytes:
        """Return the data of the next message.  Raises LayerBroken if it is another one, or was not encrypted."""
        try:
            plain = self._context.unwrap(token)
        except GSSError as error:  # of the place in the sequence too: no message may be missing or come twice
            raise LayerBroken(f"a wrapped message is not the next one: {text_of(error)}") from error
        if self._is_private and not plain.encrypted:
            raise LayerBroken("a wrapped message is not encrypted")
        return bytes(plain.message)


def _cache_name() -> str:
    return os.environ.get("KRB5CCNAME", "that krb5.conf names")

"""The Kerberos ticket of a keytab's principal: fetched, held in memory, and replaced before it ends.

A log-in waits for the first ticket only.  A silent KDC makes the library wait for most of a minute.  Renewals therefore
run in a thread of their own.  The thread checks the age of the ticket too, since log-ins are rare.  Log-ins use the
former ticket meanwhile, and to its end if the renewal fails.  Needs the extra ``kerberos``.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import gssapi
from gssapi.exceptions import ExpiredCredentialsError
from gssapi.raw.misc import GSSError

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import CannotLogIn
from bmq.storage.hdfs.library_thread import LibraryThread
from bmq.storage.hdfs.sasl import LoginFailed
from bmq.storage.logins import CLOCK, KDC, KEYTAB, LOGINS, OTHER, PRINCIPAL, TICKET

RENEW_AT = 0.8
"""Part of its life after which a ticket is replaced: an outage of the KDC may last for the rest."""
REPLACE_S = 10.0
"""Least time between two replacements on demand.  A NameNode may refuse every log-in for hours."""
RETRY_S = 60.0
"""Pause after a renewal that failed: a mended keytab is soon read, and the count of failures rises until then."""
TEND_S = 30.0
"""Interval of the check of the ticket's age.  Connections to the NameNode stay open for days, without a log-in."""
_LIBRARY = "libkrb5.so.3"
_MANY_HOURS = float(10 * 3600)  # of tickets for which the library does not say: the usual life
SERVERS_MAX = 16
"""Most servers whose tickets are fetched early, by a call of the KDC each; the oldest make room."""
EXPIRED, KDC_AWAY = 32, 156
"""Numbers in Kerberos's table of errors (krb5.h, less ERROR_TABLE_BASE_krb5)."""
CLOCK_NUMBERS = frozenset({37, 148})
_SERVER_UNKNOWN = 7
_REASONS = {
    KDC: {KDC_AWAY, 154, 220},
    CLOCK: CLOCK_NUMBERS,
    KEYTAB: {24, 31, 181, 213, 230, 235},
    PRINCIPAL: {6, _SERVER_UNKNOWN, 18, 23, 224},
    TICKET: {EXPIRED, 141, 195},
}
_ERROR_TABLE_BASE = -1765328384
_ROUTINE_ERRORS = 0xFF << 16
"""The bits of a major status that name an error; the lower bits are about a message's place in the sequence."""
_NO_TEXTS = ("Success", "No error", "Unknown error", "gss_display_status call returned failure")
"""The library's texts for a minor status without an error, or of no mechanism."""

_log = logging.getLogger(__name__)
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Ticket:
    credentials: gssapi.Credentials
    cache: str
    began: float
    renew_at: float


class KeytabTickets:
    """The tickets of ``principal``, the first one of the file ``keytab`` if empty.  ``clock`` is monotonic, in seconds.

    Only a single thread may call ``current``.
    """

    def __init__(self, principal: str, keytab: str, clock: Callable[[], float]) -> None:
        self._principal = principal
        self._keytab = keytab
        self._clock = clock
        self._thread = LibraryThread("hdfs-ticket", on_idle=self._tend, idle_s=TEND_S)
        self._renewal: Future[_Ticket] | None = None
        self._held: _Ticket | None = None
        self._former = ""  # the cache before: a log-in that began with it may go on
        self._servers: dict[str, None] = {}
        self._replaced_at = -REPLACE_S
        self._is_to_be_replaced = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"KeytabTickets({self._principal}, {self._keytab}, renewal={self._renewal})"

    def close(self) -> None:
        """Destroy the tickets, and end the thread after the renewal that is under way.  Idempotent."""
        self._is_closed = True
        self._thread.close()
        held, self._held = self._held, None
        for cache in (self._former, held.cache if held is not None else ""):
            _destroy(cache)
        self._former = ""

    def current(self) -> gssapi.Credentials:
        """Return valid credentials.  Blocks if there are none.  Raises GSSError, LoginFailed or RuntimeError if closed.

        A ticket that has lived for 80 % of its life is replaced in the background.
        """
        held = self._held
        if held is None or not life_s(held.credentials):
            return self._renew().result().credentials
        if self._clock() >= held.renew_at:
            self._renew()
        return held.credentials

    def note_server(self, server: str) -> None:
        """Note a server that a log-in has reached, or may have to reach while the KDC is away.

        Its ticket is fetched with the first ticket and with each renewal, so log-ins there need no KDC.
        """
        self._servers.pop(server, None)
        self._servers[server] = None
        for oldest in list(self._servers)[:-SERVERS_MAX]:
            self._servers.pop(oldest, None)

    def replace(self) -> None:
        """Replace the ticket in the background before its time, and the servers' tickets with it.  Any thread may call.

        A server with new keys refuses the cached ticket up to the ticket's end.  All refusals share the replacement
        that is to begin: a silent KDC delays it by a minute.
        """
        if self._is_to_be_replaced:
            return
        self._is_to_be_replaced = True
        try:
            self._thread.submit(self._replace_early)
        except RuntimeError:
            return  # closed: no log-in follows

    # ---- within

    def _replace_early(self) -> None:
        """Replace the ticket, unless it is ``REPLACE_S`` old at most or was to be replaced just now."""
        self._is_to_be_replaced = False
        now, held = self._clock(), self._held
        if held is None or self._is_closed or now - max(held.began, self._replaced_at) < REPLACE_S:
            return
        self._replaced_at = now
        self._held = replace(held, renew_at=now)
        self._tend()

    def _renew(self) -> Future[_Ticket]:
        """Begin a renewal, unless one is under way, and return it."""
        if self._renewal is None or self._renewal.done():
            self._renewal = self._thread.submit(self._replace)
        return self._renewal

    def _tend(self) -> None:
        """Replace the ticket if that is due, whether or not a log-in asks for it."""
        held = self._held
        if held is None or self._is_closed or self._clock() < held.renew_at:
            return
        try:
            self._replace()
        except (GSSError, LoginFailed) as error:
            LOGINS.failed(reason_of(number_of(error)) if isinstance(error, GSSError) else error.reason)
            _log.warning(
                "the Kerberos ticket of %s has ended, and there is no new one",
                self._principal or "the first principal",
                extra=fields(error=text_of(error) if isinstance(error, GSSError) else str(error)),
            )

    def _replace(self) -> _Ticket:
        """Hold a new ticket, or go on with the former one.  Raises GSSError or LoginFailed if that has ended."""
        former = self._held
        if former is not None and self._clock() < former.renew_at and life_s(former.credentials):
            return former  # a renewal that was due before has replaced it
        try:
            new = self._acquire(former)
        except (GSSError, LoginFailed) as error:
            left_s = life_s(former.credentials) if former is not None else 0
            if former is None or not left_s:
                raise
            text = text_of(error) if isinstance(error, GSSError) else str(error)
            LOGINS.failed(reason_of(number_of(error)) if isinstance(error, GSSError) else error.reason)
            _log.warning(
                "Kerberos gives no new ticket to %s of the keytab %s: the former one is used for its last %d s",
                self._principal or "the first principal",
                self._keytab,
                left_s,
                extra=fields(error=text),
            )
            self._held = replace(former, renew_at=self._clock() + min(RETRY_S, RENEW_AT * left_s))
            return self._held
        self._held = new
        left_s = life_s(new.credentials)
        LOGINS.ticket_lives(left_s)
        _log.info(
            "Kerberos has given a ticket to %s of the keytab %s, for %d s",
            self._principal or "the first principal",
            self._keytab,
            left_s,
        )
        if self._is_closed:
            _destroy(new.cache)
        elif former is not None:
            _destroy(self._former)
            self._former = former.cache
        elif self._servers:
            self._thread.submit(self._fetch_first)  # a log-in waits for this ticket
        return new

    def _fetch_first(self) -> None:
        """Fetch the tickets of the noted servers into the first cache: the next log-in may be at another one.

        If the KDC does not respond, another ticket is fetched in a minute, with theirs.
        """
        held = self._held
        if held is None:
            return
        try:
            self._fetch_server_tickets(held.credentials)
        except GSSError as error:
            _log.warning("the KDC is away: a fail-over of the NameNode needs it", extra=fields(error=text_of(error)))
            if self._held is held:
                self._held = replace(held, renew_at=min(held.renew_at, self._clock() + RETRY_S))

    def _acquire(self, former: _Ticket | None) -> _Ticket:
        """Return a new ticket; with tickets for the noted servers, if ``former`` is there to use in their place."""
        if not os.access(self._keytab, os.R_OK):
            problem = "cannot be read" if os.path.exists(self._keytab) else "does not exist"
            raise LoginFailed(
                f"cannot log in to Kerberos: the keytab {self._keytab} {problem}", CannotLogIn, reason=KEYTAB
            )
        # A cache of its own for each acquisition: the library would go on with a ticket that is still valid.
        cache = f"MEMORY:bmq-hdfs-{os.getpid()}-{next(_numbers)}"
        began = self._clock()
        try:
            credentials = gssapi.Credentials(
                name=name_of(self._principal),
                usage="initiate",
                store={"client_keytab": f"FILE:{self._keytab}", "ccache": cache},
            )
            used(credentials)
            if former is not None and life_s(former.credentials):
                self._fetch_server_tickets(credentials)
        except GSSError:
            _destroy(cache)
            raise
        return _Ticket(credentials, cache, began, began + RENEW_AT * life_s(credentials))

    def _fetch_server_tickets(self, credentials: gssapi.Credentials) -> None:
        """Fetch the tickets of the noted servers.  Raises GSSError if no KDC responds: the former tickets are better.

        A refusal concerns one server, perhaps a removed NameNode: the other tickets are fetched.  A server without an
        entry in the KDC is forgotten.  The next log-in there notes it again.
        """
        for server in list(self._servers):
            try:
                _fetch_ticket(credentials, server)
            except GSSError as error:
                number = number_of(error)
                if number == KDC_AWAY:
                    raise
                if number == _SERVER_UNKNOWN:
                    self._servers.pop(server, None)
                _log.warning(
                    "the KDC gives no ticket for %s: log-ins there ask it again",
                    server,
                    extra=fields(error=text_of(error)),
                )


def life_s(credentials: gssapi.Credentials) -> float:
    """Return how long credentials are valid, 0 if they have ended."""
    try:
        lifetime = credentials.lifetime
    except ExpiredCredentialsError:  # the library does not say 0
        return 0.0
    return _MANY_HOURS if lifetime is None else float(lifetime)


def name_of(principal: str) -> gssapi.Name | None:
    """Return GSSAPI's name of a principal, None for the default one."""
    return gssapi.Name(principal, gssapi.NameType.kerberos_principal) if principal else None


def used(credentials: gssapi.Credentials) -> gssapi.Credentials:
    """Return the credentials after the library has fetched the ticket, which it delays until the first use."""
    credentials.inquire()
    return credentials


def text_of(error: GSSError) -> str:
    """Return the library's text, in one line: Kerberos's own if it has any, else GSSAPI's.

    An error about a message's place has no minor status (RFC 2743, 1.2.1.1).  The code there is left from a former call
    and has the text "Success", or none.
    """
    is_routine_error = error.maj_code & _ROUTINE_ERRORS
    if error.min_code and is_routine_error:
        text = _in_one_line(error.get_all_statuses(error.min_code, False))
        if text and not text.startswith(_NO_TEXTS):
            return text
    return _in_one_line(error.get_all_statuses(error.maj_code, True))


def _in_one_line(statuses: Sequence[str]) -> str:
    return " ".join(" ".join(str(status) for status in statuses).split())[:500]


def number_of(error: GSSError) -> int:
    """Return the error's number within Kerberos's table."""
    if isinstance(error, ExpiredCredentialsError):
        return EXPIRED
    number = error.min_code & 0xFFFFFFFF
    return (number - 0x100000000 if number >= 0x80000000 else number) - _ERROR_TABLE_BASE


def reason_of(number: int) -> str:
    """Return the reason for the count of failures, by the error's number within Kerberos's table."""
    return next((reason for reason, numbers in _REASONS.items() if number in numbers), OTHER)


def _fetch_ticket(credentials: gssapi.Credentials, server: str) -> None:
    """Have the library put the ticket for ``server`` into the credentials' cache, as a log-in's first step does."""
    gssapi.SecurityContext(
        name=name_of(server), creds=credentials, usage="initiate", mech=gssapi.MechType.kerberos
    ).step()


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return MIT's library, which GSSAPI's library has loaded; None on a machine without it."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        _log.info("%s is not here: replaced tickets stay in memory", _LIBRARY, extra=fields(error=str(error)))
        return None


def _destroy(cache: str) -> None:
    """Remove a cache from memory, which the library does not do with the credentials that were made from it."""
    library = _library() if cache else None
    if library is None:
        return
    context, handle = ctypes.c_void_p(), ctypes.c_void_p()
    if library.krb5_init_context(ctypes.byref(context)):
        return
    try:
        if not library.krb5_cc_resolve(context, cache.encode(), ctypes.byref(handle)):
            library.krb5_cc_destroy(context, handle)
    finally:
        library.krb5_free_context(context)

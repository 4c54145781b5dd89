"""Log-ins at the HTTP port: a cache of right credentials, delays after wrong ones, and bounds on all of them.

Checking a password costs milliseconds of a processor (PBKDF2), so a client that guesses could take all of one.

    credentials ──> kept since they were right? ── yes ──> let in
                    no: the same are being checked? ── yes ──> wait for that check's end
                    no: too many wait, in all or of this network? ── yes ──> 429
                    no: check them, a few at a time
                        right: keep them for ``KEPT_S``   wrong: respond only after a delay, twice as long each time

A network is an IPv4 address, or the /64 of an IPv6 address: a machine gets a /64.  A failed log-in takes one of the
``WAITING_OF_NETWORK_MAX`` places of its network until its delay is over, but no place among the checks.  So guesses
from some networks never keep another network out.  The delay holds as well where its response does not wait for it,
because ``DELAYED_MAX`` others do.  A network with failures has half of the places among the checks.

Right credentials are kept under a keyed hash, whose key never leaves the process; the password itself is not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bmq.console.access.schemes import AuthenticatedClient, AuthenticationScheme
from bmq.console.operations import NotPossible
from bmq.core.aio.lru import LruCache
from bmq.core.aio.subscribers import no_op
from bmq.core.logging.fields import fields
from bmq.core.security.authentication import AuthenticationContext

_log = logging.getLogger(__name__)
KEPT_S = 60.0
"""Time for which right credentials are not checked again.  A password that is changed meanwhile ends it at once."""
KEPT_MAX = 1_000
CHECKS_AT_ONCE = 2
"""Most credentials that are being checked: passwords take a thread each."""
WAITING_MAX = 60
"""Most log-ins that are checked or wait for it: fewer than connections."""
WAITING_OF_FAILED_MAX = 30
"""Log-ins in all from which on a network with failures gets 429; other networks have up to ``WAITING_MAX``."""
WAITING_OF_NETWORK_MAX = 6
"""Most log-ins of one network that wait for a check, are being checked, or have failed and wait for their delay."""
DELAYED_MAX = 30
"""Most failed log-ins whose responses wait for the end of their delay; the responses of others go out at once."""
JOINED_MAX = 60
"""Most further requests that wait with credentials that are being checked already."""
JOINED_OF_FAILED_MAX = 20
"""Such requests in all from which on a network with failures gets 429.  So networks with failures leave room among the
requests that the port serves at a time (``console.http``)."""
DELAY_MAX_S = 5.0
FORGIVEN_S = 60.0
"""Seconds without a failed log-in after which the network's next failure has the first, short delay again."""
NETWORKS_MAX = 10_000
"""Networks whose failures are remembered, some hundred bytes each: the networks with the latest failures."""
HOSTS_MAX = 100
"""Addresses that are remembered of one log-in."""


class NotAuthenticated(NotPossible):
    """Refusal of a request whose client has not shown who it is.  The text is the same whatever is wrong."""

    def __init__(self, message: str = "the user name, the password or the token is not right") -> None:
        super().__init__(401, "not_authenticated", message)


class _Kept(NamedTuple):
    authenticated: AuthenticatedClient
    until: float
    hosts: set[str]
    """Addresses that have logged in so: each is told once."""


class _Failures(NamedTuple):
    times: int
    last: float
    delays: tuple[float, ...] = ()
    """Ends of the delays that may not be over, on the loop's clock."""

    def delayed(self, now: float) -> tuple[float, ...]:
        """Return the ends of the delays that are not over."""
        return tuple(end for end in self.delays if end > now)


class _Check:
    """A check that is under way, for those who wait with the same credentials."""

    __slots__ = ("has_failed", "over")

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.has_failed = False


class Logins:
    """The log-ins of one HTTP port."""

    def __init__(
        self,
        schemes: Sequence[AuthenticationScheme],
        delay_s: float = 0.1,
        on_login: Callable[[AuthenticationContext, AuthenticatedClient | None, str], None] = no_op,
    ) -> None:
        """``delay_s`` is the time that the first failed log-in of a network takes at least.

        ``on_login`` is called with each log-in that is checked; without a client it was refused, for the reason given.
        """
        self._on_login = on_login
        self._by_scheme: Mapping[str, AuthenticationScheme] = {each.scheme: each for each in schemes}
        self._delay_s = delay_s
        self._key = secrets.token_bytes(32)
        self._kept: LruCache[bytes, _Kept] = LruCache(KEPT_MAX)
        self._checks: dict[bytes, _Check] = {}
        self._failures: LruCache[str, _Failures] = LruCache(NETWORKS_MAX)
        self._waiting: Counter[str] = Counter()
        self._delayed = 0
        self._joined = 0
        self._turns = asyncio.Semaphore(CHECKS_AT_ONCE)
        self.succeeded: Counter[str] = Counter(dict.fromkeys(self._by_scheme, 0))
        """Credentials that were checked and right, by scheme."""
        self.failed: Counter[str] = Counter(dict.fromkeys(self._by_scheme, 0))
        """Credentials that were checked and wrong, by scheme."""
        self.refused = 0
        """Log-ins that were not checked, since too many waited."""

    @property
    def scheme_names(self) -> Sequence[str]:
        """The schemes that clients may use; empty if nobody has to log in."""
        return list(self._by_scheme)

    async def check(self, context: AuthenticationContext, scheme: str, credentials: str) -> AuthenticatedClient:
        """Return the client with these credentials.

        Raises NotAuthenticated, after a while, if the credentials are wrong; NotPossible (429) if too many are checked.
        """
        if scheme not in self._by_scheme:
            raise NotAuthenticated(f"log in by {' or '.join(self._by_scheme)}")
        text = f"{scheme} {context.protocol} {credentials}".encode(errors="surrogatepass")
        key = hashlib.blake2b(text, key=self._key, digest_size=32).digest()
        while (kept := self._find(key)) is None:
            under_way = self._checks.get(key)
            if under_way is None:
                return await self._check(context, scheme, credentials, key)
            if self._joined >= (JOINED_OF_FAILED_MAX if self._has_failed(network_of(context.host)) else JOINED_MAX):
                raise self._refusal(context)
            self._joined += 1
            try:
                await under_way.over.wait()
            finally:
                self._joined -= 1
            if under_way.has_failed:
                self._on_login(context, None, f"wrong credentials ({scheme})")
                raise NotAuthenticated
        if context.host not in kept.hosts:
            if len(kept.hosts) >= HOSTS_MAX:
                kept.hosts.clear()
            kept.hosts.add(context.host)
            self._on_login(context, kept.authenticated, "")
        return kept.authenticated

    def _find(self, key: bytes) -> _Kept | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        if asyncio.get_running_loop().time() >= kept.until or not kept.authenticated.is_current():
            self._kept.pop(key)
            return None
        return kept

    async def _check(
        self, context: AuthenticationContext, scheme: str, credentials: str, key: bytes
    ) -> AuthenticatedClient:
        network = network_of(context.host)
        now = asyncio.get_running_loop().time
        began = now()
        if not self._has_room(network, began):
            raise self._refusal(context)
        check = self._checks[key] = _Check()
        self._waiting[network] += 1
        try:
            async with self._turns:
                authenticated = await self._by_scheme[scheme].check(credentials, context)
            check.has_failed = authenticated is None
        finally:
            self._waiting[network] -= 1
            if not self._waiting[network]:
                del self._waiting[network]
            del self._checks[key]
            check.over.set()
        if authenticated is None:
            self._on_login(context, None, f"wrong credentials ({scheme})")
            await self._fail(context.host, network, scheme, began)
            raise NotAuthenticated
        self.succeeded[scheme] += 1
        expires_at = authenticated.session.expires_at
        until = now() + KEPT_S if expires_at is None else min(now() + KEPT_S, expires_at)
        self._kept.put(key, _Kept(authenticated, until, {context.host}))
        self._on_login(context, authenticated, "")
        return authenticated

    def _has_room(self, network: str, now: float) -> bool:
        """Return whether one more log-in of a network may be checked, or wait for it."""
        if self._waiting.total() >= (WAITING_OF_FAILED_MAX if self._has_failed(network) else WAITING_MAX):
            return False
        failures = self._failures.peek(network)
        delayed = len(failures.delayed(now)) if failures is not None else 0
        return self._waiting[network] + delayed < WAITING_OF_NETWORK_MAX

    def _has_failed(self, network: str) -> bool:
        """Return whether a log-in of the network has failed lately."""
        failures = self._failures.peek(network)
        return failures is not None and asyncio.get_running_loop().time() - failures.last < FORGIVEN_S

    def _refusal(self, context: AuthenticationContext) -> NotPossible:
        self.refused += 1
        _log.warning("HTTP log-in refused unchecked: too many wait", extra=fields(connection=context.host))
        self._on_login(context, None, "too many log-ins wait")
        return NotPossible(429, "too_many_logins", "too many log-ins are being checked; try again in some seconds")

    async def _fail(self, address: str, network: str, scheme: str, began: float) -> None:
        """Count a failed log-in, and wait so long that guessing takes for ever."""
        now = asyncio.get_running_loop().time()
        before = self._failures.get(network)
        is_first = before is None or now - before.last >= FORGIVEN_S
        count = 1 if before is None or is_first else before.times + 1
        end = began + min(self._delay_s * 2 ** min(count - 1, 30), DELAY_MAX_S)
        delays = before.delayed(now) if before is not None else ()
        self._failures.put(network, _Failures(count, now, (*delays, end)))
        self.failed[scheme] += 1
        _log.warning("HTTP log-in failed", extra=fields(connection=address, error=f"wrong credentials ({scheme})"))
        if self._delayed >= DELAYED_MAX:
            return
        self._delayed += 1
        try:
            await asyncio.sleep(max(0.0, end - now))
        finally:
            self._delayed -= 1


def network_of(host: str) -> str:
    """Return the network of a host: its IPv4 address, the /64 of its IPv6 address, else its name."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))

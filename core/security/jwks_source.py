"""The key set of an issuer, fetched from a URL or a file, and fetched again from time to time.

| case | what happens |
|---|---|
| it is as old as ``sasl.oauthbearer.jwks.endpoint.refresh.ms`` | it is fetched, and the new one replaces it |
| a fetch fails | the old set stays; the next try is after ``…retry.backoff.ms``, then twice that, and so on |
| a token names another key | it is fetched at once: the issuer may have new keys; the token waits, ``WAIT_S`` at most |
| tokens name other keys often | for one key it is fetched every ``SAME_KEY_S``, for all of them every ``EXPEDITED_S`` |

The address is a setting of the operator: no token and no request can name one, and redirects are not followed.  Kafka
has a list of allowed addresses beside it (``org.apache.kafka.sasl.oauthbearer.allowed.urls``), since there clients of
Connect can set it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote

import aiohttp

from bmq.core.aio.backoff import Backoff
from bmq.core.aio.lru import LruCache
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.waiters import Waiters
from bmq.core.logging.fields import fields
from bmq.core.security.jwks import BYTES_MAX, JsonWebKeySet, JwksError, ids_of, parse_key_set
from bmq.core.urls import split_url, without_userinfo

FETCH_S = 10.0
"""Longest fetch."""
WAIT_S = 5.0
"""Longest wait of a token for the key that it names."""
EXPEDITED_S = 5.0
"""Least time between two fetches that tokens cause."""
SAME_KEY_S = 60.0
"""Least time between two fetches for one key id (Kafka: ``MISSING_KEY_ID_CACHE_IN_FLIGHT_MS``)."""
MISSING_KEYS_MAX = 64
"""Key ids that are remembered as unknown; those past it may cause a fetch again, as far as ``EXPEDITED_S`` allows."""
_log = logging.getLogger(__name__)

Fetch = Callable[[], Awaitable[bytes]]
"""Reads the bytes of the key set.  Raises JwksError if they cannot be had."""


class JwksSource:
    """One issuer's key set, kept up to date by a task."""

    def __init__(self, fetch: Fetch, name: str, *, refresh_s: float, retry_s: Backoff[float]) -> None:
        """Create a source of what ``fetch`` reads; ``name`` is its address, for log lines."""
        self._fetch = fetch
        self._name = name
        self._refresh_s = refresh_s
        self._retry_s = retry_s
        self._keys = JsonWebKeySet()
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._waiters = Waiters()
        self._missing: LruCache[str, float] = LruCache(MISSING_KEYS_MAX)
        self._expedited = -math.inf
        self._is_fetching = False

    @property
    def keys(self) -> JsonWebKeySet:
        """The newest key set; an empty one as long as none was fetched."""
        return self._keys

    def start(self) -> None:
        """Begin to fetch."""
        assert self._task is None
        self._is_fetching = True
        self._task = asyncio.create_task(self._run(), name=f"keys of {self._name}")

    async def close(self) -> None:
        """Stop fetching.  Tokens that wait are answered with the keys that there are.  Idempotent."""
        await cancel_and_wait(self._task)
        self._waiters.wake_all()

    async def fetch_for(self, key_id: str) -> JsonWebKeySet:
        """Return a key set that was fetched because the present key set lacks ``key_id``.

        Returns the present one if a fetch is not due yet, fails, or takes longer than ``WAIT_S``.
        """
        if self._task is None or self._task.done():
            return self._keys
        if not self._is_fetching:  # else its result is as good as that of another one
            if not self._is_due(key_id):
                return self._keys
            self._is_fetching = True
            self._wanted.set()
        await self._waiters.wait(WAIT_S)
        return self._keys

    def _is_due(self, key_id: str) -> bool:
        """Return whether ``key_id`` may cause a fetch; note that it does."""
        now = asyncio.get_running_loop().time()
        asked = self._missing.get(key_id)
        if now - self._expedited < EXPEDITED_S or (asked is not None and now - asked < SAME_KEY_S):
            return False
        self._expedited = now
        self._missing.put(key_id, now)
        return True

    async def _run(self) -> None:
        failures = 0
        while True:
            self._is_fetching = True
            self._wanted.clear()
            try:
                data = await self._fetch()
                self._use(parse_key_set(data))
                failures = 0
            except JwksError as error:
                failures += 1
                if failures == 1:
                    _log.warning(
                        "the key set of access tokens cannot be fetched, trying again; the keys fetched before stay",
                        extra=fields(path=self._name, error=error),
                    )
            self._is_fetching = False
            self._waiters.wake_all()
            pause = self._retry_s.pause(failures) if failures else self._refresh_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wanted.wait()

    def _use(self, keys: JsonWebKeySet) -> None:
        if keys != self._keys:
            left_out = f"; left out: {'; '.join(keys.unusable)}" if keys.unusable else ""
            _log.info(
                "the key set of access tokens is new: key ids %s%s",
                ids_of(keys.keys),
                left_out,
                extra=fields(path=self._name),
            )
        self._keys = keys


def open_source(
    url: str, *, refresh_s: float, retry_s: Backoff[float], trust: ssl.SSLContext | None = None
) -> JwksSource:
    """Return a source of the key set at ``url``, not started.

    ``trust`` says which certificates of servers are right; None: those of the system's authorities.  Raises JwksError
    if ``url`` is wrong.
    """
    name, fetch = _fetcher(url, trust)
    return JwksSource(fetch, name, refresh_s=refresh_s, retry_s=retry_s)


def _fetcher(url: str, trust: ssl.SSLContext | None) -> tuple[str, Fetch]:
    name = without_userinfo(url)
    try:
        parts = split_url(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise JwksError(f"{name!r} is not a URL: {error}") from None
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        if host not in ("", "localhost") or not path.is_absolute():
            raise JwksError(f"{name!r} is not like file:///etc/bmq/jwks.json")
        return name, lambda: asyncio.to_thread(_read_file, path)
    if parts.scheme not in ("https", "http") or not host:
        raise JwksError(f"{name!r} is not like https://issuer.example/keys, or file:///etc/bmq/jwks.json")
    if parts.scheme == "http" and not _is_loopback(host):
        raise JwksError(f"{name!r} is not https://: whoever is on the way could put his own keys there")
    return name, lambda: _get(url, trust)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(BYTES_MAX + 1)
    except OSError as error:
        raise JwksError(f"{path} cannot be read: {error.strerror}") from None


async def _get(url: str, trust: ssl.SSLContext | None) -> bytes:
    timeout = aiohttp.ClientTimeout(total=FETCH_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers={"Accept": "application/json"}) as session,
            session.get(url, allow_redirects=False, ssl=True if trust is None else trust) as response,
        ):
            if response.status != 200:
                raise JwksError(f"the server responded {response.status}")
            data = bytearray()
            async for piece in response.content.iter_chunked(64 << 10):
                data += piece
                if len(data) > BYTES_MAX:
                    raise JwksError(f"the key set is over {BYTES_MAX} bytes")
            return bytes(data)
    except TimeoutError:
        raise JwksError(f"the server did not respond within {FETCH_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise JwksError(f"the server cannot be reached: {error}") from None

"""The cluster's delegation tokens: a record each in the store, a watched view of them, and their changes.

Record ``/<cluster>/tokens/<id>``, JSON: owner, requester, renewers, times.  The proxy that gets a request writes the
record, by a commit that compares the revision that it has read.  It responds once its own view shows the record.

Every proxy removes expired tokens slowly, at times of its own (``delegation.token.expiry.check.interval.ms``).  It
removes only tokens that expired a while ago, so a clock a little ahead removes nothing valid.  An expired token lets
nobody in, whether or not it is there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.security.delegation_token import DelegationToken, hmac_of, new_id
from bmq.core.security.principal import Principal, parse_principal
from bmq.meta.kv import Changes, KeyValue
from bmq.meta.prefix_watch import PrefixWatcher
from bmq.meta.security.compared_write import wait_shown, write_compared

FORMAT = 1
TOKENS_MAX = 100_000
"""Tokens of a cluster: every proxy has all of them in memory, some 1 KB each."""
RENEWERS_MAX = 100
RECORD_BYTES_MAX = 64 << 10
CONFLICTS_MAX = 20
"""Times that a change is decided again because another writer was first."""
SWEEP_AFTER_MS = 60_000
"""Time after which an expired token is removed."""
SWEEP_MAX = 1_000
"""Tokens that are removed in one round at most."""
SWEEP_PAUSE_S = 0.05
"""Pause after each."""
LONG_MAX = (1 << 63) - 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLifetimes:
    """Settings, in milliseconds."""

    max_ms: int = 604_800_000
    """delegation.token.max.lifetime.ms"""
    expiry_ms: int = 86_400_000
    """delegation.token.expiry.time.ms"""
    check_ms: int = 3_600_000
    """delegation.token.expiry.check.interval.ms"""


def tokens_prefix(cluster: str) -> str:
    """Return the prefix of all tokens' records."""
    return f"/{cluster}/tokens/"


def encode_token(token: DelegationToken) -> bytes:
    raw = {
        "format": FORMAT,
        "owner": str(token.owner),
        "requester": str(token.requester),
        "renewers": list(map(str, token.renewers)),
        "issued_ms": token.issued_ms,
        "max_ms": token.max_ms,
        "expires_ms": token.expires_ms,
    }
    return json.dumps(raw, separators=(",", ":")).encode()


def decode_token(token_id: str, data: bytes) -> DelegationToken:
    """Return the token in ``data``.  Raises FormatError if it is not a token's record, or one of a later format."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise FormatError(f"delegation token of format {raw['format']}: this version reads {FORMAT}")
        issued, most, expires = raw["issued_ms"], raw["max_ms"], raw["expires_ms"]
        if not all(type(each) is int for each in (issued, most, expires)):
            raise TypeError("times are whole numbers")
        return DelegationToken(
            id=token_id,
            owner=parse_principal(raw["owner"]),
            requester=parse_principal(raw["requester"]),
            renewers=tuple(map(parse_principal, raw["renewers"])),
            issued_ms=issued,
            max_ms=most,
            expires_ms=expires,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"not a delegation token: {data[:80]!r} ({error})") from error


class DelegationTokens:
    """One process's view of the tokens, and its changes of them."""

    def __init__(
        self,
        kv: KeyValue,
        cluster: str,
        clock: Clock,
        secret: str,
        lifetimes: TokenLifetimes,
        on_failed: Callable[[str], None] = no_op,
    ) -> None:
        """``secret``: delegation.token.secret.key.  ``on_failed``: see ``meta.prefix_watch``."""
        self._kv = kv
        self._clock = clock
        self._secret = secret.encode()
        self._lifetimes = lifetimes
        self._prefix = tokens_prefix(cluster)
        self._tokens: dict[str, DelegationToken] = {}
        self._ids: dict[bytes, str] = {}  # by HMAC
        self._watcher = PrefixWatcher(kv, self._prefix, self._take, what="delegation tokens", on_failed=on_failed)
        self._sweeper: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<DelegationTokens {len(self._tokens)}>"

    async def start(self) -> None:
        """Start following.  Returns when the view is complete.  Raises KvError if the store does not answer."""
        await self._watcher.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="expired delegation tokens")

    async def close(self) -> None:
        """Stop.  Idempotent."""
        await cancel_and_wait(self._sweeper)
        await self._watcher.close()

    # ------------------------------------------------------------------------------------------------- what there is

    def find(self, token_id: str) -> DelegationToken | None:
        """Return the token; None if there is none of this id, or if it has expired."""
        token = self._tokens.get(token_id)
        return None if token is None or token.is_expired(self._clock.now_ms()) else token

    def of_hmac(self, token_hmac: bytes) -> DelegationToken | None:
        """Return the token with this HMAC, expired or not; None if there is none."""
        return self._tokens.get(self._ids.get(token_hmac, ""))

    def hmac_of(self, token_id: str) -> bytes:
        """Return the HMAC that a token of this id has.  It is a secret."""
        return hmac_of(self._secret, token_id)

    @property
    def tokens(self) -> Collection[DelegationToken]:
        """All tokens, also those that have expired and are not removed yet."""
        return self._tokens.values()

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The keys whose newest value this version cannot read, with the reasons."""
        return self._watcher.unreadable

    # ------------------------------------------------------------------------------------------------------- changes

    async def create(
        self, requester: Principal, owner: Principal, renewers: Collection[Principal], max_lifetime_ms: int
    ) -> DelegationToken:
        """Make a token.  ``max_lifetime_ms`` may shorten its life; one that is not positive does nothing.

        Raises RequestError.
        """
        if len(renewers) > RENEWERS_MAX:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"a token has at most {RENEWERS_MAX} renewers")
        if len(self._tokens) >= TOKENS_MAX:
            raise RequestError(ErrorCode.POLICY_VIOLATION, f"a cluster has at most {TOKENS_MAX} delegation tokens")
        now, life = self._clock.now_ms(), self._lifetimes.max_ms
        most = _sum(now, min(life, max_lifetime_ms) if max_lifetime_ms > 0 else life)
        token = DelegationToken(
            id=new_id(), owner=owner, requester=requester, renewers=tuple(dict.fromkeys(renewers)),
            issued_ms=now, max_ms=most, expires_ms=min(most, _sum(now, self._lifetimes.expiry_ms)),
        )  # fmt: skip
        value = encode_token(token)
        if len(value) > RECORD_BYTES_MAX:
            raise RequestError(ErrorCode.INVALID_REQUEST, f"the token's principals are over {RECORD_BYTES_MAX} bytes")
        written = await write_compared(self._kv, self._prefix + token.id, value, 0)
        assert written.is_done, "an id has 128 random bits"
        await wait_shown(self._watcher, written.revision)
        return token

    async def renew(self, principal: Principal, token_hmac: bytes, period_ms: int) -> int:
        """Let a token live for ``period_ms`` from now, within its bounds; not positive: for the usual time.

        Returns the time at which it then expires.  Raises RequestError.
        """

        def renewed(token: DelegationToken, now: int) -> int:
            _check_alive(token, now)
            _check_renewer(token, principal)
            life = self._lifetimes.expiry_ms
            return min(token.max_ms, _sum(now, min(life, period_ms) if period_ms > 0 else life))

        return await self._change(token_hmac, renewed)

    async def expire(self, principal: Principal, token_hmac: bytes, period_ms: int) -> int:
        """Let a token expire in ``period_ms``, within its bounds; negative: remove it now.

        Returns the time at which it then expires.  Raises RequestError.
        """

        def expired(token: DelegationToken, now: int) -> int | None:
            _check_renewer(token, principal)
            if period_ms < 0:
                return None
            _check_alive(token, now)
            return min(token.max_ms, _sum(now, period_ms))

        return await self._change(token_hmac, expired)

    async def _change(self, token_hmac: bytes, decide: Callable[[DelegationToken, int], int | None]) -> int:
        """Write the expiry that ``decide`` returns, None for a token's end, until no other writer is first."""
        for _ in range(CONFLICTS_MAX):
            token = self.of_hmac(token_hmac)
            if token is None:
                raise RequestError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "there is no such delegation token")
            now, key = self._clock.now_ms(), self._prefix + token.id
            expires = decide(token, now)
            value = None if expires is None else encode_token(replace(token, expires_ms=expires))
            written = await write_compared(self._kv, key, value, self._watcher.revision_of(key))
            await wait_shown(self._watcher, written.revision)
            if written.is_done:
                return now if expires is None else expires
        raise RequestError(ErrorCode.REQUEST_TIMED_OUT, "the token is being changed by others all the time")

    # ------------------------------------------------------------------------------------------------- behind requests

    def _take(self, changes: Changes) -> None:
        for event in changes:
            token_id = event.key.removeprefix(self._prefix)
            if event.entry is None:
                if self._tokens.pop(token_id, None) is not None:
                    del self._ids[self.hmac_of(token_id)]
                continue
            try:
                token = decode_token(token_id, event.entry.value)
            except FormatError as error:
                self._watcher.keep(event.key, str(error))
                continue
            self._tokens[token_id] = token
            self._ids[self.hmac_of(token_id)] = token_id

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._lifetimes.check_ms / 1000 * random.uniform(0.5, 1.0))
            past = self._clock.now_ms() - SWEEP_AFTER_MS
            expired = [token for token in self._tokens.values() if token.is_expired(past)]
            for token in expired[:SWEEP_MAX]:
                key = self._prefix + token.id
                try:
                    await write_compared(self._kv, key, None, self._watcher.revision_of(key))
                except RequestError as error:
                    _log.info("cannot remove an expired delegation token now", extra=fields(key=key, error=error))
                    break
                _log.info("an expired delegation token of %.200s is removed", token.owner, extra=fields(key=key))
                await asyncio.sleep(SWEEP_PAUSE_S)


def _check_alive(token: DelegationToken, now: int) -> None:
    if token.is_expired(now):
        raise RequestError(ErrorCode.DELEGATION_TOKEN_EXPIRED, "the delegation token has expired")


def _check_renewer(token: DelegationToken, principal: Principal) -> None:
    if not token.may_be_renewed_by(principal):
        raise RequestError(
            ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "only its owner and its renewers may change a delegation token"
        )


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, LONG_MAX)

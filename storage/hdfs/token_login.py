"""The log-in to NameNodes by a delegation token, and by Kerberos beside it once the NameNode refuses the token."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from bmq.core.logging.fields import fields
from bmq.storage.filesystem import CannotLogIn, StorageError
from bmq.storage.hdfs.auth import AUTH_SASL, Authenticator, SaslClient, SimpleAuthenticator, TokenAuthenticator
from bmq.storage.hdfs.delegation_token import HDFS_DELEGATION_TOKEN, LOGICAL, HadoopToken
from bmq.storage.hdfs.library_thread import LibraryThread
from bmq.storage.hdfs.sasl import AUTHENTICATION, SIMPLE, TOKEN, LoginFailed, Negotiation, Protection
from bmq.storage.hdfs.token_file import TOKEN_FILE_LOCATION, FileState, Tokens, file_states, read_token_files
from bmq.storage.logins import LOGINS

WAIT_S = 2.0
"""Longest wait of a log-in for its token file, which takes a millisecond."""

_log = logging.getLogger(__name__)


class HadoopTokenSource(Protocol):
    """The place of a token.  Another token may replace it there."""

    def current(self) -> HadoopToken:
        """Return the token as it was read last."""

    async def refresh(self) -> None:
        """Read the token again if another one may be there."""

    def close(self) -> None:
        """End what reads the token.  Idempotent."""


class GivenToken:
    """The token of a caller, which never changes."""

    def __init__(self, token: HadoopToken) -> None:
        self._token = token

    def __repr__(self) -> str:
        return f"GivenToken({self})"

    def __str__(self) -> str:
        return str(self._token)

    def current(self) -> HadoopToken:
        """Return the token."""
        return self._token

    async def refresh(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class FileToken:
    """The token for ``services`` out of Hadoop's files of credentials, which are read again after a change.

    ``token`` was read from the files in ``states``.  A thread reads for all log-ins, since the files may lie on a
    network's disk.  A log-in waits for ``wait_s`` at most.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        services: Collection[str],
        token: HadoopToken,
        states: tuple[FileState, ...],
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        self._paths = paths
        self._services = frozenset(services)
        self._token = token
        self._states = states
        self._wait_s = wait_s
        self._thread = LibraryThread("hdfs-token-file")
        self._reading: asyncio.Future[None] | None = None
        self._is_closed = False
        _note_end(token)

    def __repr__(self) -> str:
        return f"FileToken({self})"

    def __str__(self) -> str:
        return f"{self._token} in {','.join(self._paths)}"

    def current(self) -> HadoopToken:
        """Return the token as it was read last."""
        return self._token

    async def refresh(self) -> None:
        """Read the files if they have changed.  The former token is kept if no file can be read or has a token.

        Nothing is read after ``close``.
        """
        if self._is_closed:
            return
        if self._reading is None or self._reading.done():
            self._reading = asyncio.wrap_future(self._thread.submit(self._read))
        reading = self._reading
        done, _ = await asyncio.wait([reading], timeout=self._wait_s)
        if not done:
            _log.warning("no response of a token file's disk: the former token is kept", extra=fields(path=self._paths))
            return
        if not reading.cancelled():  # by `close`
            reading.result()

    def close(self) -> None:
        """End the thread after its present read, without waiting.  Log-ins under way go on with the token."""
        self._is_closed = True
        self._thread.close()
        if self._reading is not None:
            self._reading.cancel()  # the read may end after the loop

    def _read(self) -> None:
        states = file_states(self._paths)
        if states == self._states:
            return
        try:
            found = choose_token(read_token_files(self._paths), self._services)
        except CannotLogIn as error:
            _log.warning("a changed token file cannot be used: the former token is kept", extra=fields(error=error))
            found = None
        self._token, self._states = found or self._token, states
        _note_end(self._token)


def _note_end(token: HadoopToken) -> None:
    """Note the end of the token for this process's metrics: another program has to replace the token."""
    LOGINS.token_ends(token.ends_ms / 1000 if token.ends_ms else None)


def choose_token(tokens: Tokens, services: Collection[str]) -> HadoopToken | None:
    """Return the delegation token for one of ``services``: for a name service first, and of several the last to end."""
    fitting = [token for token in tokens.values() if token.kind == HDFS_DELEGATION_TOKEN and token.service in services]
    return max(fitting, key=lambda token: (token.service.startswith(LOGICAL), token.ends_ms), default=None)


class DelegatedAuthenticator:
    """The owner of a delegation token, by the token; by Kerberos once the NameNode does not take the token any more.

    Hadoop's servers offer log-ins by token before Kerberos, and its clients take the first offer for which they have
    credentials (SaslRpcClient.selectSaslClient), so the token is first here too.  ``make_kerberos`` makes the identity
    of a ticket cache, None if the configuration has no Kerberos.
    """

    auth_byte = AUTH_SASL

    def __init__(
        self,
        source: HadoopTokenSource,
        levels: Sequence[str] = (AUTHENTICATION,),
        make_kerberos: Callable[[], Authenticator] | None = None,
        *,
        is_fallback_allowed: bool = False,
    ) -> None:
        self.levels = levels
        self._source = source
        self._make_kerberos = make_kerberos
        self._is_fallback_allowed = is_fallback_allowed
        self._kerberos: Authenticator | None = None
        self._used = source.current()
        self._refused = b""
        self._is_closed = False
        self.is_by_token = True
        """False while Kerberos is used in the token's place."""

    def __str__(self) -> str:
        return str(self._source) if self.is_by_token else str(self._kerberos)

    def __repr__(self) -> str:
        return f"DelegatedAuthenticator({self})"

    @property
    def token(self) -> HadoopToken:
        """The token as it was read last."""
        return self._source.current()

    @property
    def login(self) -> DelegatedAuthenticator:
        """The identity itself, which is the log-in too."""
        return self

    async def names(self, peer: tuple[str, int], timeout_s: float) -> tuple[str, ...]:
        """Return the names of the server's address if Kerberos is used, and compares them."""
        login = None if self.is_by_token or self._kerberos is None else self._kerberos.login
        return () if login is None else await login.names(peer, timeout_s)

    async def refresh(self) -> None:
        """Read the token again if another one may be there."""
        await self._source.refresh()

    def negotiate(self, server: str) -> Negotiation:
        """Return the machine of a log-in at ``server``, by the token unless it was refused."""
        self._used = self._source.current()
        self.is_by_token = self._kerberos is None or self._used.identifier != self._refused
        if not self.is_by_token and self._kerberos is not None and self._kerberos.login is not None:
            return self._kerberos.login.negotiate(server)
        return Negotiation(server, (TOKEN,), is_fallback_allowed=self._is_fallback_allowed)

    def client(self, method: str, host: str, names: Collection[str], service: str, server_id: str) -> SaslClient:
        """Return the client of the method that ``negotiate`` has chosen.  Raises LoginFailed."""
        if method == TOKEN:
            by_token = TokenAuthenticator(self._used.to_message(), self.levels)
            return by_token.client(method, host, names, service, server_id)
        assert self._kerberos is not None
        assert self._kerberos.login is not None
        client = self._kerberos.login.client(method, host, names, service, server_id)
        return _AfterToken(client, f"the NameNode refuses {self._source}")

    async def has_another(self) -> bool:
        """Return whether another token has come into the file, or Kerberos can be tried in the token's place."""
        self._refused = self._used.identifier
        await self._source.refresh()
        if self._source.current().identifier != self._refused:
            return True
        if not self.is_by_token or self._make_kerberos is None or self._is_closed:
            return False  # nobody would close an identity of Kerberos that is made after `close`
        if self._kerberos is None:
            try:
                self._kerberos = self._make_kerberos()
            except (StorageError, ValueError) as error:
                _log.warning("Kerberos cannot take the place of a refused token", extra=fields(error=error))
                return False
        _log.warning(
            "HDFS refuses %s: the log-in by %s is used until there is another token", self._source, self._kerberos
        )
        return True

    def note_refusal(self) -> None:
        """Have a refused ticket replaced."""
        if not self.is_by_token and self._kerberos is not None:
            self._kerberos.note_refusal()

    def effective_user(self, method: str) -> str:
        """Return nothing: the token names the user.  Only an open server, after the fall-back, needs a name."""
        return SimpleAuthenticator.for_user().user if method == SIMPLE else ""

    def close(self) -> None:
        """End what reads the token, and what Kerberos holds.  Idempotent."""
        self._is_closed = True
        self._source.close()
        if self._kerberos is not None:
            self._kerberos.close()


class _AfterToken:
    """Kerberos's client whose errors also say that the token was refused before."""

    def __init__(self, client: SaslClient, refusal: str) -> None:
        self._client = client
        self._refusal = refusal

    @property
    def is_complete(self) -> bool:
        return self._client.is_complete

    @property
    def protection(self) -> Protection:
        return self._client.protection

    async def evaluate(self, challenge: bytes) -> bytes | None:
        try:
            return await self._client.evaluate(challenge)
        except LoginFailed as error:
            raise LoginFailed(f"{self._refusal}, and {error}", error.kind, is_final=error.is_final) from error


def no_token_for(services: Collection[str], tokens: Tokens) -> str:
    """Return the text for files that have no delegation token for any of ``services``."""
    held = sorted({token.service[:100] for token in tokens.values() if token.kind == HDFS_DELEGATION_TOKEN})
    return (
        f"{TOKEN_FILE_LOCATION} has no delegation token for {' or '.join(sorted(services))}, only for"
        f" {', '.join(held[:10]) or 'no HDFS at all'}"
    )

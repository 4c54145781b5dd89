"""The cluster's SCRAM users: their records in the metadata store, a watched view, and the writes of any proxy.

A user's credential for one mechanism is one key, ``/<cluster>/users/<user>/<mechanism>``, the user percent-encoded. Its
value is JSON, with bytes in Base64::

    {"format": 1, "iterations": 4096, "salt": "…", "stored_key": "…", "server_key": "…"}

Never the password.  A write compares the revision that it has read.  If the store has another revision, it is decided
again on the store's contents.  It returns when this process's view shows it.

``/<cluster>/scram-decoys`` has a random secret. The salts of unknown users are made from it, so they are the same in
every proxy.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from bmq.core.aio.subscribers import no_op
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.security.principal import has_outer_space
from bmq.core.security.scram import (
    BY_NAME,
    ITERATIONS_LEAST,
    CredentialForm,
    ScramCredential,
    ScramMechanism,
    decoy,
    decoy_form,
    form_of,
)
from bmq.meta.kv import Changes, Entry, KeyValue
from bmq.meta.prefix_watch import PrefixWatcher, patiently
from bmq.meta.security.compared_write import wait_shown, write_compared

FORMAT = 1
USER_BYTES_MAX = 1_024
"""Bytes of a user's name."""
CREDENTIALS_MAX = 100_000
"""Credentials of a cluster, about 500 bytes each in every proxy."""
SALT_BYTES_MAX = 1_024
FORMS_MAX = 16
"""Forms of credentials, the most common first, that decoys are given: each costs a log-in an HMAC."""
ATTEMPTS = 5
"""Tries of a write that others come before."""
_SECRET_BYTES = 32
_Key = tuple[str, str]  # user, mechanism's name


def users_prefix(cluster: str) -> str:
    return f"/{cluster}/users/"


def credential_key(cluster: str, user: str, mechanism: ScramMechanism) -> str:
    return f"{users_prefix(cluster)}{quote(user, safe='')}/{mechanism.name}"


def decoys_key(cluster: str) -> str:
    return f"/{cluster}/scram-decoys"


def encode_credential(credential: ScramCredential) -> bytes:
    """Return the record."""
    raw = {
        "format": FORMAT,
        "iterations": credential.iterations,
        "salt": _text(credential.salt),
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }
    return json.dumps(raw, separators=(",", ":")).encode()


def decode_credential(mechanism: ScramMechanism, entry: Entry) -> ScramCredential:
    """Return the credential of a record.  Raises FormatError, which shows nothing of it, if it is not one."""
    try:
        raw = json.loads(entry.value)
        if raw["format"] != FORMAT:
            raise FormatError(f"{entry.key} is of format {raw['format']}: this version reads {FORMAT}")
        iterations = raw["iterations"]
        made = ScramCredential(_bytes(raw["salt"]), iterations, _bytes(raw["stored_key"]), _bytes(raw["server_key"]))
        sizes = (len(made.stored_key), len(made.server_key))
        if type(iterations) is not int or iterations < 1 or sizes != (mechanism.size, mechanism.size):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FormatError(f"{entry.key} does not hold a SCRAM credential") from None
    return made


class ScramCredentials:
    """The users as the store has them.  ``start`` returns when the view is complete; it follows until ``close``."""

    def __init__(self, kv: KeyValue, cluster: str, on_failed: Callable[[str], None] = no_op) -> None:
        """``on_failed``: see ``meta.prefix_watch``."""
        self._kv = kv
        self._cluster = cluster
        self._credentials: dict[_Key, ScramCredential] = {}
        self._forms: dict[str, Counter[CredentialForm]] = {name: Counter() for name in BY_NAME}
        self._secret = b""
        self._following = PrefixWatcher(kv, users_prefix(cluster), self._take, what="SCRAM users", on_failed=on_failed)

    def __repr__(self) -> str:
        return f"<ScramCredentials {len(self._credentials)}>"

    async def start(self) -> None:
        """Start following.  Raises KvError if the store does not answer for long."""
        await self._following.start()

    async def close(self) -> None:
        """Stop following.  Idempotent."""
        await self._following.close()

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The keys that this version cannot read, with the reasons."""
        return self._following.unreadable

    # ---------------------------------------------------------------------------------------------------- reading

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return a user's credential; None if there is none."""
        return self._credentials.get((user, mechanism.name))

    def of_user(self, user: str) -> dict[ScramMechanism, ScramCredential]:
        """Return a user's credentials by mechanism."""
        return {
            mechanism: self._credentials[user, mechanism.name]
            for mechanism in BY_NAME.values()
            if (user, mechanism.name) in self._credentials
        }

    @property
    def users(self) -> Iterable[str]:
        """All users that have a credential."""
        return dict.fromkeys(user for user, _ in self._credentials)

    async def prepare_decoys(self) -> None:
        """Read the secret of ``decoy``, and write it if this is the first process to need it."""
        self._secret = await patiently(self._read_secret)

    def decoy(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """Return a credential for an unknown user, in the form of a real credential.

        The forms are drawn as often as users have them, so that no form shows that a user exists.
        """
        assert self._secret, "prepare_decoys comes first"
        counts = dict(self._forms[mechanism.name].most_common(FORMS_MAX))
        return decoy(mechanism, self._secret, user, decoy_form(self._secret, user, counts))

    def usual_iterations(self, mechanism: ScramMechanism) -> int:
        """Return the iterations that most users of a mechanism have."""
        usual = self._forms[mechanism.name].most_common(1)
        return usual[0][0].iterations if usual else ITERATIONS_LEAST

    # ---------------------------------------------------------------------------------------------------- writing

    async def put(self, user: str, mechanism: ScramMechanism, credential: ScramCredential) -> None:
        """Write a user's credential, in place of the one that there is.

        Raises RequestError if the store does not answer, or the cluster has too many.
        """
        if (user, mechanism.name) not in self._credentials and len(self._credentials) >= CREDENTIALS_MAX:
            raise RequestError(ErrorCode.POLICY_VIOLATION, f"The cluster has {CREDENTIALS_MAX} SCRAM credentials")
        await self._write(user, mechanism, encode_credential(credential))

    async def remove(self, user: str, mechanism: ScramMechanism) -> None:
        """Remove a user's credential.

        Raises RequestError RESOURCE_NOT_FOUND if there is none, or if the store does not answer.
        """
        await self._write(user, mechanism, None)

    async def _write(self, user: str, mechanism: ScramMechanism, value: bytes | None) -> None:
        key = credential_key(self._cluster, user, mechanism)
        revision = self._following.revision_of(key)
        for _ in range(ATTEMPTS):
            written = await write_compared(self._kv, key, value, revision)
            if written.is_done and value is None and not revision:  # the store has none, not just this view
                text = "Attempt to delete a user credential that does not exist"
                raise RequestError(ErrorCode.RESOURCE_NOT_FOUND, text)
            await wait_shown(self._following, written.revision)
            if written.is_done:
                return
            revision = self._following.revision_of(key)
        raise RequestError(ErrorCode.REQUEST_TIMED_OUT, "others change this credential all the time")

    async def _read_secret(self) -> bytes:
        key = decoys_key(self._cluster)
        entry = await self._kv.get(key)
        if entry is None:
            raw = {"format": FORMAT, "secret": _text(secrets.token_bytes(_SECRET_BYTES))}
            await write_compared(self._kv, key, json.dumps(raw, separators=(",", ":")).encode(), 0)
            entry = await self._kv.get(key)
        try:
            secret = _bytes(json.loads(entry.value)["secret"]) if entry is not None else b""
        except (ValueError, KeyError, TypeError):
            secret = b""
        if not secret:
            raise FormatError(f"{key} has no secret in it; delete it, and a new one is made")
        return secret

    def _take(self, changes: Changes) -> None:
        for event in changes:
            found = _user_of(self._cluster, event.key)
            if found is None:
                continue
            user, mechanism = found
            if event.entry is None:
                self._set(user, mechanism, None)
                continue
            try:
                credential = decode_credential(mechanism, event.entry)
            except FormatError as error:
                self._following.keep(event.key, str(error))
                continue
            self._set(user, mechanism, credential)

    def _set(self, user: str, mechanism: ScramMechanism, credential: ScramCredential | None) -> None:
        key, counts = (user, mechanism.name), self._forms[mechanism.name]
        before = self._credentials.pop(key, None)
        if before is not None:
            form = form_of(before)
            counts[form] -= 1
            if not counts[form]:
                del counts[form]
        if credential is not None:
            self._credentials[key] = credential
            counts[form_of(credential)] += 1


def check_user(user: str) -> None:
    """Raise RequestError UNACCEPTABLE_CREDENTIAL if nobody can have this name."""
    if not user:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(user.encode()) > USER_BYTES_MAX:
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username has more than {USER_BYTES_MAX} bytes")


def check_new_user(user: str) -> None:
    """Raise RequestError UNACCEPTABLE_CREDENTIAL if no new user may have this name."""
    check_user(user)
    if has_outer_space(user):
        raise RequestError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not begin or end with white space")


def _user_of(cluster: str, key: str) -> tuple[str, ScramMechanism] | None:
    """Return user and mechanism of a key; None for a mechanism of a later version."""
    user, _, mechanism = key.removeprefix(users_prefix(cluster)).partition("/")
    known = BY_NAME.get(mechanism)
    return None if known is None else (unquote(user), known)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)

"""The token that etcd issues for a user and password."""

from __future__ import annotations

import asyncio

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.errors import NO_AUTHENTICATION, Verdict
from bmq.meta.etcd.member import AUTHENTICATE, CallFailed, Member, Metadata


class Tokens:
    """One token for all members, fetched when first needed and again when a member refused it."""

    def __init__(self, user: str, password: str) -> None:
        self._request = pb.AuthenticateRequest(name=user, password=password) if user else None
        self._token: str | None = None
        self._fetching = asyncio.Lock()

    async def get(self, member: Member) -> Metadata:
        """Return the metadata to send with a call.

        Raises CallFailed, never UNKNOWN: the call that needs the token has not been sent.
        """
        if self._request is None:
            return ()
        async with self._fetching:
            if self._token is None:
                self._token = await self._fetch(member, self._request)
        return (("token", self._token),) if self._token else ()

    def refused(self, sent: Metadata) -> bool:
        """Drop the token that a member refused.  Return whether a new one may help.

        Another call may have fetched a new one already, which is then kept.
        """
        if sent == (("token", self._token),) or not sent:
            self._token = None
        return self._request is not None

    async def _fetch(self, member: Member, request: pb.AuthenticateRequest) -> str:
        try:
            return (await member.call(AUTHENTICATE, request, ())).token
        except CallFailed as failed:
            if str(failed).endswith(NO_AUTHENTICATION):
                return ""  # switched off: as etcd's own clients do, go on without
            if failed.verdict is Verdict.UNKNOWN:
                raise CallFailed(Verdict.NOT_DONE, f"authentication: {failed}") from None
            raise

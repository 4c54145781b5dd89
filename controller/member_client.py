"""The leader's requests to members: whether they are alive and serve, their load and open files, and to leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bmq.controller.file_shares import OpenFileReport
from bmq.controller.planning.partition_load import Measured
from bmq.core.aio.held_up import HeldUp
from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages.broker import LoadRequest, OpenFilesRequest, PartitionLoad
from bmq.core.rpc.messages.member import LeaveRequest, PingRequest
from bmq.core.rpc.peers import ConnectionKind, Evidence, PeerLost, Peers
from bmq.meta.cluster.member import Member

PINGS = 2
"""Pings that must fail for a member to count as dead, connecting included.  A refused connection is known at once."""
PINGS_MAX = 8
"""Pings of a probe at most, with the pings that do not count because this process was held up.

A process that is always held up should not lead."""
TICKS = 8
"""Checks during a ping whether this process is held up: by more than an eighth of the ping's time."""
LOAD_TIMEOUT_S = 3.0
OPEN_FILES_TIMEOUT_S = 1.0
"""Time that a round of shares waits for a broker."""
SHARE_S = 10.0
"""Time that a share is in force: over a change of leaders, but not without end if there is no leader."""
SERVING_TIMEOUT_S = 3.0
LEAVE_TIMEOUT_S = 5.0


class MemberClient(Protocol):
    """The leader's requests to members, over the network or, in simulations of controllers, to a table of members."""

    async def ping(self, member: Member, timeout_s: float) -> bool:
        """Return whether the member responds on the connection that is kept to it."""

    async def probe(self, member: Member, patience_s: float) -> Evidence:
        """Probe the member for ``patience_s`` seconds, and return the evidence whether it is alive."""

    async def load(self, member: Member) -> list[Measured] | None:
        """Return the traffic of the member's partitions since the last call; None if it does not respond."""

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        """Send the member its share of open files, unless that is None, and return its report.

        Returns None if it sends none: it does not respond, or is of an earlier version.
        """

    async def is_serving(self, member: Member) -> bool | None:
        """Return whether the member can do its work; None if it does not respond."""

    def keep(self, member: Member) -> None:
        """Keep a connection to the member, so that its end is noticed (``subscribe_broken``)."""

    async def leave(self, member: Member) -> None:
        """Have the member drain and end.  Raises RequestError."""

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        """Call ``call`` with a member's incarnation and the reason when the connection to it breaks.

        Returns a function that unsubscribes it.
        """


class PeerMemberClient(MemberClient):
    """The requests over the internal connections."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        return self._peers.subscribe_broken(call)

    def keep(self, member: Member) -> None:
        """Open the control connection to the member, if it is not open, and keep it."""
        self._peers.get(member, ConnectionKind.CONTROL)

    async def ping(self, member: Member, timeout_s: float) -> bool:
        """Return whether the member responds on the connection that is kept to it, be it that it refuses."""
        try:
            await self._peers.ask(member, PingRequest(), timeout_s)
        except (PeerLost, TimeoutError):
            return False
        except RequestError:
            return True
        return True

    async def probe(self, member: Member, patience_s: float) -> Evidence:
        """Ping the member on a connection of its own.  Any response of its process proves that it is alive.

        A ping that failed while this process itself was held up proves nothing: the response may be in the socket, or
        was not given its time.  It is repeated, up to ``PINGS_MAX`` pings in all.
        """
        failed, ping_s = 0, patience_s / PINGS
        for _ in range(PINGS_MAX):
            held_up = HeldUp(ping_s / TICKS)
            try:
                await self._peers.probe(member, ping_s)
            except PeerLost as error:
                if error.evidence in (Evidence.NONE, Evidence.LIFE):
                    return error.evidence
                if held_up.seconds == 0.0:
                    failed += 1
                if failed == PINGS:
                    return error.evidence
                continue
            finally:
                held_up.close()
            return Evidence.LIFE
        return Evidence.SILENCE

    async def load(self, member: Member) -> list[Measured] | None:
        try:
            response = await self._peers.ask(member, LoadRequest(), LOAD_TIMEOUT_S)
        except (RequestError, PeerLost, TimeoutError):
            return None
        return await map_in_turns(_measured, response.partitions)

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        """Send the member its share, unless that is None, and return its report; None if it does not respond."""
        request = OpenFilesRequest() if share is None else OpenFilesRequest(share, int(SHARE_S * 1000))
        try:
            response = await self._peers.ask(member, request, OPEN_FILES_TIMEOUT_S)
        except (RequestError, PeerLost, TimeoutError):
            return None
        return OpenFileReport(response.held, response.closing, response.waiting, response.refused, response.limit_max)

    async def is_serving(self, member: Member) -> bool | None:
        """Return whether the member can do its work; None if it does not respond on the connection of all requests.

        A missing response there does not count against the member: a probe decides.
        """
        try:
            response = await self._peers.ask(member, PingRequest(), SERVING_TIMEOUT_S)
        except (RequestError, PeerLost, TimeoutError):
            return None
        return response.is_serving

    async def leave(self, member: Member) -> None:
        """Have the member drain and end.  Raises RequestError BROKER_NOT_AVAILABLE if it does not respond."""
        try:
            await self._peers.ask(member, LeaveRequest(), LEAVE_TIMEOUT_S)
        except (PeerLost, TimeoutError) as error:
            text = f"{member.incarnation} does not answer: {error}"
            raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, text) from error


def _measured(load: PartitionLoad) -> Measured:
    topic_id, partition, bytes_in, bytes_out, requests = load
    return Measured(PartitionKey(topic_id, partition), bytes_in, bytes_out, requests)

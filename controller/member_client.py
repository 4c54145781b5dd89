"""``Asking`` over the internal connections."""

from __future__ import annotations

from collections.abc import Callable

from bmq.controller.file_shares import OpenFileReport
from bmq.controller.planning.partition_load import Measured
from bmq.core.aio.held_up import HeldUp
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.messages import (
    InternalKey,
    LeaveRequest,
    LeaveResponse,
    LoadRequest,
    LoadResponse,
    OpenFilesRequest,
    OpenFilesResponse,
    PingRequest,
    PingResponse,
)
from bmq.core.rpc.peers import Kind, PeerLost, Peers
from bmq.meta.cluster.member import Member

PING_S = 1.0
"""How long one ping of a probe may take, connecting included: a process that stands still for two of them is as good
as dead.  A refused connection is known at once."""
PINGS = 2
PINGS_MAX = 8
"""With those that do not count, since this process was held up: one that always is had better not lead."""
TICKS = 8
"""Of a ping's time, at which it is seen whether this process was held up: by over an eighth of it."""
LOAD_TIMEOUT_S = 3.0
OPEN_FILES_TIMEOUT_S = 1.0
"""A round of shares waits no longer for one broker."""
SHARE_S = 10.0
"""A share is in force for so long: over a change of the leader, and not for ever without one."""
SERVING_TIMEOUT_S = 3.0
LEAVE_TIMEOUT_S = 5.0


class PeerMemberClient:
    """See ``Asking``."""

    def __init__(self, peers: Peers, *, ping_s: float = PING_S) -> None:
        self._peers = peers
        self._ping_s = ping_s

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        return self._peers.subscribe_broken(call)

    def keep(self, member: Member) -> None:
        self._peers.get(member, Kind.CONTROL)

    async def is_alive(self, member: Member) -> bool:
        """Ping on a connection of its own, however the others fare.  An answer is life, whatever it says.

        A ping that failed while this process was held up itself says nothing of the member: its answer may lie in the
        socket, or have had no time.  It is repeated, though not for ever.  Nor does one that this process has no
        descriptor for, or no address: the member counts as alive until its lease ends or a later ping fails.
        """
        failed = 0
        for _ in range(PINGS_MAX):
            held_up = HeldUp(self._ping_s / TICKS)
            try:
                await self._peers.probe(member, self._ping_s)
            except PeerLost as error:
                if error.is_own_trouble:
                    return True
                if held_up.seconds == 0.0:
                    failed += 1
                if failed == PINGS:
                    return False
                continue
            finally:
                held_up.close()
            return True
        return False

    async def load(self, member: Member) -> list[Measured] | None:
        try:
            answer = await self._peers.ask(member, LoadRequest(), InternalKey.LOAD, LoadResponse, LOAD_TIMEOUT_S)
        except (RequestError, PeerLost, TimeoutError):
            return None
        return [
            Measured(PartitionKey(topic_id, partition), bytes_in, bytes_out, requests)
            for topic_id, partition, bytes_in, bytes_out, requests in answer.partitions
        ]

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        request = OpenFilesRequest() if share is None else OpenFilesRequest(share, int(SHARE_S * 1000))
        try:
            answer = await self._peers.ask(
                member, request, InternalKey.OPEN_FILES, OpenFilesResponse, OPEN_FILES_TIMEOUT_S
            )
        except (RequestError, PeerLost, TimeoutError):
            return None
        return OpenFileReport(answer.held, answer.closing, answer.waiting, answer.refused, answer.limit_max)

    async def is_serving(self, member: Member) -> bool | None:
        """On the connection of the other questions: who does not answer there does not say, and a probe decides."""
        try:
            answer = await self._peers.ask(member, PingRequest(), InternalKey.PING, PingResponse, SERVING_TIMEOUT_S)
        except (RequestError, PeerLost, TimeoutError):
            return None
        return answer.is_serving

    async def leave(self, member: Member) -> None:
        try:
            await self._peers.ask(member, LeaveRequest(), InternalKey.LEAVE, LeaveResponse, LEAVE_TIMEOUT_S)
        except (PeerLost, TimeoutError) as error:
            text = f"{member.incarnation} does not answer: {error}"
            raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, text) from error

"""Requests of jobs that clean a compacted log, to the owner of the partition wherever it is."""

from __future__ import annotations

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.peers import PeerLost
from bmq.server.cluster_member import ClusterMember

ANSWER_S = 120.0
"""Time-out of the request: a new owner of the partition reads the indexes of all its segments."""


async def ask_owner(joined: ClusterMember, key: PartitionKey, request: InternalRequest[R]) -> R:
    """Return the response of the partition's owner, which may be this process.

    Raises RequestError: the owner's own; NOT_LEADER_OR_FOLLOWER without an owner; BROKER_NOT_AVAILABLE if the owner
    does not respond; UNSUPPORTED_VERSION if it is of a version before these requests.
    """
    view = joined.view
    member = view.members.get(view.owner_of(key))
    if member is None:
        text = f"partition {key.partition} has no owner now; `bmq cluster status` shows why"
        raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    try:
        return await joined.peers.ask(member, request, ANSWER_S)
    except (PeerLost, TimeoutError) as error:
        why = str(error) or f"no response within {ANSWER_S:g} s"
        raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, f"{member.incarnation}: {why}") from None
    except RequestError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            text = f"the owner {member.incarnation} is of a version before rounds by jobs"
            raise RequestError(error.code, text) from None
        raise

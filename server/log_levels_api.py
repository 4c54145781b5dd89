"""Log levels of any member: those of this process, and the question and act between processes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.levels import LoggerLevel, LogLevelError, LogLevels
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages import InternalKey, LogLevelsRequest, LogLevelsResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.rpc.server import InternalCall
from bmq.meta.cluster.member import Member
from bmq.server.cluster_member import ClusterMember

ANSWER_S = 5.0


class LogLevelsApi:
    """Register `handle` for ``InternalKey.LOG_LEVELS``."""

    def __init__(self, levels: LogLevels) -> None:
        self._levels = levels

    def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        request = LogLevelsRequest.decode(body)
        found = local_levels(self._levels, request.logger, request.level)
        levels = tuple((int(logging.getLevelName(each.level)), each.logger) for each in found)
        own = tuple(pair for pair, each in zip(levels, found, strict=True) if each.is_set)
        return LogLevelsResponse(levels=levels, own=own).encode()


def local_levels(levels: LogLevels, logger: str, level: str) -> Sequence[LoggerLevel]:
    """Set the level if one is given, and return all, or the logger's.  Raises RequestError INVALID_CONFIG."""
    try:
        if level:
            return [levels.set_level(logger, level)]
        return [levels.get(logger)] if logger else levels.levels()
    except LogLevelError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from None


async def log_levels(
    own: LogLevels, joined: ClusterMember | None, member: Member, logger: str, level: str
) -> Sequence[LoggerLevel]:
    """Do as ``local_levels`` in a process of the cluster; ``own`` and ``joined`` are this process's.

    Raises RequestError, BROKER_NOT_AVAILABLE if it does not answer, UNSUPPORTED_VERSION if it is of a version before.
    """
    if joined is None or member.incarnation == joined.view.own:
        return local_levels(own, logger, level)
    request = LogLevelsRequest(logger, level)
    try:
        response = await joined.peers.ask(member, request, InternalKey.LOG_LEVELS, LogLevelsResponse, ANSWER_S)
    except (PeerLost, TimeoutError) as error:
        why = str(error) or f"no answer within {ANSWER_S:g} s"
        raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, f"{member.incarnation}: {why}") from None
    is_set = {name for _, name in response.own}
    return [LoggerLevel(name, logging.getLevelName(number), name in is_set) for number, name in response.levels]

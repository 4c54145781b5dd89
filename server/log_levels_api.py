"""Log levels of any member: read and set in this process, or by a request to another."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.levels import LoggerLevel, LogLevelError, LogLevels
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.member import LogLevelsRequest, LogLevelsResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.rpc.server import InternalCall
from bmq.meta.cluster.member import Member
from bmq.server.cluster_member import ClusterMember

RESPONSE_S = 5.0
"""Time-out of a request to another process."""


class LogLevelsApi:
    """Internal API of a process's log levels.  Register ``handle`` for ``InternalKey.LOG_LEVELS``."""

    def __init__(self, levels: LogLevels) -> None:
        self._levels = levels

    def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Serve a LogLevelsRequest as ``local_levels`` does.  Raises RequestError, and FormatError for other bytes."""
        request = LogLevelsRequest.decode(body)
        found = local_levels(self._levels, request.logger, request.level)
        levels = tuple((int(logging.getLevelName(each.level)), each.logger) for each in found)
        own = tuple(pair for pair, each in zip(levels, found, strict=True) if each.is_set)
        return LogLevelsResponse(levels=levels, own=own).encode()


def local_levels(levels: LogLevels, logger: str, level: str) -> Sequence[LoggerLevel]:
    """Set the logger's level if ``level`` is given, and return it; without a level, the logger's or all of them.

    Raises RequestError INVALID_CONFIG if the logger or the level is wrong.
    """
    try:
        if level:
            return [levels.set_level(logger, level)]
        return [levels.get(logger)] if logger else levels.levels()
    except LogLevelError as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, str(error)) from None


async def log_levels(
    own: LogLevels, joined: ClusterMember, member: Member, logger: str, level: str
) -> Sequence[LoggerLevel]:
    """Read or set levels as ``local_levels`` does, in any process; ``own`` and ``joined`` are this process's.

    Raises RequestError: as ``local_levels``, BROKER_NOT_AVAILABLE if the process does not respond, UNSUPPORTED_VERSION
    if it is of an earlier version without this API.
    """
    if member.incarnation == joined.view.own:
        return local_levels(own, logger, level)
    request = LogLevelsRequest(logger, level)
    try:
        response = await joined.peers.ask(member, request, RESPONSE_S)
    except (PeerLost, TimeoutError) as error:
        why = str(error) or f"no response within {RESPONSE_S:g} s"
        raise RequestError(ErrorCode.BROKER_NOT_AVAILABLE, f"{member.incarnation}: {why}") from None
    is_set = {name for _, name in response.own}
    return [LoggerLevel(name, logging.getLevelName(number), name in is_set) for number, name in response.levels]

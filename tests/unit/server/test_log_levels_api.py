"""Log levels of a process, read and set by requests of others."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.levels import LogLevels
from bmq.core.rpc.messages.member import LogLevelsRequest, LogLevelsResponse
from bmq.server.log_levels_api import LogLevelsApi


async def test_a_request_sets_and_reads_the_log_levels_of_the_process() -> None:
    levels = LogLevels()
    logger = logging.getLogger("bmq.test_of_the_api")
    api = LogLevelsApi(levels)

    async def ask(request: LogLevelsRequest) -> LogLevelsResponse:
        buffers = api.handle(memoryview(b"".join(map(bytes, request.encode()))), cast(Any, None))
        return LogLevelsResponse.decode(memoryview(b"".join(map(bytes, buffers))))

    try:
        response = await ask(LogLevelsRequest(logger.name, "debug"))
        assert response.levels == response.own == ((10, logger.name),)
        assert logger.level == logging.DEBUG
        whole = await ask(LogLevelsRequest())
        assert (10, logger.name) in whole.own
        assert set(whole.own) < set(whole.levels)
        with pytest.raises(RequestError, match="there is no level 'x'") as refused:
            await ask(LogLevelsRequest(logger.name, "x"))
        assert refused.value.code is ErrorCode.INVALID_CONFIG
    finally:
        logger.setLevel(logging.NOTSET)

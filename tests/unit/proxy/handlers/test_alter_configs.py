"""AlterConfigs and IncrementalAlterConfigs in every version."""

from __future__ import annotations

import pytest

from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest
from tests.unit.proxy.handlers.admin_requests import ALTER, BROKER, INCREMENT, TOPIC, alter, altered, versions
from tests.unit.proxy.handlers.admin_serving import serving


@pytest.mark.parametrize("version", versions(ALTER))
async def test_alter_configs_replaces_all_configs_of_a_resource(version: int) -> None:
    async with serving(config=NodeConfig(node_id=7)) as w:
        await w.admin.create_topic("t", configs={"segment.ms": "8"})
        asked = alter(
            AlterConfigsRequest,
            (TOPIC, "t", [("retention.ms", "5")]), (TOPIC, "none", []), (TOPIC, "", []),
            (BROKER, "", [("log.retention.ms", "6")]), (BROKER, "7", [("num.partitions", "3")]), (BROKER, "9", []),
            (32, "group", []),
        )  # fmt: skip
        assert altered(await w.ask(ALTER, version, asked)) == [
            (TOPIC, "t", 0), (TOPIC, "none", 3), (TOPIC, "", 42), (BROKER, "", 0), (BROKER, "7", 42),
            (BROKER, "9", 42), (32, "group", 42),
        ]  # fmt: skip
        assert w.catalog.topics["t"].configs == {"retention.ms": "5"}
        assert w.catalog.broker_configs(None) == {"log.retention.ms": "6"}
        for configs in ([("retention.ms", None)], [("retention.ms", "1"), ("retention.ms", "2")]):
            found = await w.ask(ALTER, version, alter(AlterConfigsRequest, (TOPIC, "t", configs)))
            assert altered(found) == [(TOPIC, "t", 42)]
        twice = alter(AlterConfigsRequest, (TOPIC, "t", []), (TOPIC, "t", []))
        assert altered(await w.ask(ALTER, version, twice)) == [(TOPIC, "t", 42)] * 2
        only = alter(AlterConfigsRequest, (TOPIC, "t", []), validate_only=True)
        assert altered(await w.ask(ALTER, version, only)) == [(TOPIC, "t", 0)]
        assert w.catalog.topics["t"].configs == {"retention.ms": "5"}


@pytest.mark.parametrize("version", versions(INCREMENT))
async def test_incremental_changes_are_done_together_or_not_at_all(version: int) -> None:
    async with serving() as w:
        await w.admin.create_topic("t", configs={"segment.ms": "8"})

        async def ask(*configs: tuple[str, int, str | None]) -> int:
            found = await w.ask(INCREMENT, version, alter(IncrementalAlterConfigsRequest, (TOPIC, "t", configs)))
            code: int = found.responses[0].error_code
            return code

        assert await ask(("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")) == 0
        assert w.catalog.topics["t"].configs == {
            "segment.ms": "8", "retention.ms": "5", "cleanup.policy": "delete,compact",
        }  # fmt: skip
        assert await ask(("segment.ms", 1, None), ("cleanup.policy", 3, "delete")) == 0
        assert w.catalog.topics["t"].configs == {"retention.ms": "5", "cleanup.policy": "compact"}
        assert await ask(("retention.ms", 9, "5")) == ErrorCode.INVALID_REQUEST
        assert await ask(("retention.ms", 0, None)) == ErrorCode.INVALID_REQUEST
        assert await ask(("retention.ms", 2, "5")) == ErrorCode.INVALID_CONFIG
        assert await ask(("nonsense", 0, "5")) == ErrorCode.INVALID_CONFIG
        assert await ask(("retention.ms", 0, "6"), ("nonsense", 0, "5")) == ErrorCode.INVALID_CONFIG
        assert w.catalog.topics["t"].configs["retention.ms"] == "5", "all of a resource's changes or none"

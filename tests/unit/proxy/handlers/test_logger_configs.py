"""BROKER_LOGGER resources of DescribeConfigs and IncrementalAlterConfigs (KIP-412), with Kafka's refusals."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from bmq.core.config import NodeConfig
from bmq.core.wire.messages import AlterConfigsRequest, IncrementalAlterConfigsRequest
from tests.unit.proxy.handlers.admin_requests import ALTER, DESCRIBE, INCREMENT, alter, altered, describe, versions
from tests.unit.proxy.handlers.admin_serving import serving

BROKER, LOGGER = 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
NAME = "bmq.test_of_kafkas_way"
CONFIG = NodeConfig(node_id=7)
INVALID_REQUEST, INVALID_CONFIG = 42, 40


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Yield a logger whose level is reset afterwards."""
    logger = logging.getLogger(NAME)
    yield logger
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_loggers_are_described_with_kafkas_names_of_levels(version: int, logger: logging.Logger) -> None:
    async with serving(config=CONFIG) as w:
        logger.setLevel(logging.WARNING)
        asked = describe((LOGGER, "7", None), (LOGGER, "7", [NAME]), (LOGGER, "8", None), (LOGGER, "", None))
        whole, one, *refused = (await w.ask(DESCRIBE, version, asked)).results
        assert whole.error_code == one.error_code == 0
        assert {"root", "bmq", NAME} <= {config.name for config in whole.configs}
        (config,) = one.configs
        assert (config.name, config.value, config.config_source, config.read_only) == (NAME, "WARN", 6, False)
        assert [each.error_code for each in refused] == [INVALID_REQUEST] * 2
        assert "expected 7 but received 8" in refused[0].error_message


@pytest.mark.parametrize("version", versions(INCREMENT))
async def test_a_level_is_set_and_deleted(version: int, logger: logging.Logger) -> None:
    async with serving(config=CONFIG) as w:

        async def ask(*configs: tuple[str, int, str | None], node: str = "7", validate_only: bool = False) -> int:
            request = alter(IncrementalAlterConfigsRequest, (LOGGER, node, configs), validate_only=validate_only)
            found = await w.ask(INCREMENT, version, request)
            code: int = found.responses[0].error_code
            assert bool(found.responses[0].error_message) == bool(code)
            return code

        assert await ask((NAME, SET, "DEBUG"), validate_only=True) == 0
        assert logger.level == logging.NOTSET
        assert await ask((NAME, SET, "TRACE")) == 0
        assert logger.level == logging.DEBUG
        assert await ask((NAME, SET, "WARN")) == 0
        assert logger.level == logging.WARNING
        assert await ask((NAME, SET, "DEBUG"), ("bmq.no_such", SET, "DEBUG")) == INVALID_CONFIG
        assert logger.level == logging.WARNING, "all of a resource's changes or none"
        for level in ("LOUD", "DEFAULT", ""):
            assert await ask((NAME, SET, level)) == INVALID_CONFIG
        assert await ask((NAME, APPEND, "DEBUG")) == INVALID_REQUEST
        assert await ask((NAME, SUBTRACT, "DEBUG")) == INVALID_REQUEST
        assert await ask(("root", DELETE, None)) == INVALID_REQUEST
        assert await ask((NAME, SET, "DEBUG"), node="8") == INVALID_REQUEST
        assert await ask((NAME, SET, "DEBUG"), node="") == INVALID_REQUEST
        assert logger.level == logging.WARNING
        assert await ask((NAME, DELETE, None)) == 0
        assert logger.level == logging.NOTSET


@pytest.mark.parametrize("kind", [BROKER, LOGGER])
async def test_a_node_of_thousands_of_digits_is_not_a_node(kind: int) -> None:
    """More than Python turns into a number."""

    async with serving(config=CONFIG) as w:
        (found,) = (await w.ask(DESCRIBE, 4, describe((kind, "7" * 5_000, None)))).results
        assert found.error_code == INVALID_REQUEST
        assert "must be an integer" in found.error_message


async def test_the_older_api_does_not_set_levels(logger: logging.Logger) -> None:
    async with serving(config=CONFIG) as w:
        asked = alter(AlterConfigsRequest, (LOGGER, "7", [(NAME, "DEBUG")]))
        assert altered(await w.ask(ALTER, 2, asked)) == [(LOGGER, "7", INVALID_REQUEST)]
        assert logger.level == logging.NOTSET

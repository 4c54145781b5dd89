"""CreatePartitions in every version."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode
from tests.unit.proxy.handlers.admin_requests import GROW, codes, grow, versions
from tests.unit.proxy.handlers.admin_serving import serving


@pytest.mark.parametrize("version", versions(GROW))
async def test_partitions_are_added_in_every_version(version: int) -> None:
    async with serving() as w:
        for name in ("t", "same", "twice", "manual", "bad"):
            await w.admin.create_topic(name, 2, 1)
        asked = grow(
            ("t", 5, None), ("same", 2, None), ("none", 3, None), ("twice", 3, None), ("twice", 4, None),
            ("manual", 3, [[0]]), ("bad", 3, [[0], [0]]),
        )  # fmt: skip
        found = (await w.ask(GROW, version, asked)).results
        assert codes(found) == [
            ("t", 0), ("same", ErrorCode.INVALID_PARTITIONS), ("none", 3), ("twice", ErrorCode.INVALID_REQUEST),
            ("manual", 0), ("bad", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ]  # fmt: skip
        assert {t.name: t.partitions for t in w.catalog.topics.values()} == {
            "t": 5, "same": 2, "twice": 2, "manual": 3, "bad": 2,
        }  # fmt: skip
        assert codes((await w.ask(GROW, version, grow(("t", 9, None), validate_only=True))).results) == [("t", 0)]
        assert w.catalog.topics["t"].partitions == 5

"""Levels of features in a whole process: from the table of its version to clients, storage and the next version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from bmq.console.kafka import LocalRequests
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.features import Feature, FeatureTable, LevelRange, UnsupportedLevel
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.cluster.keys import features_key
from bmq.meta.cluster.levels import FeatureLevels, decode_record
from bmq.meta.kv import Commit, Compare, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.root import root_key
from bmq.server.node import Node
from bmq.server.root_guard import RootGuard
from bmq.storage.cluster_files import read_cluster
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.single_node import single_node
from tests.harness.waiting import until

TABLE = FeatureTable((Feature("f", LevelRange(0, 2), frozenset({(2, 1), (1, 0), (2, 0)})),))
CONFIG = NodeConfig()


async def update(node: Node, level: int, kind: int) -> Any:
    each = m.UpdateFeaturesRequest.FeatureUpdateKey(feature="f", max_version_level=level, upgrade_type=kind)
    message = m.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[each], validate_only=False)
    return await LocalRequests(node.proxy.console_endpoint).send(ApiKey.UPDATE_FEATURES, 2, message)


class RootFormats(MemoryKeyValue):
    """A client that notes the format of the root's record at each write of the levels of features."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.seen: list[tuple[bool, int]] = []
        """Whether a level is in force by the write, and the format."""

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        for write in writes:
            if isinstance(write, Put) and write.key == features_key(CONFIG.cluster):
                root = await self.get(root_key(CONFIG.cluster))
                assert root is not None
                self.seen.append((bool(decode_record(write.value).levels), json.loads(root.value)["format"]))
        return await super().commit(compares, writes)


@pytest.mark.loops("asyncio")
async def test_versions_before_levels_cannot_join_again_once_a_level_is_in_force() -> None:
    """Read the root's record as a joining process of such a version does: it knows format 1 alone."""
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), RootFormats(MemoryStore())
    async with single_node(CONFIG, fs, kv, features=TABLE) as node:
        await node.start()
        await until(lambda: node.view.levels.of("f") == 2)
    this_version = RootGuard(kv, fs, CONFIG.cluster, TABLE)
    for _ in ("joins", "joins again"):
        await this_version.before_join()
    assert kv.seen == [(False, 1), (True, 2)]


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_level_is_raised_lowered_and_refused_by_an_earlier_version() -> None:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(CONFIG, fs, kv, features=TABLE) as node:
        await node.start()
        await until(lambda: node.view.levels.of("f") == 2)
        assert (await update(node, 1, 1)).error_code == ErrorCode.INVALID_UPDATE_VERSION
    with pytest.raises(UnsupportedLevel, match="f 2 is in force, this version supports 0 to 0"):
        async with single_node(CONFIG, fs, kv, name="earlier"):
            pass
    async with single_node(CONFIG, fs, kv, name="n2", features=TABLE) as node:
        await node.start()
        await until(lambda: node.controller is not None and node.controller.is_leader)
        assert (await update(node, 0, 2)).error_code == ErrorCode.NONE
        assert node.view.levels == FeatureLevels(epoch=2, held=frozenset({"f"}))

        async with asyncio.timeout(10):
            while (found := await read_cluster(fs, TABLE)) is None or found.levels:  # noqa: ASYNC110 - a state of storage
                await asyncio.sleep(0.01)
    async with single_node(CONFIG, fs, kv, name="earlier2") as node:
        assert node.view.levels.epoch == 2

"""Repairs of partitions' files, at an operator's command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bmq.broker.repair.log_plan import RepairRequest
from bmq.broker.repair.repair import NotRepaired, Repair, RepairReport, find_partition
from bmq.console.operations import NotPossible
from bmq.core.clock import Clock
from bmq.core.errors import FormatError
from bmq.meta.kv import KeyValue, KvError
from bmq.storage.block_cache import BlockCache
from bmq.storage.filesystem import FileSystem, StorageError


class Repairs:
    """Repairs of any partition of the cluster ``cluster`` in one process; ``pool`` forgets the repaired files."""

    def __init__(self, fs: FileSystem, kv: KeyValue, clock: Clock, pool: BlockCache, cluster: str) -> None:
        self._fs = fs
        self._kv = kv
        self._clock = clock
        self._pool = pool
        self._cluster = cluster

    async def repair(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the report of ``RepairRequest.of(wanted)``, as the method of ``ClusterOperations`` does."""
        try:
            return (await self._run(RepairRequest.of(wanted))).to_json()
        except NotRepaired as error:
            raise NotPossible(409, "not_repaired", str(error)) from None
        except (StorageError, KvError, FormatError) as error:
            raise NotPossible(503, "not_repaired", f"{error or type(error).__name__}: run it again") from None

    async def _run(self, wanted: RepairRequest) -> RepairReport:
        """Inspect or repair a partition's files, as ``wanted`` says.

        Raises NotRepaired, which says why; StorageError or KvError if storage or store fails.
        """
        place = await find_partition(self._kv, self._cluster, wanted.topic, wanted.partition)
        report = await Repair(self._fs, self._kv, self._clock, place).run(wanted)
        for plan in (*report.older, *report.plans):
            self._pool.forget(place.path.log(plan.name))
        return report

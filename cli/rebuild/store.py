"""Writing a rebuilt metadata store.

The order of writes makes it safe to be killed anywhere, and to run again:

1.  ``/cluster.json`` gets the next rebuild count.  New ids, files and epochs cannot be mistaken for the lost store's:
   producer ids have the count in their high bits, topic files have it in their numbers, and epochs have a margin for
   it.
2. A *mark* is put into the store, and the store's cluster id is removed.  From here on no server starts on it: a server
   first makes an id if there is none, and that one is not storage's.
3. The records of an earlier run are removed; then come partition records and topics, and the next producer id. The
   levels of features come with them.
4. The cluster's id, its root's and the store's count are put, and the mark is removed, in one commit: servers start.
   The count has the new rebuild count, so no count on the root is higher.

Every commit from the second step on compares the mark, so of two runs at once the later one wins, as a whole.  A run
that dies wastes a rebuild count, of which there are 16,383, and nothing else.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

from bmq.broker.repair.scan import FoundPartition
from bmq.controller.topics.deletion import deleted_prefix
from bmq.core.store_count import StoreCount
from bmq.meta.catalog import Topic, catalog_prefix, cluster_id_key, encode_topic, topic_key
from bmq.meta.cluster.keys import features_key, members_prefix
from bmq.meta.cluster.levels import FeatureLevels, encode_record
from bmq.meta.kv import Compare, Delete, Entry, KeyValue, Put, Write
from bmq.meta.ownership import encode, partition_key, partitions_prefix
from bmq.meta.producer_ids import encode_counter, producer_ids_key
from bmq.meta.root import RootRecord, encode_root, root_key
from bmq.meta.settled_commit import commit_settled
from bmq.meta.store_count import encode_store_count, store_count_key
from bmq.storage.cluster_files import REVISION_BITS, ClusterFile

WRITES_MAX = 100
BYTES_MAX = 512 << 10
"""Bytes of one commit: half of the store's limit."""


class NotLost(Exception):
    """The store must not be rebuilt; ``str`` says why, and what to do."""


def mark_key(cluster: str) -> str:
    """Return the key that exists during a rebuild."""
    return f"/{cluster}/rebuilding"


async def check_lost(kv: KeyValue, cluster: str) -> bool:
    """Return whether an earlier rebuild did not end.  Raises NotLost if the store is in use, or has data."""
    await check_nobody(kv, cluster)
    if await kv.get(mark_key(cluster)) is not None:
        return True
    for what, prefix in (
        ("topics", f"{catalog_prefix(cluster)}topics/"),
        ("partitions", partitions_prefix(cluster)),
        ("deleted topics", deleted_prefix(cluster)),
    ):
        entry = await _first(kv, prefix)
        if entry is not None:
            raise NotLost(
                f"the metadata store has {what} already ({entry.key}): it is not lost, and nothing was done. If what is"
                f" it holds is worthless, remove its keys first: `etcdctl del --prefix /{cluster}/`, or the SQLite file"
            )
    return False


async def check_nobody(kv: KeyValue, cluster: str) -> None:
    """Raise NotLost if a process of the cluster runs."""
    prefix = members_prefix(cluster)
    entry = await _first(kv, prefix)
    if entry is not None:
        raise NotLost(
            f"{entry.key.removeprefix(prefix)} is running: stop every process of the cluster, and keep it from being"
            " started again (one that was killed is gone in some ten seconds); then run this again"
        )


async def _first(kv: KeyValue, prefix: str) -> Entry | None:
    async for entry in kv.list(prefix, limit=1):
        return entry
    return None


class Rebuilding:
    """A rebuild: call ``begin``, then ``put_…`` for everything, then ``finish``.

    All raise KvError if the store fails, NotLost if another run has begun later.
    """

    def __init__(self, kv: KeyValue, cluster: str, found: ClusterFile, root: RootRecord) -> None:
        """Take ``found``, with the new rebuild count, and ``root``, from which the cluster is served from now on."""
        self._kv = kv
        self._cluster = cluster
        self._found = found
        self._root = root
        self._mark = 0
        self._writes: list[Write] = []
        self._bytes = 0

    async def begin(self) -> None:
        """Mark the store, and remove its cluster id and what an earlier run wrote."""
        mark, cluster_id = mark_key(self._cluster), cluster_id_key(self._cluster)
        facts = {"format": 1, "incarnation": self._found.rebuild_count, "by": uuid.uuid4().hex}
        value = json.dumps(facts, separators=(",", ":")).encode()
        entries = {key: await self._kv.get(key) for key in (mark, cluster_id)}
        compares = [Compare(key, entry.revision if entry else 0) for key, entry in entries.items()]
        done = await commit_settled(
            self._kv, compares, [Put(mark, value), Delete(cluster_id), Delete(root_key(self._cluster))]
        )
        now = await self._kv.get(mark)
        if now is None or now.value != value or not (done.commit.succeeded or done.may_be_ours):
            raise _overtaken()
        self._mark = now.revision
        for prefix in (f"{catalog_prefix(self._cluster)}topics/", partitions_prefix(self._cluster)):
            async for entry in self._kv.list(prefix):
                await self._write(Delete(entry.key))
        if self._found.has_levels:
            await self._write(Put(features_key(self._cluster), encode_record(_levels(self._found))))
        counter = encode_counter(self._found.rebuild_count, 0)
        await self._write(Put(producer_ids_key(self._cluster), counter))
        await self._flush()

    async def put_partition(self, found: FoundPartition) -> None:
        """Write a partition's record.  Raises KvError or NotLost."""
        await self._write(Put(partition_key(self._cluster, found.key), encode(found.record)))

    async def put_topic(self, topic: Topic) -> None:
        """Write a topic.  Raises KvError or NotLost."""
        await self._write(Put(topic_key(self._cluster, topic.name), encode_topic(topic)))

    async def finish(self) -> None:
        """Write the rest, then the cluster's id and root, and remove the mark: servers may start.

        Raises NotLost if a process has started meanwhile: the store stays marked.
        """
        await self._flush()
        await check_nobody(self._kv, self._cluster)
        cluster_id = self._found.cluster_id.encode("ascii")
        count = StoreCount(rebuild_count=self._found.rebuild_count, number=0, id=uuid.uuid4().hex)
        await self._commit(
            [
                Put(store_count_key(self._cluster), encode_store_count(count)),
                Put(cluster_id_key(self._cluster), cluster_id),
                Put(root_key(self._cluster), encode_root(self._root)),
                Delete(mark_key(self._cluster)),
            ]
        )

    async def _write(self, write: Write) -> None:
        size = len(write.key) + (len(write.value) if isinstance(write, Put) else 0)
        if len(self._writes) == WRITES_MAX or self._bytes + size > BYTES_MAX:
            await self._flush()
        self._writes.append(write)
        self._bytes += size

    async def _flush(self) -> None:
        if self._writes:
            await self._commit(self._writes)
            self._writes, self._bytes = [], 0

    async def _commit(self, writes: Sequence[Write]) -> None:
        """Commit while the mark is ours.

        An unknown outcome is settled by repeating: puts and deletes may be done twice.
        """
        settled = await commit_settled(self._kv, [Compare(mark_key(self._cluster), self._mark)], writes)
        if settled.commit.succeeded:
            return
        if settled.may_be_ours and await self._is_finished():
            return
        raise _overtaken()

    async def _is_finished(self) -> bool:
        """Return whether our last commit, which removes the mark, was done although its outcome was unknown."""
        entry = await self._kv.get(cluster_id_key(self._cluster))
        is_ours = entry is not None and entry.value == self._found.cluster_id.encode("ascii")
        return is_ours and await self._kv.get(mark_key(self._cluster)) is None


def _levels(found: ClusterFile) -> FeatureLevels:
    """Return the levels that storage has; their epoch is above every epoch of the lost store.

    An intended level is in force then, so every process has to support it from its start.
    """
    epoch = (found.rebuild_count << REVISION_BITS) + 1
    return FeatureLevels(epoch=epoch, levels=found.levels, held=found.held)


def _overtaken() -> NotLost:
    return NotLost("another `bmq cluster rebuild` is running on this metadata store: let one of them end")

"""The check that the metadata store is not older than its root, and the count that makes the check possible.

An operator may bring back an old state of the store: a copy of the SQLite file, a snapshot of etcd, an image of a
machine.  Its topics, configs and owners are those of then, and storage is later.  A revision does not show that: etcd
goes on counting from the snapshot, and a rebuilt store begins again.  So the leader keeps a count of its own
(``core.store_count``), as Hadoop's NameNode keeps ``seen_txid``. It raises the count in the store by a commit, and only
then leaves it on the root.  A count on the root was in the store before.  The facts decide:

===============  =====================================  ==========================================================
store has        the root has                           then
===============  =====================================  ==========================================================
any count        none                                   as new: the leader died before it left one
a higher count   a lower one                            as new: the same, or a store that was rebuilt
a count          an equal one, with the same id         as new
a count          an equal one, with another id          older: two stores were copied from one, and both were used
a lower count    a higher one                           older
none             none                                   as new: a new cluster, or one of an earlier version
none             one of an earlier rebuild count than   as new: an earlier version has rebuilt the store
                 ``cluster.json``'s
none             any other                              older: a copy from before the count
===============  =====================================  ==========================================================

Nothing here depends on a clock.  The root is read before the store, so a leader that raises the count in between does
no harm.  If a count is lost on its way to the root, or its outcome is unknown, the next copy looks as new.  No fault
makes a store look older than it is.

Every process checks when it starts, before it registers.  The leader checks when its term begins and before each raise,
and raises the count then, when the store has changed, ``NOTE_S`` apart, and when its process ends.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import replace
from enum import Enum, auto

from bmq.controller.kv_commit import Guard
from bmq.core.errors import BmqError
from bmq.core.logging.fields import fields
from bmq.core.store_count import StoreCount
from bmq.core.urls import without_userinfo
from bmq.meta.kv import Compare, Entry, KeyValue, KvError, Put
from bmq.meta.settled_commit import commit_settled
from bmq.meta.store_count import decode_store_count, encode_store_count, store_count_key
from bmq.storage.cluster_files import WrongCluster
from bmq.storage.filesystem import FileSystem, StorageError
from bmq.storage.store_counts import newest_store_counts, put_store_count

_log = logging.getLogger(__name__)

NOTE_S = 60.0
"""Time between two raises of the count: changes since the last raise are not noticed in an older copy."""
BEGIN_S = 1.0
"""Time-out of storage at the beginning of a term, within the leader's first lease; nobody else leads meanwhile."""
END_S = 1.0
"""Time-out of the last raise while a process ends."""


class StoreOlder(WrongCluster):
    """A metadata store that is older than storage; ``what`` has the finding, ``str`` the remedy too."""

    def __init__(self, url: str, stored: StoreCount | None, on_root: StoreCount) -> None:
        """``url`` is the root's."""
        has = f"its count is {stored}" if stored is not None else "it has no count"
        self.what = f"the metadata store is older than storage: {has}, and {url} has {on_root} of a later state"
        super().__init__(
            f"{self.what}. An old copy or a snapshot of the store was brought back, or a second cluster, with a copy of"
            " the store, uses this root. Nothing is written. Stop every process of the cluster; then give it the newest"
            " store, or an empty one and `bmq cluster rebuild --root ... --meta ...`, see docs/rebuild.md."
        )


class Age(Enum):
    """Result of the comparison of the store's count with that of the root."""

    AS_NEW = auto()
    OLDER = auto()


def judge(stored: StoreCount | None, on_root: StoreCount | None, rebuild_count: int) -> Age:
    """Return the verdict of the module's table.  ``rebuild_count`` is that of ``cluster.json``."""
    if on_root is None:
        return Age.AS_NEW
    if stored is None:
        return Age.AS_NEW if on_root.rebuild_count < rebuild_count else Age.OLDER
    if stored.order == on_root.order:
        return Age.AS_NEW if stored.id == on_root.id else Age.OLDER
    return Age.AS_NEW if stored.order > on_root.order else Age.OLDER


async def check_store_age(kv: KeyValue, fs: FileSystem, cluster: str, rebuild_count: int) -> Entry | None:
    """Return the entry of the store's count; None if it has none yet.

    Raises StoreOlder if the store is older than storage; KvError, StorageError or FormatError if a count cannot be
    read.
    """
    newest = await newest_store_counts(fs)  # first: what is there was in the store before
    entry = await kv.get(store_count_key(cluster))
    stored = None if entry is None else decode_store_count(entry)
    for on_root in newest:
        if judge(stored, on_root, rebuild_count) is Age.OLDER:
            raise StoreOlder(without_userinfo(fs.url), stored, on_root)
    return entry


class StoreAge:
    """The count of the leader of one term."""

    def __init__(self, kv: KeyValue, fs: FileSystem, cluster: str, rebuild_count: int, *, guard: Guard) -> None:
        """``rebuild_count`` is that of ``cluster.json``.  ``guard``: see ``Guard``."""
        self._kv = kv
        self._fs = fs
        self._cluster = cluster
        self._rebuild_count = rebuild_count
        self._guard = guard
        self._noted = 0
        """The store's revision right after the last raise that reached the root."""
        self._raised: tuple[int, StoreCount] | None = None
        """The last raise, and the store's revision right after it, until the raise has reached the root."""

    def __repr__(self) -> str:
        return f"<StoreAge noted={self._noted}>"

    async def begin(self) -> None:
        """Check the store before the term's first write.  Raises StoreOlder.

        Storage or a store that does not respond in ``BEGIN_S`` does not keep the cluster without a leader.  The process
        has checked when it started, ``run`` checks again, and without storage no partition is taken over.
        """
        try:
            async with asyncio.timeout(BEGIN_S):
                await self._check()
        except StoreOlder:
            raise
        except (KvError, StorageError, BmqError, TimeoutError) as error:
            _log.warning(
                "could not check whether the metadata store is older than storage, trying again while this process"
                " leads",
                extra=fields(error=error),
            )

    async def run(self) -> None:
        """Raise the count when the store has changed, every ``NOTE_S``, until cancelled.

        Raises StoreOlder.  Other failures are logged, the first of several as a warning, and do not end it.
        """
        level = logging.WARNING
        while True:
            try:
                await self.note()
            except StoreOlder:
                raise
            except (KvError, StorageError, BmqError) as error:
                _log.log(
                    level,
                    "could not leave the metadata store's count on storage, trying again every minute: an older copy of"
                    " the store would not be recognised",
                    extra=fields(path=without_userinfo(self._fs.url), error=error),
                )
                level = logging.INFO
            else:
                level = logging.WARNING
            await asyncio.sleep(NOTE_S)

    async def end(self) -> None:
        """Raise the count for the last time, as the process ends; failures are logged."""
        try:
            async with asyncio.timeout(END_S):
                await self.note()
        except (KvError, StorageError, BmqError, TimeoutError) as error:
            _log.info("could not leave the metadata store's last count on storage", extra=fields(error=error))

    async def note(self) -> None:
        """Raise the count and leave it on the root, if the store has changed since.

        Raises StoreOlder, KvError, StorageError, FormatError, and RequestError if this process does not lead.
        """
        present = await self._kv.revision()
        if present == self._noted:
            return
        entry = await self._check()
        if self._raised is not None and self._raised[0] == present:
            await self._leave(*self._raised)  # nothing has changed since: another commit would count nothing
            return
        key = store_count_key(self._cluster)
        risen = self._risen(entry)
        put = Put(key, encode_store_count(risen))
        done, may_be_ours = await commit_settled(
            self._kv, [*self._guard(), Compare(key, entry.revision if entry is not None else 0)], [put]
        )
        revision = done.revision
        if not done.succeeded:
            found = done.current[key]
            if not may_be_ours or found is None or found.value != put.value:
                return  # another process leads, and counts
            revision = found.revision
        await self._leave(revision, risen)

    async def _leave(self, revision: int, count: StoreCount) -> None:
        """Leave a count on the root that the store has since ``revision``."""
        self._raised = (revision, count)
        await put_store_count(self._fs, count)
        self._noted, self._raised = revision, None

    async def _check(self) -> Entry | None:
        return await check_store_age(self._kv, self._fs, self._cluster, self._rebuild_count)

    def _risen(self, entry: Entry | None) -> StoreCount:
        count_id = uuid.uuid4().hex
        if entry is None:
            return StoreCount(rebuild_count=self._rebuild_count, number=1, id=count_id)
        stored = decode_store_count(entry)
        return replace(stored, number=stored.number + 1, id=count_id)

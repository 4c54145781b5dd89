"""The repair of one partition, carried out on its files and its record.

1.  Inspect: read the record, the segments that it lists (``--all``: all there are) and the last checkpoint.  It changes
   nothing, except that the files that a dead repair has set aside get their names back (not in a dry run).
2. Claim: raise the record's epoch under the repair's own name, by compare-and-set, so that the partition's owner is
   fenced; then fence every listed file, and inspect it again.
3. Write: write each segment that must change to a draft beside it.  The old file is renamed to ``damaged-...`` in the
   same folder and kept (``replacing-...`` until then); the draft gets the segment's name, and its index is written.
4. Release: store a record that lists the last segment, closed, and no journal: journals' checkpoints describe the log
   as it was.

A repair that dies leaves the partition OFFLINE without a serving owner, or whole.  It may be run again, and finds the
files that it had set aside.  Closed segments that the record does not list need no claim: nothing writes them, and a
file that has changed meanwhile is put back.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bmq.broker.assignment.assigned_partition import REPAIR_OWNER
from bmq.broker.repair.facts import (
    DAMAGED,
    REPLACING,
    Inspector,
    PartitionIdentity,
    RepairFacts,
    vanished_unseen,
    without_data,
)
from bmq.broker.repair.log_plan import LogPlanner, RepairRequest
from bmq.broker.repair.plan import LostOffsets, Mended, SegmentPlan, WrittenMarker
from bmq.broker.repair.rebuilt_record import SILENCE
from bmq.broker.repair.rebuilt_record import record as rebuilt
from bmq.broker.repair.scan import newest_index, read_all_journals, read_folder
from bmq.broker.repair.transactions import TouchedTransaction
from bmq.core.clock import Clock
from bmq.core.errors import FormatError
from bmq.core.file_access import Access
from bmq.core.model import PartitionKey
from bmq.core.records.batch import build_gap
from bmq.meta import ownership
from bmq.meta.catalog import decode_topic, topic_key
from bmq.meta.kv import KeyValue
from bmq.meta.ownership import PartitionRecord
from bmq.meta.settled_commit import settle
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import (
    CreateOptions,
    FileSystem,
    StorageUnavailable,
    write_once,
)
from bmq.storage.layout import PartitionPath, base_name
from bmq.storage.segment import encode_idx

COPY_BYTES = 4 << 20
"""Bytes that are read and written at once."""
_OWNER_WRITES = 0o200  # a local root takes this bit from files that are closed
_MB = 1 << 20


class NotRepaired(Exception):
    """Raised when the repair cannot be done, or another process has taken the partition; the text says what to do."""


@dataclass(slots=True)
class RepairReport:
    """The findings of a repair, and the changes that it made."""

    wanted: RepairRequest
    reason: str
    owner: str
    log_start: int
    end_offset: int
    older: list[SegmentPlan]
    plans: list[SegmentPlan]
    notes: list[str]
    transactions: list[TouchedTransaction]
    set_aside: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object: of the console's API and of ``bmq segment repair --json``."""
        plans = [*self.older, *self.plans]
        return {
            "topic": self.wanted.topic,
            "partition": self.wanted.partition,
            "offline_reason": self.reason,
            "owner": self.owner,
            "choice": self.wanted.choice.value,
            "is_done": not self.wanted.is_dry,
            "log_start": self.log_start,
            "end_offset": self.end_offset,
            "lost_offsets": sum(plan.lost for plan in plans),
            "segments": [
                {
                    "segment": str(plan.name),
                    "file": plan.source,
                    "bytes": plan.length,
                    "base_offset": plan.name.base,
                    "end_offset": plan.end_offset,
                    "is_changed": plan.is_changed,
                    "lacks_index": plan.lacks_index,
                    "gaps": [
                        {"first": gap.first, "last": gap.end - 1, "position": gap.position, "why": gap.why}
                        for gap in plan.gaps
                    ],
                    "notes": plan.notes,
                }
                for plan in plans
            ],
            "transactions": [each.to_json() for each in self.transactions],
            "set_aside": self.set_aside,
            "notes": self.notes,
        }


async def find_partition(kv: KeyValue, cluster: str, topic: str, partition: int) -> PartitionIdentity:
    """Return a topic's partition.  Raises NotRepaired if there is no such partition, KvError."""
    entry = await kv.get(topic_key(cluster, topic))
    if entry is None:
        raise NotRepaired(f"there is no topic {topic}; `bmq topic list` shows what there is")
    found = decode_topic(topic, entry)
    if not 0 <= partition < found.partitions:
        raise NotRepaired(f"{topic} has partitions 0 to {found.partitions - 1}")
    path = PartitionPath(topic, str(found.topic_id), partition)
    return PartitionIdentity(cluster, PartitionKey(found.topic_id, partition), path, found.replication_factor)


class Repair:
    """The repair of one partition."""

    def __init__(self, fs: FileSystem, kv: KeyValue, clock: Clock, place: PartitionIdentity) -> None:
        self._fs = fs
        self._kv = kv
        self._clock = clock
        self._inspector = Inspector(fs, place)
        self._planner = LogPlanner(fs, place.path, clock, self._inspector)
        self._key = place.key
        self._path = place.path
        self._replication = place.replication
        self._record_key = ownership.partition_key(place.cluster, place.key)
        self._undecodable = ""
        self._name = f"{REPAIR_OWNER}{uuid.uuid4().hex[:16]}"

    async def run(self, wanted: RepairRequest) -> RepairReport:
        """Return the report of a repair, which is carried out unless ``wanted.is_dry``.

        Raises NotRepaired, StorageError, KvError.
        """
        record, revision = await self._read_record()
        facts = await self._inspector.gather(record, revision, is_fenced=False)
        await self._check_store(facts)
        if not wanted.is_dry:
            await self._inspector.put_back(facts)
        report = await self._inspect(facts, wanted)
        if wanted.is_dry:
            return report
        for plan in report.older:
            await self._rewrite(plan, facts, report)
        if report.reason or any(plan.is_changed for plan in report.plans):
            first = report
            facts = await self._inspector.gather(*await self._claim(record, revision), is_fenced=True)
            report = await self._inspect(facts, replace(wanted, all_segments=False), first.transactions)
            report.older, report.set_aside = first.older, first.set_aside
            again = {(each.producer_id, each.first_offset) for each in report.transactions}
            before = [each for each in first.transactions if (each.producer_id, each.first_offset) not in again]
            report.transactions = before + report.transactions
            await self._apply(facts, report.plans, report)
        return report

    async def _inspect(
        self, facts: RepairFacts, wanted: RepairRequest, carried: Sequence[TouchedTransaction] = ()
    ) -> RepairReport:
        """Return the report of what is found.  ``carried``: the transactions that older segments' losses touched."""
        try:
            reason = self._undecodable or await self._inspector.judge(
                facts, unreadable_is_lost=wanted.unreadable_is_lost
            )
            planned = await self._planner.plan(facts, wanted, carried)
        except StorageUnavailable as error:
            raise NotRepaired(
                f"{self._path} cannot be read now: {error}; bring the datanodes back that have it, or give up the bytes"
                " that only they have with --unreadable-is-lost"
            ) from error
        base_end = facts.base.end_offset if facts.base is not None else 0
        end = max((plan.end_offset for plan in planned.listed), default=base_end)
        vanished = vanished_unseen(facts)
        if reason and vanished is not None:
            facts.notes.append(
                f"{self._path.log(vanished.name)} is missing, and no checkpoint shows its length: the log ends at its"
                f" base, and offsets from {vanished.name.base} are given out again; put the file back to keep them"
            )
        return RepairReport(
            wanted=wanted,
            reason=reason,
            owner=facts.record.owner,
            log_start=facts.log_start,
            end_offset=end,
            older=planned.older,
            plans=planned.listed,
            notes=facts.notes,
            transactions=planned.transactions,
        )

    # ------------------------------------------------------------------------------------------------- the record

    async def _read_record(self) -> tuple[PartitionRecord, int]:
        """Return the record and its revision.

        A record that cannot be decoded is rebuilt from storage, as ``bmq cluster rebuild`` does.
        """
        try:
            return await ownership.read(self._kv, self._record_key)
        except FormatError as error:
            self._undecodable = f"key {self._record_key}: {error}"
        entry = await self._kv.get(self._record_key)
        spoken = (await read_all_journals(self._fs)).get(self._key, SILENCE)
        folder = await read_folder(self._fs, self._path)
        newest = await newest_index(self._fs, self._path, folder)
        return rebuilt(self._path, folder, spoken, newest, 1), entry.revision if entry is not None else 0

    async def _claim(self, record: PartitionRecord, revision: int) -> tuple[PartitionRecord, int]:
        claimed = replace(record, epoch=record.epoch + 1, owner=self._name, is_settled=False)
        return claimed, await self._store(claimed, revision)

    async def _store(self, record: PartitionRecord, revision: int) -> int:
        stored, _ = await settle(lambda: ownership.store(self._kv, self._record_key, record, revision))
        if isinstance(stored, ownership.Stored):
            return stored.revision
        raise NotRepaired(
            f"{stored.record.owner or 'a broker'} has taken {self._path} over meanwhile: if it is not open now, run"
            " this again"
        )

    async def _check_ours(self, facts: RepairFacts) -> None:
        record, _ = await ownership.read(self._kv, self._record_key)
        if record != facts.record:
            raise NotRepaired(f"{record.owner or 'a broker'} has taken {self._path} over meanwhile: run this again")

    async def _check_store(self, facts: RepairFacts) -> None:
        """Raise NotRepaired if the store is older than storage: a repair would give acknowledged offsets again.

        Also if a broker that serves the partition has registered a segment since the record was read.
        """
        if facts.unlisted is not None:
            entry = await self._kv.get(self._record_key)
            if (entry.revision if entry is not None else 0) != facts.revision:
                raise NotRepaired(f"a broker has written to {self._path} meanwhile: if it is not open, run this again")
            raise NotRepaired(
                f"{self._path.log(facts.unlisted.name)} is registered after all that the metadata store knows: the"
                " store is older than storage. No file is damaged. Stop every process and rebuild the store by `bmq"
                " cluster rebuild` (docs/rebuild.md)"
            )

    # ------------------------------------------------------------------------------------------------- carrying out

    async def _apply(self, facts: RepairFacts, plans: Sequence[SegmentPlan], report: RepairReport) -> None:
        held = [plan for plan in plans if not plan.is_empty]
        for plan in held:
            await self._rewrite(plan, facts, report)
        epoch = facts.record.epoch
        if not held:  # only names without data, or data that retention has deleted: the same record without an owner
            segments = without_data(facts) if report.reason else facts.record.segments
            await self._store(replace(facts.record, owner="", segments=segments), facts.revision)
            return
        last = held[-1]
        entry = next(entry for entry in facts.record.segments if entry.name == last.name)
        status = await self._fs.status(self._path.log(last.name))
        closed = replace(entry, file_id=status.file_id, length=last.position, end_offset=last.end_offset)
        released = PartitionRecord(
            epoch=epoch,
            owner="",
            segments=(closed,),
            journals=(),
            is_settled=True,
            last=facts.record.last_registered,
            swap=facts.record.swap,
        )
        await self._store(released, facts.revision)

    async def _rewrite(self, plan: SegmentPlan, facts: RepairFacts, report: RepairReport) -> None:
        """Replace the segment's file if its bytes change, and write its index."""
        final, idx = self._path.log(plan.name), self._path.idx(plan.name)
        is_listed = any(entry.name == plan.name for entry in facts.record.segments)
        if plan.is_changed:
            draft = await self._write_draft(plan)
            if is_listed:
                await self._check_ours(facts)
            aside = await self._set_aside(plan) if plan.source else ""  # puts back a file that has changed meanwhile
            await self._fs.delete(idx)  # its positions are the old file's
            await self._fs.rename(draft, final)
            if aside:
                report.set_aside.append(aside.replace(f"/{REPLACING}", f"/{DAMAGED}"))
                await self._fs.rename(aside, report.set_aside[-1])
        elif not is_listed:
            # A file that was merged meanwhile is longer, and has an index of all its bytes.
            if not plan.lacks_index or await self._fs.visible_length(final) != plan.length:
                return
        elif plan.source != final:
            await self._check_ours(facts)
            await self._fs.rename(plan.source, final)
        await self._write_index(plan, facts.log_start)

    async def _write_draft(self, plan: SegmentPlan) -> str:
        """Write the new file under a draft's name, which the sweeper deletes if the repair dies.  Returns its path.

        The bytes are on the datanodes' disks then.
        """
        draft = f"{self._path.folder}/.repair-{plan.name}-{self._name}"
        block_bytes = max(1, -(-plan.position // _MB)) * _MB
        access = await self._access_of(plan.source)
        options = CreateOptions(block_bytes=block_bytes, replication=self._replication, access=access)
        appender = await self._fs.create(draft, options)
        try:
            for part in plan.parts:
                if isinstance(part, LostOffsets):
                    for gap in build_gap(part.first, part.end, part.leader_epoch):
                        appender.write(gap)
                    continue
                if isinstance(part, Mended | WrittenMarker):
                    appender.write(part.data)
                    await appender.flush()
                    continue
                for at in range(part.position, part.position + part.size, COPY_BYTES):
                    data = await self._read(plan.source, at, min(COPY_BYTES, part.position + part.size - at))
                    appender.write(data)
                    await appender.flush()
            await appender.flush(sync=True)
            length = await appender.close()
        except BaseException:
            appender.abort()
            raise
        if length != plan.position:
            raise NotRepaired(f"{draft} has {length} bytes, {plan.position} were planned: run this again")
        return draft

    async def _read(self, path: str, position: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length:
            part = await self._fs.read(path, position, length)
            if not part:
                raise NotRepaired(f"{path} has become shorter, it ends at {position} now: run this again")
            parts.append(part)
            position, length = position + len(part), length - len(part)
        return b"".join(parts)

    async def _set_aside(self, plan: SegmentPlan) -> str:
        """Rename the old file, and return its new path.

        Raises NotRepaired, after renaming it back, if its length is not the one that was read.
        """
        if base_name(plan.source).startswith(REPLACING):
            return plan.source
        aside = f"{self._path.folder}/{REPLACING}{plan.name}-{self._name.removeprefix(REPAIR_OWNER)}"
        await self._fs.rename(plan.source, aside)
        length = await self._fs.visible_length(aside)
        if length != plan.length:
            await self._fs.rename(aside, plan.source)
            raise NotRepaired(
                f"{plan.source} has changed meanwhile, from {plan.length} to {length} bytes: run this again"
            )
        return aside

    async def _write_index(self, plan: SegmentPlan, log_start: int) -> None:
        checkpoint = Checkpoint(
            key=self._key,
            segment=plan.name,
            position=plan.position,
            end_offset=plan.end_offset,
            log_start=min(log_start, plan.end_offset),
            is_closed=True,
            max_timestamp=plan.index.max_timestamp,
            max_timestamp_offset=plan.index.max_timestamp_offset,
            first_open_txn=plan.end.first_open,
            index=plan.index.entries,
            epochs=tuple(plan.epochs),
            producers=plan.end.producers,
            aborted=plan.end.aborted,
        )
        draft = f"{self._path.folder}/.idx-{plan.name}-{self._name}"
        access = await self._access_of(self._path.log(plan.name))
        options = CreateOptions(block_bytes=_MB, replication=self._replication, access=access)
        await write_once(self._fs, draft, encode_idx(checkpoint), options)
        await self._fs.replace(draft, self._path.idx(plan.name))

    async def _access_of(self, source: str) -> Access:
        """Return the rights of a file for its replacement or index: a repair has no broker's defaults.

        Without a file (``source`` empty) they are those of the partition's folder.
        """
        status = await self._fs.status(source or self._path.folder)
        return Access(group=status.group, mode=status.mode | _OWNER_WRITES)

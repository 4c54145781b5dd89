"""Compaction of a topic by Spark, on many machines: a broker cleans its logs in a single thread.

The partition's owner plans the round and swaps the files; the job reads the sources and writes the drafts::

    sources ─▶ hashes of keys ─▶ last offset of each hash ─▶ the file of each offset ─▶ a draft for each group ─▶ swaps
               (a task a group)   (a shuffle)                 (a shuffle)                (a task a group)

A job may be killed at any moment: the log is as it was, but for groups that were swapped.  Groups are swapped in order
of offsets, as in a round of the owner that ends early.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import uuid
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from bmq.spark.jobs import JobError
from bmq.spark.jobs.session import add_root, check_machine, main_of, start_session

if TYPE_CHECKING:
    from bmq.spark.jobs.cleaning_tasks import CompactionWork, SourceFile, SourceGroup, WrittenFile
    from bmq.spark.jobs.log_owner import HeldRound, LogOwners
    from bmq.storage.cleaning.job_round import RoundPlan
    from bmq.storage.filesystem import FileSystem
    from bmq.storage.layout import PartitionPath

SUMMARY = "clean a compacted topic on many machines, as its brokers do it in a thread each"
DESCRIPTION = """\
Clean the closed segments of a compacted topic: keep the last record of every key. Brokers do this by themselves, a log
at a time; this job is for logs so large that it would take them days. A broker plans the round and swaps the files, so
nothing is lost or doubled, whenever the job is killed. Meanwhile the broker neither cleans nor merges these partitions.
"""
DEFAULT_HTTP = "http://127.0.0.1:9080"
_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the job's own options."""
    add_root(parser)
    parser.add_argument("--topic", required=True, metavar="NAME")
    parser.add_argument(
        "--partitions",
        type=parse_partitions,
        metavar="LIST",
        help="as in 0,4-7 (default: all that have something to clean)",
    )
    parser.add_argument(
        "--http",
        default=os.environ.get("BMQ_HTTP_URL"),
        metavar="URL",
        help=f"HTTP address of a BMQ server (default: $BMQ_HTTP_URL, else {DEFAULT_HTTP}); BMQ_HTTP_USER and"
        " BMQ_HTTP_PASSWORD_FILE, or BMQ_HTTP_TOKEN_FILE, log in",
    )


def parse_partitions(text: str) -> frozenset[int]:
    """Return the numbers of a list such as 0,4-7.  Raises ArgumentTypeError."""
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last >= 1 << 31:
            raise ArgumentTypeError(f"{text!r} is not a list of partitions as 0,4-7")
        if len(found) + last - first >= 1_000_000:
            raise ArgumentTypeError(f"{text!r} has more than a million partitions")
        found.update(range(first, last + 1))
    return frozenset(found)


def run(arguments: Namespace, on_step: Callable[[str], None] = lambda step: None) -> int:
    """Clean the topic; return 1 if a partition could not be cleaned to its plan's end, else 0.

    ``on_step`` is called with "planned", "written" and "swapped", for tests.  Raises JobError.
    """
    check_machine()
    from bmq.spark.jobs.cleaning_tasks import SourceError
    from bmq.storage.filesystem import StorageError

    try:
        return _Compaction(arguments, on_step).run()
    except (StorageError, SourceError) as error:
        raise JobError(str(error)) from error


class _Compaction:
    """One run over some partitions of a topic."""

    def __init__(self, arguments: Namespace, on_step: Callable[[str], None]) -> None:
        from bmq.spark.jobs.log_owner import LogOwners
        from bmq.spark.reading.storage_loop import storage_loop

        self._arguments = arguments
        self._on_step = on_step
        self._topic: str = arguments.topic
        self._job = uuid.uuid4().hex[:16]
        self._owners: LogOwners = LogOwners(arguments.http or DEFAULT_HTTP, self._topic, self._job)
        self._io = storage_loop()
        self._fs: FileSystem = self._io.filesystem(arguments.root)
        self._failed = 0

    def run(self) -> int:
        from bmq.storage.layout import PartitionPath

        topic_id, count = self._io.run(_find_topic(self._fs, self._topic))
        wanted = sorted(self._arguments.partitions or range(count))
        if wanted[-1] >= count:
            raise JobError(f"the topic {self._topic} has {count} partition(s): there is no partition {wanted[-1]}")
        paths = {number: PartitionPath(self._topic, topic_id, number) for number in wanted}
        rounds: dict[int, HeldRound] = {}
        try:
            self._begin(rounds, paths, topic_id)
            self._make_folders(rounds, paths)
            holds = _Holds(self._owners, {number: held.plan for number, held in rounds.items()}, _pause_s(rounds))
            try:
                groups = self._find_groups(rounds, paths)
                self._on_step("planned")
                if groups:
                    self._clean(rounds, groups, topic_id)
            finally:
                holds.stop()
        finally:
            self._let_go(paths, rounds)
        return 1 if self._failed else 0

    def _begin(self, rounds: dict[int, HeldRound], paths: dict[int, PartitionPath], topic_id: str) -> None:
        """Add the rounds that the owners have planned, by partition.  Raises JobError."""
        from bmq.spark.jobs.log_owner import NotCleaned
        from bmq.storage.cleaning.job_round import NOTHING_TO_CLEAN

        for number in paths:
            try:
                held = rounds[number] = self._owners.begin(number)
            except NotCleaned as refusal:
                is_clean = str(refusal).startswith(NOTHING_TO_CLEAN)
                self._failed += not is_clean or self._arguments.partitions is not None
                _say(f"partition {number}: not cleaned: {refusal}")
                continue
            if held.topic_id != topic_id:
                raise JobError(f"the topic {self._topic} has another id at the HTTP address: is it of another cluster?")

    def _make_folders(self, rounds: dict[int, HeldRound], paths: dict[int, PartitionPath]) -> None:
        """Make the folders of the drafts, and have the owners check them.  Raises JobError if a right is missing."""
        from bmq.spark.jobs.log_owner import TRIES, NotCleaned
        from bmq.storage.filesystem import Unsupported

        for number, held in rounds.items():
            try:
                self._io.run(make_draft_folder(self._fs, paths[number].folder, self._job))
                self._owners.hold(number, held.plan, TRIES)
            except Unsupported as error:
                text = "the job's user needs the right to write into the partition's folder"
                raise JobError(f"partition {number}: {text}: {error}. Nothing was changed by this") from error
            except NotCleaned as refusal:
                raise JobError(f"partition {number}: {refusal}. Nothing was changed by this") from refusal

    def _find_groups(self, rounds: dict[int, HeldRound], paths: dict[int, PartitionPath]) -> tuple[SourceGroup, ...]:
        """Return the groups of all rounds; a partition whose log has changed has none."""
        groups: list[SourceGroup] = []
        for number, held in rounds.items():
            try:
                groups += self._io.run(find_groups(self._fs, paths[number], held.plan))
            except JobError as error:
                self._failed += 1
                _say(f"not cleaned: {error}")
        return tuple(groups)

    def _clean(self, rounds: dict[int, HeldRound], groups: tuple[SourceGroup, ...], topic_id: str) -> None:
        from bmq.spark.jobs.cleaning_tasks import CompactionWork
        from bmq.spark.jobs.compaction_plan import write_drafts
        from bmq.spark.planning.renewed_token import RenewedToken, grant_token

        work = CompactionWork(
            root=_resolved(self._arguments.root),
            topic=self._topic,
            topic_id=topic_id,
            job=self._job,
            plans={number: held.plan for number, held in rounds.items()},
            groups=groups,
        )
        total = sum(source.length for group in groups for source in group.sources)
        partitions = len({group.partition for group in groups})
        _say(f"{partitions} partition(s), {sum(len(one.sources) for one in groups):,} segments, {total:,} bytes")
        spark = start_session("compact", self._arguments)
        try:
            with RenewedToken(self._io.run, self._io.run(grant_token(self._arguments.root))) as token:
                written = write_drafts(spark, work, token)
        finally:
            spark.stop()
        self._on_step("written")
        for number in sorted({group.partition for group in groups}):
            self._swap(number, rounds[number].plan, work, written)
        self._on_step("swapped")

    def _swap(self, number: int, plan: RoundPlan, work: CompactionWork, written: dict[int, WrittenFile]) -> None:
        """Have the partition's files swapped, in order of offsets."""
        from bmq.spark.jobs.log_owner import GroupToSwap, NotCleaned
        from bmq.storage.cleaning.job_round import GROUPS_MAX, sources_digest

        own = [at for at, group in enumerate(work.groups) if group.partition == number]
        to_swap = [
            GroupToSwap(
                name=str(work.groups[at].name),
                end_offset=work.groups[at].end_offset,
                sources=sources_digest((source.name, source.length) for source in work.groups[at].sources),
                draft=written[at].draft,
                draft_index=written[at].draft_index,
            )
            for at in own
        ]
        swapped = expired = 0
        stopped = ""
        try:
            # The owner lists the partition's folder for each request, so a request has as many groups as it takes.  A
            # request that takes longer than its time-out loses nothing: groups that are swapped count as done again.
            for at in range(0, len(to_swap), GROUPS_MAX):
                found = self._owners.swap(number, plan, to_swap[at : at + GROUPS_MAX])
                swapped, expired = swapped + found.swapped, expired + found.expired
                if found.stopped:
                    stopped = found.stopped
                    break
        except (NotCleaned, JobError) as error:  # the drafts of other partitions are as good as before
            stopped = str(error)
        done = own[: swapped + expired]
        before, after = sum(written[at].bytes_before for at in done), sum(written[at].bytes_after for at in done)
        gone = sum(written[at].records_before - written[at].records_after for at in done)
        _say(
            f"partition {number}: {swapped} of {len(own)} files swapped{f', {expired} expired' if expired else ''},"
            f" up to offset {work.groups[done[-1]].end_offset if done else plan.start}: {before:,} bytes became"
            f" {after:,}, {gone:,} records are gone"
        )
        if stopped:
            self._failed += 1
            _say(f"partition {number}: stopped: {stopped}")

    def _let_go(self, paths: dict[int, PartitionPath], rounds: dict[int, HeldRound]) -> None:
        """End the holds, and delete what is left of drafts; both also end by themselves.

        The owner ends a hold behind a swap that is under way, whose drafts are needed until then.
        """
        from bmq.spark.jobs.log_owner import NotCleaned
        from bmq.storage.cleaning.job_round import draft_folder
        from bmq.storage.filesystem import StorageError

        for number in rounds:
            try:
                self._owners.end(number)
            except (NotCleaned, JobError) as error:
                _say(f"partition {number}: the owner holds it for some minutes yet: {error}")
            try:
                self._io.run(self._fs.delete(draft_folder(paths[number].folder, self._job), recursive=True))
            except StorageError as error:
                _say(f"partition {number}: cannot delete the job's folder, a broker will: {error}")


class _Holds:
    """A thread that has the owners hold the partitions for the job as long as it runs."""

    def __init__(self, owners: LogOwners, plans: dict[int, RoundPlan], pause_s: float) -> None:
        self._owners = owners
        self._plans = plans
        self._refusals: dict[int, str] = {}
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="bmq-holds", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; it may be in its last request."""
        self._stopped.set()
        self._thread.join()

    def _renew(self) -> None:
        from bmq.spark.jobs.log_owner import NotCleaned

        while not self._stopped.wait(self._pause_s):
            for number, plan in self._plans.items():
                if self._stopped.is_set():
                    return
                try:
                    self._owners.hold(number, plan)
                except (NotCleaned, JobError) as error:
                    # The round is not lost by this: the owner looks at the sources when it swaps.
                    if self._refusals.get(number) != str(error):
                        self._refusals[number] = str(error)
                        _say(f"partition {number}: the owner may not hold it any longer: {error}")


# ---------------------------------------------------------------------------------------------------- on the driver


def _pause_s(rounds: dict[int, HeldRound]) -> float:
    return min((held.hold_ms for held in rounds.values()), default=600_000) / 5_000


async def _find_topic(fs: FileSystem, topic: str) -> tuple[str, int]:
    """Return the topic's id, as its folder has it, and the number of its partitions.  Raises JobError."""
    from bmq.spark.planning.discover import check_levels
    from bmq.storage.cluster_files import read_topic
    from bmq.storage.layout import is_topic_name

    found = await read_topic(fs, topic) if is_topic_name(topic) else None
    if found is None:
        raise JobError(f"there is no topic {topic!r} on this root")
    await check_levels(fs)
    return str(found.topic_id), found.partitions


async def make_draft_folder(fs: FileSystem, folder: str, job: str) -> None:
    """Make the job's folder in a partition's folder, with its group and mode: the owner renames drafts out of it.

    Raises Unsupported (NotAllowed) without the right to make it, and other StorageErrors.
    """
    from bmq.core.file_access import Access
    from bmq.storage.cleaning.job_round import draft_folder
    from bmq.storage.filesystem import Unsupported

    above, made = await fs.status(folder), draft_folder(folder, job)
    await fs.make_folder(made, Access(mode=above.mode))
    found = await fs.status(made)
    for wanted in (Access(group=above.group), Access(mode=above.mode)):
        missing = wanted.missing(found.owner, found.group, found.mode)
        if missing.is_given:
            with suppress(Unsupported):  # the owner checks what it needs
                await fs.set_access(made, missing)


async def find_groups(fs: FileSystem, path: PartitionPath, plan: RoundPlan) -> list[SourceGroup]:
    """Return the sources of the round's files, in order.  Raises JobError if the log has changed since the plan."""
    from bmq.spark.jobs.cleaning_tasks import SourceFile, SourceGroup
    from bmq.storage.cleaning.plan import SegmentFacts, group_segments
    from bmq.storage.log_segments import walk

    sources: dict[int, SourceFile] = {}
    async for listed in walk(fs, path):
        if listed.name.base >= plan.end:
            break
        if listed.is_live and listed.end is not None and listed.end > plan.start:
            sources[listed.name.base] = SourceFile(
                name=listed.name, length=listed.length, end_offset=listed.end, modified_ms=listed.modified_ms
            )
    ends = [source.end_offset for source in sources.values()]
    if not ends or ends[-1] != plan.end:
        raise JobError(f"topic {path.topic}, partition {path.partition}: the log has changed; run the job again")
    facts = [
        SegmentFacts(base=base, end_offset=source.end_offset, bytes=source.length, max_timestamp=-1)
        for base, source in sources.items()
    ]
    groups: list[SourceGroup] = []
    for some in group_segments(facts, plan.segment_bytes):
        members = tuple(sources[each.base] for each in some)
        before = groups[-1].sources[-1].name if groups else None
        groups.append(SourceGroup(partition=path.partition, sources=members, before=before))
    return groups


def _resolved(root: str) -> str:
    """Return a root that executors open without Hadoop's files.  Raises JobError."""
    from bmq.spark.planning.driver_login import driver_login
    from bmq.storage.open import resolved_url

    try:
        return resolved_url(root, hadoop_conf_dir=driver_login(root).hadoop_conf_dir)
    except ValueError as error:
        raise JobError(str(error)) from error


def _say(text: str) -> None:
    with suppress(BrokenPipeError):
        sys.stderr.write(f"compact: {text}\n")
        sys.stderr.flush()


def main() -> int:
    """Run the job as a program of its own and return the exit status."""
    return main_of("compact")


if __name__ == "__main__":
    sys.exit(main())

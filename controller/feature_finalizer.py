"""The leader's work on the levels of features: the thin shell around ``controller.feature_levels``.

It acts in its term alone: each write compares the election key.  The decisions are made on this process's view, once
the view shows everything up to the record's revision: also every member with an earlier registration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from bmq.controller.feature_levels import Members, WriteRecord, next_step, updated, waits_for
from bmq.controller.kv_commit import CONFLICTS_MAX, Guard, contested, deposed, is_deposed
from bmq.core.aio.backoff import Backoff
from bmq.core.aio.subscribers import wait_for
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.features import FeatureTable, FeatureUpdate, Levels, UnsupportedLevel
from bmq.core.logging.fields import fields
from bmq.meta.cluster.keys import features_key, members_prefix
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels, decode_record, encode_record
from bmq.meta.cluster.view import ViewChange
from bmq.meta.kv import Compare, KeyValue, KvError, Put
from bmq.meta.settled_commit import commit_settled, refused
from bmq.storage.filesystem import StorageError

_log = logging.getLogger(__name__)

AGAIN_S = Backoff(1.0, 30.0)
"""Pause after a step that failed."""
FINISH_S = 10.0
"""Time for an operator's update to be in force, within the time of one request to the leader."""
File = Callable[[int, FeatureLevels], Awaitable[None]]
"""Files a record of this revision on storage.  Raises StorageError or FormatError."""


class FeatureFinalizer:
    """The levels of features in a leader's term: ``begin`` before anything is written, then ``run`` until cancelled."""

    def __init__(
        self, kv: KeyValue, cluster: str, view: KvClusterView, table: FeatureTable, file: File, *, guard: Guard
    ) -> None:
        """``table``: the features of this process's version.  ``guard``: see ``Guard``."""
        self._kv = kv
        self._key = features_key(cluster)
        self._members_prefix = members_prefix(cluster)
        self._view = view
        self._table = table
        self._file = file
        self._guard = guard
        self._filed = 0
        """The revision of the record that storage has, as this leader knows."""
        self._inherited = 0
        """The revision of the record at the begin of the term."""
        self._news = asyncio.Event()
        self._stepping = asyncio.Lock()
        """Held from the decision on a record until its write is settled.

        Not held while storage files the levels: an operator's update need not wait for storage.
        """
        self._said: tuple[str, ...] = ()
        """The members for which a level waits, as the log has them."""

    def __repr__(self) -> str:
        return f"<FeatureFinalizer {self._view.levels} filed={self._filed}>"

    async def begin(self) -> None:
        """Check that this process supports the levels in force.  Raises UnsupportedLevel, or KvError.

        A process may be elected although it has lost its membership and must not join again.  An intended level is not
        checked: nothing is written at it yet, and the first step of a leader without support withdraws it.
        """
        entry = await self._kv.get(self._key)
        try:
            record = NO_LEVELS if entry is None else decode_record(entry.value)
        except FormatError as error:
            raise UnsupportedLevel(f"{self._key}: {error}") from error
        self._table.check(record.levels, self._key)
        self._inherited = 0 if entry is None else entry.revision

    async def run(self, since: int) -> None:
        """Go on with the levels whenever members or levels change, until cancelled.

        ``since``: the revision of the election; the view then shows all that earlier leaders wrote.

        Raises RequestError if another process leads.  Failures of store and storage are logged, the first of several as
        a warning, and tried again.
        """
        await self._view.wait_revision(since)
        forget = self._view.subscribe(self._view_changed)
        failures = 0
        try:
            while True:
                self._news.clear()
                try:
                    await self._advance()
                    failures = 0
                except (KvError, StorageError, FormatError) as error:
                    failures += 1
                    _log.log(
                        logging.WARNING if failures == 1 else logging.INFO,
                        "could not go on with the levels of features, trying again",
                        extra=fields(error=error),
                    )
                await wait_for(self._news, AGAIN_S.pause(failures) if failures else None)
        finally:
            forget()

    def _view_changed(self, change: ViewChange) -> None:
        if change.members or change.are_levels:
            self._news.set()

    async def _advance(self) -> None:
        """Take the steps that are due.  Raises KvError, StorageError, FormatError, RequestError."""
        while True:
            async with self._stepping:
                revision = await self._shown()
                record, members = self._view.levels, self.members()
                step = next_step(record, members, self._table, is_filed=self._filed == revision)
                if isinstance(step, WriteRecord):
                    await self._take(step, record, revision)
                    continue
            if step is None:
                self._say_waiting(waits_for(record, members, self._table))
                return
            await self._file(revision, record)  # a record that is written meanwhile has a higher name on storage
            self._filed = revision

    async def _take(self, step: WriteRecord, record: FeatureLevels, revision: int) -> None:
        if await self._write(step.record, revision):
            _log.info("a feature's level is %s: %s", step.what, _text(step.record.intended or record.intended))

    async def _shown(self) -> int:
        """Return the record's revision once the view shows everything up to it, and all that earlier leaders wrote."""
        while True:
            revision = self._view.revision_of(self._key)
            await self._view.wait_revision(max(revision, self._inherited))
            if self._view.revision_of(self._key) == revision:
                return revision

    async def _write(self, record: FeatureLevels, revision: int) -> bool:
        """Write the record over that of ``revision``, and wait until the view shows the outcome.

        Returns False if another write came first.  Raises KvError, and RequestError if another process leads.
        """
        guard, put = self._guard(), Put(self._key, encode_record(record))
        done, may_be_ours = await commit_settled(self._kv, [*guard, Compare(self._key, revision)], [put])
        if done.succeeded:
            await self._view.wait_revision(done.revision)
            return True
        if is_deposed(guard, done):
            raise deposed()
        found = done.current[self._key]
        if found is not None:
            await self._view.wait_revision(found.revision)
        return may_be_ours and found is not None and found.value == put.value

    def members(self) -> Members:
        """Return the supported levels of every registered member, dead or alive, as the view shows them.

        An unreadable member counts as one at level 0.
        """
        found = {name: member.ranges for name, member in self._view.members.items()}
        hidden = (key.removeprefix(self._members_prefix) for key in self._view.unreadable)
        return found | {name: {} for name in hidden if "/" not in name}

    def _say_waiting(self, names: Sequence[str]) -> None:
        """Log the members that keep a level from being raised, when they are others than before."""
        if tuple(names) != self._said:
            self._said = tuple(names)
            if names:
                _log.info(
                    "a feature's level is not raised: %d members do not support a higher one, %s among them",
                    len(names),
                    names[0],
                )

    # -------------------------------------------------------------------------------------------- operators' requests

    async def update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Set levels as an operator requests, and return once they are in force.

        Raises RequestError INVALID_UPDATE_VERSION if an update is refused: none is done then.  FEATURE_UPDATE_FAILED if
        a member that does not support a level came first, REQUEST_TIMED_OUT if store or storage do not respond.
        """
        try:
            async with asyncio.timeout(FINISH_S):
                await self._update(updates, validate_only=validate_only)
        except TimeoutError:
            text = "the levels are not in force yet, and may be later: storage or the metadata store does not respond"
            raise RequestError(ErrorCode.REQUEST_TIMED_OUT, text) from None

    async def _update(self, updates: Sequence[FeatureUpdate], *, validate_only: bool) -> None:
        """Set levels as ``update`` does, without its time-out."""
        for _ in range(CONFLICTS_MAX):
            async with self._stepping:
                try:
                    revision = await self._shown()
                    record = self._view.levels
                    after = updated(record, updates, self.members(), self._table)
                    if validate_only:
                        return
                    if after == record or await self._write(after, revision):
                        break
                except KvError as error:
                    raise refused(error) from error
        else:
            raise contested("the levels of features")
        wanted = {each.name: each.level for each in updates}
        _log.info("a feature's level is set by an operator: %s", _text(wanted))
        self._news.set()
        await self._finish(wanted)

    async def _finish(self, wanted: Levels) -> None:
        """Wait until no level of ``wanted`` is merely intended.  Raises RequestError if one is not in force then."""
        news = asyncio.Event()
        forget = self._view.subscribe(lambda change: news.set() if change.are_levels else None)
        try:
            while wanted.keys() & self._view.levels.intended.keys():
                news.clear()
                await news.wait()
        finally:
            forget()
        levels = self._view.levels
        failed = sorted(name for name, level in wanted.items() if levels.of(name) != level)
        if failed:
            text = "a process registered that does not support the level of"
            raise RequestError(ErrorCode.FEATURE_UPDATE_FAILED, f"{text} {', '.join(failed)}: it was not raised")


def _text(levels: Levels) -> str:
    return ", ".join(f"{name} {level}" for name, level in sorted(levels.items()))

"""Owner, group and mode of the files of topics, and of those that the readers of any topic need.

A topic's folders bound who comes to its files, so their rights are set first: removed rights end at once, and added
rights come file by file.  A new folder or file has its mode when it is created, and on HDFS the group of the folder
above it.  So only a change has to go over all of them.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterator
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.file_access import Access
from bmq.core.logging.fields import fields
from bmq.storage import layout
from bmq.storage.filesystem import FileStatus, FileSystem, NoSuchFile, StorageError, Unsupported

_log = logging.getLogger(__name__)


class StepDone(NamedTuple):
    """One step over a topic's partitions.

    ``after``: the last of them; "" if there are no more.  ``has_left``: some files are open and must wait.
    """

    after: str
    has_left: bool


class AccessFiles:
    """The calls to storage that give files their owner, group and mode.

    All raise RequestError: INVALID_CONFIG if storage refuses, KAFKA_STORAGE_ERROR if it fails now.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs

    async def check(self, access: Access) -> None:
        """Try on a folder of its own whether storage lets this process give such rights."""
        trial = layout.trial(f"{self._fs.holder}-{uuid.uuid4().hex[:8]}")
        with _as_request_error(f"storage does not let this process give {access}"):
            try:
                await self._fs.make_folder(trial, access)
                await self._fs.set_access(trial, access)
            finally:
                await self._remove(trial)

    async def prepare(self, name: str, topic_id: uuid.UUID, access: Access) -> None:
        """Make a topic's folder, which bounds who reads its files, before any process writes one."""
        folder = layout.topic_id_folder(name, topic_id)
        with _as_request_error(f"storage does not give topic {name} {access}"):
            await self._fs.make_folder(folder, access)
            await self._give(await self._fs.status(folder), access)

    async def withdraw(self, name: str, topic_id: uuid.UUID) -> None:
        """Remove the folder of a topic that was not created after all."""
        await self._remove(layout.topic_id_folder(name, topic_id))

    async def give_shared(self, access: Access) -> None:
        """Give what readers of any topic need: the root and the topics' folder as ``access`` says.

        Journals and the root's own files may be read by all who may pass through the root.
        """
        readable = access.readable()
        with _as_request_error(f"storage does not give the root {access}"):
            for path, given in (("/", access), (layout.TOPICS, access), (layout.JOURNALS, readable)):
                await self._fs.make_folder(path)
                await self._give(await self._fs.status(path), given)
            for path in (layout.CLUSTER, layout.ROOT, layout.LEVELS):
                with contextlib.suppress(NoSuchFile):  # an older version's has no root.json, and few have had levels
                    await self._give(await self._fs.status(path), readable)
            async for journal in self._fs.list(layout.JOURNALS):
                await self._give(journal, readable)

    async def give_some(self, name: str, topic_id: uuid.UUID, access: Access, after: str, limit: int) -> StepDone:
        """Set the missing rights of at most ``limit`` partitions after ``after``; the topic's own folders are first."""
        folder = layout.topic_id_folder(name, topic_id)
        has_left, last, seen = False, "", 0
        with _as_request_error(f"storage does not give topic {name} {access}"):
            if not after:
                await self._give_topic(name, folder, access)
            async for child in self._fs.list(folder, after=after):
                if seen == limit:
                    return StepDone(last, has_left)
                has_left |= not await self._give_partition(child, access)
                last, seen = layout.base_name(child.path), seen + 1
        return StepDone("", has_left)

    async def _give_topic(self, name: str, folder: str, access: Access) -> None:
        for path in (layout.topic_folder(name), folder):
            with contextlib.suppress(NoSuchFile):  # nothing was written yet, or the topic is being deleted
                await self._give(await self._fs.status(path), access)
        async for child in self._fs.list(layout.topic_folder(name)):
            if not child.is_dir:
                await self._give(child, access)

    async def _give_partition(self, folder: FileStatus, access: Access) -> bool:
        """Set the missing rights of a partition's folder and files.  Return False if an entry must wait."""
        is_whole = await self._give(folder, access)
        if folder.is_dir:
            async for file in self._fs.list(folder.path):
                if not file.is_dir:  # a job's folder is the job's
                    is_whole &= await self._give(file, access)
        return is_whole

    async def _give(self, entry: FileStatus, access: Access) -> bool:
        wanted = access if entry.is_dir else access.of_file()
        missing = wanted.missing(entry.owner, entry.group, entry.mode)
        if not missing.is_given:
            return True
        try:
            return await self._fs.set_access(entry.path, missing)
        except NoSuchFile:  # renamed or deleted since it was listed: the next pass finds it
            return True

    async def _remove(self, folder: str) -> None:
        try:
            await self._fs.delete(folder)
        except StorageError as error:
            _log.info("an empty folder stays on storage", extra=fields(path=folder, error=error))


@contextlib.contextmanager
def _as_request_error(what: str) -> Iterator[None]:
    try:
        yield
    except Unsupported as error:
        raise RequestError(ErrorCode.INVALID_CONFIG, f"{what}: {error}") from error
    except StorageError as error:
        raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{what}: {error}") from error

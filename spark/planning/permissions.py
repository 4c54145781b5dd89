"""Errors of a job whose user may not read: they name the topic, and the entry of storage that is in the way.

A job without the right fails.  It never reads less instead: a topic that a pattern finds and that may not be read ends
the query too.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from bmq.storage import layout
from bmq.storage.filesystem import FileSystem, NoSuchFile, NotAllowed

T = TypeVar("T")


class NotReadable(NotAllowed):
    """A topic, or what readers of any topic need, that this job's user may not read."""


async def reading(fs: FileSystem, topic: str, work: Awaitable[T]) -> T:
    """Do ``work``, which reads ``topic``, and return its result.  Raises NotReadable if the user may not read it."""
    try:
        return await work
    except NotReadable:
        raise
    except NotAllowed as error:
        raise await not_readable(fs, topic, error) from error


async def not_readable(fs: FileSystem, topic: str, error: NotAllowed) -> NotReadable:
    """Return the error for a topic that this user may not read, with the rights that storage shows of it."""
    shown = await _nearest(fs, layout.topic_folder(topic))
    return NotReadable(
        f"this user may not read topic {topic} in {fs.url}: {shown}{error}. Kafka's ACLs do not hold for files: the"
        f" user must be a member of the topic's group (storage.group), and its mode (storage.mode) let the group read"
    )


async def shared_not_readable(fs: FileSystem, what: str, error: NotAllowed) -> NotReadable:
    """Return the error for ``what``, which readers of any topic need."""
    shown = await _nearest(fs, layout.TOPICS)
    return NotReadable(
        f"this user may not read {what} in {fs.url}: {shown}{error}. Readers of any topic need them: see"
        f" storage_shared_mode and storage_shared_group of bmq serve"
    )


async def _nearest(fs: FileSystem, path: str) -> str:
    """Return a text about the last entry on the way to ``path`` that this user may look at; "" if there is none."""
    names = path[1:].split("/")
    text = ""
    for depth in range(len(names) + 1):
        step = "/" + "/".join(names[:depth])
        try:
            found = await fs.status(step)
        except (NotAllowed, NoSuchFile):
            break
        text = f"{step} is of {found.owner}:{found.group} with mode {found.mode:03o}; "
    return text

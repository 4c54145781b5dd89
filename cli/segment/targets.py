"""Targets: the files that a command line names, by paths within the root, or by a topic whose partitions are listed."""

from __future__ import annotations

import os
import uuid
from argparse import Namespace
from dataclasses import dataclass, field
from urllib.parse import unquote

from bmq.cli.usage import UsageError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.urls import split_url, without_userinfo
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.recovery import ends


@dataclass(frozen=True, slots=True)
class TargetSegment:
    """A segment in its folder.  ``limit`` is the offset at which later segments take over (rule 5), None if none
    does."""

    folder: str
    name: SegmentName
    limit: int | None
    has_log: bool
    has_idx: bool

    @property
    def log(self) -> str:
        """The path of its ``.log`` file."""
        return f"{self.folder}/{self.name}.log"

    @property
    def idx(self) -> str:
        """The path of its ``.idx`` file."""
        return f"{self.folder}/{self.name}.idx"

    @property
    def is_superseded(self) -> bool:
        """True if later segments begin at or below its base: nothing of it counts."""
        return self.limit is not None and self.limit <= self.name.base


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """One partition's segments, in the order of their creation."""

    folder: str
    segments: tuple[TargetSegment, ...] = ()

    @property
    def key(self) -> PartitionKey | None:
        """The partition; None if the folder is not in a partition's place."""
        parts = self.folder.split("/")
        if len(parts) != 5 or f"/{parts[1]}" != layout.TOPICS or not parts[4].isdecimal():
            return None
        try:
            return PartitionKey(uuid.UUID(parts[3]), int(parts[4]))
        except ValueError:
            return None

    @property
    def label(self) -> tuple[str, int]:
        """Topic and partition number; the folder and -1 if it is not in a partition's place."""
        parts = self.folder.split("/")
        return (parts[2], int(parts[4])) if self.key is not None else (self.folder, -1)

    def find(self, name: SegmentName) -> TargetSegment:
        """Return the segment of that name.  Raises NoSuchFile if there is none."""
        for segment in self.segments:
            if segment.name == name:
                return segment
        raise NoSuchFile(f"{self.folder}/{name}: no such segment")


@dataclass(slots=True)
class Targets:
    """The files of a command: chosen segments by partition; ``indexes`` and ``journals`` were named as paths."""

    partitions: list[tuple[PartitionFiles, list[TargetSegment]]] = field(default_factory=list)
    indexes: list[tuple[PartitionFiles, TargetSegment]] = field(default_factory=list)
    journals: list[str] = field(default_factory=list)


async def find_targets(fs: FileSystem, arguments: Namespace) -> Targets:
    """Return the files that the command line names.  Raises UsageError or NoSuchFile if one cannot be found."""
    if bool(arguments.paths) == (arguments.topic is not None):
        raise UsageError("name either files (paths within the root) or --topic, one of the two")
    if arguments.topic is None:
        if arguments.partition is not None or arguments.topic_id is not None:
            raise UsageError("--partition and --topic-id belong to --topic")
        return await _by_path(fs, arguments.paths)
    targets = Targets()
    folder = await _topic_folder(fs, arguments.topic, arguments.topic_id)
    for number in await _partitions(fs, folder, arguments.partition):
        files = await list_partition(fs, f"{folder}/{number}")
        targets.partitions.append((files, [segment for segment in files.segments if segment.has_log]))
    return targets


async def _by_path(fs: FileSystem, paths: list[str]) -> Targets:
    targets, listed = Targets(), dict[str, PartitionFiles]()
    for given in paths:
        path = given if given.startswith("/") else f"/{given}"
        folder, file_name = path.rsplit("/", 1)
        if path.endswith(".jnl"):
            await fs.status(path)
            targets.journals.append(path)
            continue
        parsed = layout.parse_segment(file_name)
        if parsed is None:
            raise UsageError(
                f"{given} is neither a segment (<base, 20>-<epoch, 8>-<n, 4>.log or .idx, cleaned ones"
                " with -<cleaning, 8> before the dot) nor a .jnl file"
            )
        await fs.status(path)
        if folder not in listed:
            listed[folder] = await list_partition(fs, folder)
        segment = listed[folder].find(parsed[0])
        if parsed[1] == "idx":
            targets.indexes.append((listed[folder], segment))
        else:
            targets.partitions.append((listed[folder], [segment]))
    return targets


async def list_partition(fs: FileSystem, folder: str) -> PartitionFiles:
    """Return a folder's segments, of which only those with a ``.log`` count; a lone ``.idx`` is kept to be reported."""
    found: dict[SegmentName, set[str]] = {}
    async for status in fs.list(folder):
        parsed = layout.parse_segment(layout.base_name(status.path))
        if parsed is not None:
            found.setdefault(parsed[0], set()).add(parsed[1])
    names = sorted((name for name, kinds in found.items() if "log" in kinds), key=lambda name: name.order)
    limits = dict(zip(names, ends(names), strict=True))
    every = sorted(found, key=lambda name: name.order)
    return PartitionFiles(
        folder,
        tuple(TargetSegment(folder, n, limits.get(n), "log" in found[n], "idx" in found[n]) for n in every),
    )


async def _topic_folder(fs: FileSystem, topic: str, topic_id: str | None) -> str:
    if not layout.is_topic_name(topic):
        raise UsageError(f"{topic!r} is not a topic name")
    ids = await _folders(fs, f"{layout.TOPICS}/{topic}")
    if not ids:
        raise NoSuchFile(f"{layout.TOPICS}/{topic}: no such topic in {fs.url}")
    if topic_id is None and len(ids) > 1:
        raise UsageError(f"{topic} exists under {len(ids)} ids, choose one by --topic-id: {', '.join(ids)}")
    chosen = ids[0] if topic_id is None else topic_id
    if chosen not in ids:
        raise NoSuchFile(f"{topic} has no id {chosen}; known: {', '.join(ids)}")
    return f"{layout.TOPICS}/{topic}/{chosen}"


async def _partitions(fs: FileSystem, folder: str, wanted: int | None) -> list[int]:
    numbers = sorted(int(name) for name in await _folders(fs, folder) if name.isdecimal())
    if wanted is None:
        return numbers
    if wanted not in numbers:
        there = ", ".join(map(str, numbers)) or "none"
        raise NoSuchFile(f"{folder} has no partition {wanted}; there is {there}")
    return [wanted]


async def _folders(fs: FileSystem, path: str) -> list[str]:
    return [layout.base_name(status.path) async for status in fs.list(path) if status.is_dir]


def check_folder(root: str) -> None:
    """Raise UsageError if a local root does not exist: a mistyped one must not become a new, empty one."""
    parts = split_url(root)
    if parts.scheme == "file" and not os.path.isdir(unquote(parts.path)):
        raise UsageError(f"{without_userinfo(root)}: there is no such folder")

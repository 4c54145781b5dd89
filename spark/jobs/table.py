"""A table's commit log on storage: begin a run, commit, put files in place, clean up.  See ``manifest`` for the rules.

Readers that must be exact at every moment use ``table_files``.  All others read the folder: it never shows anything
uncommitted, and a commit of many files appears there file by file.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Sequence

from bmq.core.aio.subscribers import no_op
from bmq.spark.jobs.manifest import (
    Append,
    Begin,
    DataFile,
    Entry,
    FileRewrite,
    Identity,
    ManifestError,
    TableState,
    advance,
    check_same,
    decode_entry,
    decode_state,
    encode_entry,
    encode_state,
    entry_name,
    parse_name,
    state_name,
)
from bmq.spark.reading.storage_loop import storage_loop
from bmq.storage.filesystem import (
    AlreadyExists,
    CreateOptions,
    FileSystem,
    LeaseLost,
    NoSuchFile,
    StorageError,
    write_once,
)
from bmq.storage.layout import base_name

LOG = "/_bmq/log"
STAGING = "/_bmq/staging"
STATE_EVERY = 32
"""Entries between two states, and so the most entries that are read to find a table's content."""
ATTEMPTS_MAX = 16
_READ_BYTES = 4 << 20
_SMALL = CreateOptions(block_bytes=1 << 20)
_HIDDEN = ("_", ".")
"""Prefixes of files and folders that Spark ignores."""
_STAGED = re.compile(r"(\d+)-\d+\Z", re.ASCII)

Step = Callable[[str], None]
"""A function that is called at every point where a crash leaves something else behind."""


class RunFenced(Exception):
    """Another run has begun on this table; this one may not commit any more."""


# ---------------------------------------------------------------------------------------------------------- reading


async def read_state(fs: FileSystem) -> TableState:
    """Return the table's content now.  Raises ManifestError or StorageError."""
    for _ in range(ATTEMPTS_MAX):
        numbers = await _numbers(fs)
        state = TableState()
        try:
            if numbers.states:
                newest = max(numbers.states)
                state = decode_state(newest, await _read_whole(fs, f"{LOG}/{state_name(newest)}"))
            for number in sorted(number for number in numbers.entries if number > state.number):
                data = await _read_whole(fs, f"{LOG}/{entry_name(number)}")
                state = advance(state, number, decode_entry(number, data)[0])
        except NoSuchFile:  # a newer state was written, and these were deleted
            continue
        except ManifestError:
            if numbers != await _numbers(fs):  # a listing in pages may be of two moments
                continue
            raise
        return state
    raise ManifestError(f"the table's log changed during each of {ATTEMPTS_MAX} reads: try again")


async def committed_files(fs: FileSystem) -> list[str]:
    """Return the paths of the table's files now, with those that a crash left in staging."""
    state = await read_state(fs)
    places = {path: path for path in state.files}
    for file in state.last.files if state.last is not None else ():
        if file.path in places and not await _exists(fs, "/" + file.path):
            places[file.path] = file.staged
    return sorted(places.values())


def table_files(table: str) -> list[str]:
    """Return the URLs of the files of the table at ``table``, of whole commits only, for a reader without an event
    loop."""
    io = storage_loop()
    files = io.run(committed_files(io.filesystem(table)))
    return [f"{table.rstrip('/')}/{path}" for path in files]


# ---------------------------------------------------------------------------------------------------------- writing


class JobRun:
    """One run on a table, from its begin on.  It is fenced as soon as another one begins."""

    def __init__(self, fs: FileSystem, state: TableState, on_step: Step) -> None:
        self._fs = fs
        self._on_step = on_step
        self._began = state.number
        self._parts = 0
        self.state = state

    @classmethod
    async def begin(cls, fs: FileSystem, identity: Identity, on_step: Step = no_op) -> JobRun:
        """Stop all earlier runs, finish the last commit, and remove files that were never committed.

        Raises ManifestError if the table is of another topic or form, RunFenced if other runs begin all the time.
        """
        for _ in range(ATTEMPTS_MAX):
            state = await read_state(fs)
            if not state.number:
                await _require_new(fs)
            check_same(state.identity, identity)
            entry = Begin(identity=identity)
            if await _take(fs, state.number + 1, entry):
                run = cls(fs, advance(state, state.number + 1, entry), on_step)
                on_step("begun")
                await run._put_in_place()
                await run._remove_leftovers()
                await run._write_state()  # runs that find nothing new leave entries too
                return run
        raise RunFenced(f"{ATTEMPTS_MAX} other runs have begun on this table meanwhile: run one at a time")

    def stage(self) -> str:
        """Return a folder within the table, new for each call, for files to be committed."""
        self._parts += 1
        return f"{STAGING}/{self._began}-{self._parts}"

    async def staged(self, folder: str) -> list[DataFile]:
        """Return the data files that Spark left in a folder of ``stage``, with their places in the table."""
        found = [
            DataFile(path.removeprefix(folder + "/"), path.removeprefix("/"), size)
            for path, size in await _walk(self._fs, folder)
        ]
        return sorted(found, key=lambda file: file.path)

    async def commit(self, entry: Append | FileRewrite) -> None:
        """Commit ``entry`` and put its files in place.

        Raises ManifestError if ``entry`` contradicts the table, RunFenced if another run has begun: then nothing is
        committed.  Only if the other run begins after the commit, and replaces its files while they are put in place,
        is RunFenced raised for a commit that stays.
        """
        state = advance(self.state, self.state.number + 1, entry)
        if not await _take(self._fs, state.number, entry):
            await self._fs.delete(f"{STAGING}/{self._began}-{self._parts}", recursive=True)  # no entry names its files
            raise RunFenced("another run has begun on this table: nothing was committed, and that one continues")
        self.state = state
        self._on_step("committed")
        await self._put_in_place()
        self._on_step("in place")
        await self._write_state()

    async def end(self) -> None:
        """Remove this run's files from staging; other runs' files there stay."""
        for part in range(1, self._parts + 1):
            await self._fs.delete(f"{STAGING}/{self._began}-{part}", recursive=True)

    async def _put_in_place(self) -> None:
        """Move and delete files as the last commit says.  May be done any number of times, also by two runs at once."""
        last = self.state.last
        if last is None:
            return
        if isinstance(last, FileRewrite):
            for path in last.removed:
                await self._fs.delete("/" + path)
                self._on_step("removed")
        for file in last.files:
            await self._place(file)
            self._on_step("placed")

    async def _place(self, file: DataFile) -> None:
        staged, path = "/" + file.staged, "/" + file.path
        if await _exists(self._fs, path):
            return
        try:
            await self._fs.rename(staged, path)
        except AlreadyExists:
            return
        except NoSuchFile:
            if await _exists(self._fs, staged):
                await _make_folder(self._fs, path.rpartition("/")[0])
                await self._fs.rename(staged, path)
            elif not await _exists(self._fs, path):
                await self._require_newest()
                raise ManifestError(f"{file.path} is committed, but is neither in its place nor in staging") from None

    async def _require_newest(self) -> None:
        numbers = await _numbers(self._fs)
        if max(numbers.entries | numbers.states, default=0) > self.state.number:
            raise RunFenced("another run has begun on this table: it continues from the last commit")

    async def _remove_leftovers(self) -> None:
        """Remove the files of runs before this one, none of which can commit any more."""
        folders = [child.path async for child in self._fs.list(STAGING)]
        for folder in folders:
            match = _STAGED.match(base_name(folder))
            if match is None or int(match[1]) < self._began:
                await self._fs.delete(folder, recursive=True)
                self._on_step("leftover removed")
        temporary = [child.path async for child in self._fs.list(LOG) if base_name(child.path).startswith(".")]
        for path in temporary:
            await self._fs.delete(path)

    async def _write_state(self) -> None:
        """Write a state once there are STATE_EVERY entries since the last, and remove the entries and states it
        replaces.

        All files are in place.
        """
        numbers = await _numbers(self._fs)
        known = max(numbers.states, default=0)
        if self.state.number - known >= STATE_EVERY:
            # The entry of that number is ours: if the name is taken, then by a call of ours that was repeated.
            with contextlib.suppress(AlreadyExists):
                await _write_whole(self._fs, f"{LOG}/{state_name(self.state.number)}", encode_state(self.state))
            self._on_step("state written")
            known = self.state.number
        for number in sorted(number for number in numbers.entries if number <= known):
            await self._fs.delete(f"{LOG}/{entry_name(number)}")
        for number in sorted(number for number in numbers.states if number < known):
            await self._fs.delete(f"{LOG}/{state_name(number)}")


# ------------------------------------------------------------------------------------------------------------ files


class _Numbers:
    """The numbers of the entries and states in the log's folder."""

    def __init__(self) -> None:
        self.entries: set[int] = set()
        self.states: set[int] = set()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers) and (self.entries, self.states) == (other.entries, other.states)

    __hash__ = None  # type: ignore[assignment]


async def _numbers(fs: FileSystem) -> _Numbers:
    found = _Numbers()
    async for child in fs.list(LOG):
        parsed = parse_name(base_name(child.path))
        if parsed is not None:
            (found.states if parsed[1] else found.entries).add(parsed[0])
    return found


async def _take(fs: FileSystem, number: int, entry: Entry) -> bool:
    """Write ``entry`` under that number; return False if another entry has it.

    An entry that a state replaces may be gone, and its name free.  A run that was suspended all that time then finds
    the state, and its entry is void.
    """
    token = uuid.uuid4().hex
    path = f"{LOG}/{entry_name(number)}"
    try:
        await _write_whole(fs, path, encode_entry(number, entry, token))
    except AlreadyExists:
        pass  # by another run, or by a repeated call of ours whose first response was lost: checked below
    except StorageError as error:
        if not await _exists(fs, path):
            if isinstance(error, NoSuchFile | LeaseLost):  # a run that began has removed our temporary file
                return False
            raise
    try:
        is_ours = decode_entry(number, await _read_whole(fs, path))[1] == token
    except NoSuchFile:
        is_ours = False
    if is_ours and max((await _numbers(fs)).states, default=0) >= number:
        await fs.delete(path)
        return False
    return is_ours


async def _write_whole(fs: FileSystem, path: str, data: bytes) -> None:
    """Write a file that appears whole or not at all.  Raises AlreadyExists if the name is taken."""
    folder, _, name = path.rpartition("/")
    spare = f"{folder}/.{name}-{uuid.uuid4().hex[:16]}"
    await write_once(fs, spare, data, _SMALL)
    try:
        await fs.rename(spare, path)
    except AlreadyExists:
        await fs.delete(spare)
        raise


async def _read_whole(fs: FileSystem, path: str) -> bytes:
    parts: list[bytes] = []
    while not parts or len(parts[-1]) == _READ_BYTES:
        parts.append(await fs.read(path, len(parts) * _READ_BYTES, _READ_BYTES))
    return b"".join(parts)


async def _exists(fs: FileSystem, path: str) -> bool:
    try:
        await fs.status(path)
    except NoSuchFile:
        return False
    return True


async def _walk(fs: FileSystem, folder: str) -> list[tuple[str, int]]:
    """Return (path, size) of all data files below ``folder``, without those of failed tasks (in ``_temporary``)."""
    found: list[tuple[str, int]] = []
    children = [child async for child in fs.list(folder) if not base_name(child.path).startswith(_HIDDEN)]
    for child in children:
        if child.is_dir:
            found += await _walk(fs, child.path)
        else:
            found.append((child.path, child.length))
    return found


async def _make_folder(fs: FileSystem, folder: str) -> None:
    """Create a folder, through a file in it: ``FileSystem`` makes folders for new files only."""
    probe = f"{folder}/.bmq-{uuid.uuid4().hex[:16]}"
    await write_once(fs, probe, b"\n", _SMALL)
    await fs.delete(probe)


async def _require_new(fs: FileSystem) -> None:
    names: Sequence[str] = [base_name(child.path) async for child in fs.list("/")]
    foreign = [name for name in names if not name.startswith(_HIDDEN)]
    if foreign:
        raise ManifestError(f"{fs.url} holds {foreign[0]} but not this job's log: give the table a folder of its own")

"""Reading slices: read ahead, within bounds; files that move or go; damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from bmq.core.records.cursor import read_batches
from bmq.spark.decoding.decoder import CorruptSegment
from bmq.spark.options import ReadOptions
from bmq.spark.planning.discover import find_logs, relocate
from bmq.spark.planning.slices import DataLoss, Range, Slice
from bmq.spark.reading import ranged_reader
from bmq.spark.reading.ranged_reader import RangedReader, ReadPolicy, path_of
from bmq.spark.reading.storage_loop import StorageLoop, storage_loop
from bmq.storage.filesystem import FileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.storing import Store, Written, batch, series

CHUNK = 1000


class Watched:
    """Counts reads under way; the test may hold them."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self.paths: list[str] = []
        self.before: Callable[[str], None] = lambda path: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    async def read(self, path: str, position: int, length: int) -> bytes:
        self.paths.append(path)
        self.before(path)
        return await self._fs.read(path, position, length)


@pytest.fixture
def io(monkeypatch: pytest.MonkeyPatch) -> StorageLoop:
    monkeypatch.setattr(ranged_reader, "CHUNK_BYTES", CHUNK)
    return storage_loop()


@pytest.fixture
def fs(io: StorageLoop) -> Watched:
    return Watched(MemoryFileSystem(MemoryStorage(), "test"))


def write(io: StorageLoop, fs: Watched, *segments: Sequence[bytes]) -> tuple[Store, list[Written]]:
    async def work() -> tuple[Store, list[Written]]:
        store = await Store(cast(FileSystem, fs)).create()
        return store, [await store.segment(each, n=n) for n, each in enumerate(segments)]

    return io.run(work())


def plan(io: StorageLoop, fs: Watched) -> list[Slice]:
    async def work() -> list[Slice]:
        options = ReadOptions.parse({"root": "memory:", "topic": "orders"})
        (view,) = await find_logs(cast(FileSystem, fs), options)
        return await view.slices(Range(view.log.start, view.log.end), read_committed=True)

    return io.run(work())


def reader(io: StorageLoop, fs: Watched, **policy: bool) -> RangedReader:
    of = cast(FileSystem, fs)
    return RangedReader(io, of, ReadPolicy(find=lambda piece: io.run(relocate(of, piece)), **policy))


def offsets(reader: RangedReader, pieces: Sequence[Slice]) -> Iterator[int]:
    for _, run in reader.runs(pieces):
        for each in read_batches(run.data):
            yield each.base_offset


def test_slices_in_order_across_chunks_and_files(io: StorageLoop, fs: Watched) -> None:
    """Batches straddle chunks, one is larger than some chunks together, and files end between."""
    write(io, fs, series(0, 50), [batch(50, b"x" * 3500), *series(51, 9)], series(60, 3))
    pieces = plan(io, fs)
    assert list(offsets(reader(io, fs), pieces)) == list(range(63))
    part = replace(pieces[0], start=20, end=30)
    assert list(offsets(reader(io, fs), [part, pieces[2]])) == [*range(20, 30), 60, 61, 62]


def test_read_ahead_is_bounded(io: StorageLoop, fs: Watched) -> None:
    """Read across two files: read-ahead keeps its bound, and is dropped with its reader."""
    write(io, fs, series(0, 100), series(100, 100))
    pieces = plan(io, fs)
    fs.paths.clear()
    runs = reader(io, fs).runs(pieces)
    for taken, _ in enumerate(runs, 1):
        assert len(fs.paths) <= taken + ranged_reader.AHEAD
        if taken == 12:
            break
    assert len(set(fs.paths)) == 1
    runs.close()  # type: ignore[attr-defined]
    before = len(fs.paths)
    assert list(offsets(reader(io, fs), pieces)) == list(range(200))
    assert len(fs.paths) > before


def test_rule_10_a_file_joined_while_being_read(io: StorageLoop, fs: Watched) -> None:
    store, written = write(io, fs, series(0, 50), series(50, 50), series(100, 5))
    pieces = plan(io, fs)
    names = [store.path().log(each.name) for each in written]

    def join_behind_the_third_read(path: str) -> None:
        if fs.paths.count(names[1]) == 3:
            fs.before = lambda path: None
            storage = fs._fs
            assert isinstance(storage, MemoryFileSystem)
            joined.append(io.submit(storage.concat(names[0], [names[1]])))

    joined: list[Any] = []
    fs.before = join_behind_the_third_read
    assert list(offsets(reader(io, fs), pieces)) == list(range(105))
    joined[0].result()
    fs.paths.clear()
    assert list(offsets(reader(io, fs), pieces)) == list(range(105)), "planned before, read after"
    assert names[1] in fs.paths


@pytest.mark.slow
@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_rule_10_a_file_deleted_after_it_was_planned(io: StorageLoop, fs: Watched, fail_on_data_loss: bool) -> None:
    store, written = write(io, fs, series(0, 50), series(50, 50))
    pieces = plan(io, fs)
    io.run(fs.delete(store.path().log(written[0].name)))
    found = offsets(reader(io, fs, fail_on_data_loss=fail_on_data_loss), pieces)
    if fail_on_data_loss:
        with pytest.raises(DataLoss, match="offsets 0 to 50 were deleted"):
            list(found)
    else:
        assert list(found) == list(range(50, 100))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_file_shorter_than_promised(io: StorageLoop, fs: Watched, fail_on_data_loss: bool) -> None:
    write(io, fs, series(0, 50))
    (piece,) = plan(io, fs)
    longer = replace(piece, end=60, end_position=piece.end_position + 5000)
    found = offsets(reader(io, fs, fail_on_data_loss=fail_on_data_loss), [longer])
    if fail_on_data_loss:
        with pytest.raises(DataLoss, match="offsets 50 to 60"):
            list(found)
    else:
        assert list(found) == list(range(50))


def test_damage_names_file_position_and_offset(io: StorageLoop, fs: Watched) -> None:
    good = series(0, 50)
    bad = b"".join([*good[:20], b"\xff" * len(good[20]), *good[21:]])
    write(io, fs, good)
    (piece,) = plan(io, fs)
    overwrite(io, fs, path_of(piece), bad)
    position = len(b"".join(good[:20]))
    with pytest.raises(CorruptSegment) as error:
        list(offsets(reader(io, fs), [piece]))
    assert (error.value.where, error.value.position, error.value.offset) == (path_of(piece), position, 20)
    permissive = reader(io, fs, permissive=True)
    assert list(offsets(permissive, [piece])) == [*range(20), *range(21, 50)]
    assert permissive.skipped_places == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 20, 49])
@pytest.mark.parametrize("byte", range(8))
def test_a_flipped_bit_in_a_base_offset_is_damage(io: StorageLoop, fs: Watched, number: int, byte: int) -> None:
    """No CRC covers it; whatever it makes of the offset, the slice does not hold what it was planned to hold."""
    good = series(0, 50)
    wrong = bytearray(good[number])
    wrong[byte] ^= 0x40
    write(io, fs, good)
    (piece,) = plan(io, fs)
    overwrite(io, fs, path_of(piece), b"".join([*good[:number], wrong, *good[number + 1 :]]))
    position = len(b"".join(good[:number]))
    for each in (piece, replace(piece, end=number + 1)):
        with pytest.raises(CorruptSegment) as error:
            list(offsets(reader(io, fs), [each]))
        assert (error.value.position, error.value.offset) == (position, number)
    permissive = reader(io, fs, permissive=True)
    assert list(offsets(permissive, [piece])) == [n for n in range(50) if n != number]
    assert permissive.skipped_places == 1


@pytest.mark.parametrize("is_compacted", [True, False])
@pytest.mark.parametrize("gap", [range(20, 25), range(45, 50)])
def test_holes_are_damage_whatever_the_topics_policy(
    io: StorageLoop, fs: Watched, gap: range, is_compacted: bool
) -> None:
    """Leave out batches in the middle, and up to the end that the index gives."""

    async def work() -> None:
        store = await Store(cast(FileSystem, fs)).create(is_compacted=is_compacted)
        left = [data for n, data in enumerate(series(0, 50)) if n not in gap]
        await store.segment(left, end=50)

    io.run(work())
    pieces = plan(io, fs)
    left = [n for n in range(50) if n not in gap]
    with pytest.raises(CorruptSegment) as error:
        list(offsets(reader(io, fs), pieces))
    assert error.value.offset == gap.start
    permissive = reader(io, fs, permissive=True)
    assert list(offsets(permissive, pieces)) == left
    assert permissive.skipped_places == 1


def test_a_slice_that_ends_in_a_batch(io: StorageLoop, fs: Watched) -> None:
    write(io, fs, series(0, 50))
    (piece,) = plan(io, fs)
    cut = replace(piece, end_position=piece.end_position - 1)
    with pytest.raises(CorruptSegment, match="the batch does not end"):
        list(offsets(reader(io, fs), [cut]))
    assert list(offsets(reader(io, fs, permissive=True), [cut])) == list(range(49))


def overwrite(io: StorageLoop, fs: Watched, path: str, data: bytes) -> None:
    async def work() -> None:
        await fs.delete(path)
        appender = await fs.create(path)
        appender.write(data)
        await appender.flush()
        await appender.close()

    io.run(work())

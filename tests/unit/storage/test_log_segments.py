"""A partition's segments as one log: listing, ends, and what retention decides."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence

import pytest

from bmq.core.model import SegmentName, cleaned_name
from bmq.storage import layout
from bmq.storage.filesystem import FileStatus, write_once
from bmq.storage.layout import PartitionPath
from bmq.storage.log_segments import (
    Extent,
    ListedSegment,
    LogSegments,
    Retained,
    expired,
    find_deletable,
    is_deletable,
    walk,
)
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.recovery import ends
from tests.harness.seeds import amount
from tests.unit.storage.layouts import Layouts, spans

PATH = PartitionPath("t", "id", 0)
S = SegmentName


class CountingFileSystem(MemoryFileSystem):
    """Counts its listings and the names it has listed, and questions for files."""

    listed = listings = questions = 0

    async def status(self, path: str) -> FileStatus:
        self.questions += 1
        return await super().status(path)

    async def list(self, path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        self.listings += 1
        async for status in super().list(path, after=after):
            self.listed += 1
            yield status


def filesystem(page: int = 1000) -> CountingFileSystem:
    return CountingFileSystem(MemoryStorage(page=page), "h")


async def put(fs: MemoryFileSystem, *names: SegmentName, idx: bool = False) -> None:
    for name in names:
        await write_once(fs, PATH.log(name), b"x" * 10)
        if idx:
            await write_once(fs, PATH.idx(name), b"i")


async def walked(fs: MemoryFileSystem, after: SegmentName | None = None) -> list[ListedSegment]:
    return [listed async for listed in walk(fs, PATH, after)]


def extents(segments: LogSegments) -> list[Extent]:
    return list(segments.between(0, 1 << 62))


async def test_walk_gives_ends_and_skips_temporary_files_and_foreign_names() -> None:
    fs = filesystem(page=2)
    await put(fs, S(0, 1, 0), S(10, 1, 1), S(25, 2, 0))
    await write_once(fs, PATH.idx(S(0, 1, 0)), b"i")
    for name in (".spare-00000002-0001-h", ".idx-x", "README"):
        await write_once(fs, f"{PATH.folder}/{name}", b"")
    found = await walked(fs)
    assert [(one.name, one.end, one.length, one.has_idx) for one in found] == [
        (S(0, 1, 0), 10, 10, True),
        (S(10, 1, 1), 25, 10, False),
        (S(25, 2, 0), None, 10, False),
    ]
    assert all(one.is_live for one in found)


async def test_rule_5_superseded_segments_are_empty_and_do_not_end_the_one_before_twice() -> None:
    fs = filesystem()
    await put(fs, S(0, 1, 0), S(10, 1, 1), S(10, 1, 2), S(10, 2, 0), S(20, 1, 3), S(30, 2, 1))
    found = await walked(fs)
    assert [(one.name, one.end, one.is_live) for one in found] == [
        (S(0, 1, 0), 10, True),
        (S(10, 1, 1), 10, False),
        (S(10, 1, 2), 10, False),
        (S(10, 2, 0), 30, True),
        (S(20, 1, 3), 20, False),  # a zombie's, registered before the one that covers it
        (S(30, 2, 1), None, True),
    ]


async def test_segments_numbered_past_four_digits_are_ordered_by_number() -> None:
    fs = filesystem()
    await put(fs, S(0, 1, 9998), S(5, 1, 9999), S(5, 1, 10000))
    segments = LogSegments(fs, PATH)
    await segments.cover(6)
    assert extents(segments) == [Extent(S(0, 1, 9998), 5), Extent(S(5, 1, 10000), None)]


async def test_an_index_without_a_log_is_listed_but_not_live() -> None:
    fs = filesystem()
    await put(fs, S(0, 1, 0), S(30, 1, 2))
    await write_once(fs, PATH.idx(S(10, 1, 1)), b"i")
    found = await walked(fs)
    assert [(one.name, one.end, one.has_log, one.is_live) for one in found] == [
        (S(0, 1, 0), 30, True, True),
        (S(10, 1, 1), 10, False, False),
        (S(30, 1, 2), None, True, True),
    ]


@pytest.mark.parametrize("seed", range(20))
async def test_the_walk_agrees_with_recovery_on_the_end_of_every_segment(seed: int) -> None:
    """Random histories in which every segment is registered at or past the last one's base."""
    rng = random.Random(seed)
    names, base, epoch, n = [], 0, 1, 0
    for _ in range(30):
        names.append(S(base, epoch, n))
        n += 1
        base += rng.choice((0, 0, 3, 7))
        if rng.random() < 0.3:
            epoch, n = epoch + 1, 0
    wanted = {name: name.base if end is not None and end <= name.base else end for name, end in _pairs(names)}

    fs = filesystem(page=3)
    shuffled = list(names)
    rng.shuffle(shuffled)
    await put(fs, *shuffled)
    assert {one.name: one.end for one in await walked(fs)} == wanted
    live = [one for one in await walked(fs) if one.is_live]
    middle = rng.choice(live)
    assert [one for one in await walked(fs, middle.name) if one.is_live] == live[live.index(middle) :]


def _pairs(names: Sequence[SegmentName]) -> list[tuple[SegmentName, int | None]]:
    return list(zip(names, ends(names), strict=True))


async def test_a_segment_is_found_by_offset_and_segments_by_range() -> None:
    fs = filesystem()
    await put(fs, S(10, 1, 0), S(20, 1, 1), S(30, 1, 2))
    segments = LogSegments(fs, PATH)
    assert segments.first_offset is None
    assert segments.find(0) is None
    await segments.cover(40)
    assert segments.first_offset == 10
    assert segments.find(9) is None
    assert segments.find(10) == segments.find(19) == Extent(S(10, 1, 0), 20)
    assert segments.find(99) == Extent(S(30, 1, 2), None)
    assert list(segments.between(15, 20)) == [Extent(S(10, 1, 0), 20)]
    assert list(segments.between(19, 21)) == [Extent(S(10, 1, 0), 20), Extent(S(20, 1, 1), 30)]
    assert list(segments.between(0, 10)) == []


@pytest.mark.slow
async def test_rule_8_covered_segments_are_not_listed_again_and_a_new_one_costs_one_entry() -> None:
    fs = filesystem()
    await put(fs, *(S(n * 10, 1, n) for n in range(300)))
    segments = LogSegments(fs, PATH)
    await segments.cover(3000)
    assert (len(segments), fs.listed) == (300, 300)
    await segments.cover(2500)
    assert fs.listed == 300
    await put(fs, S(3000, 1, 300))
    await segments.cover(3005)
    assert fs.listed == 302  # the last one known, and the new one
    assert segments.find(3004) == Extent(S(3000, 1, 300), None)
    assert segments.find(2999) == Extent(S(2990, 1, 299), 3000)


async def test_the_owners_current_segment_saves_a_listing_only_if_it_is_the_last_known_one() -> None:
    fs = filesystem()
    await put(fs, S(0, 1, 0))
    segments = LogSegments(fs, PATH)
    await segments.cover(5)
    await segments.cover(8, current=S(0, 1, 0))
    assert segments.listings == 1
    await put(fs, S(10, 1, 1), S(20, 1, 2))
    await segments.cover(25, current=S(20, 1, 2))
    assert segments.listings == 2
    assert [extent.name.base for extent in extents(segments)] == [0, 10, 20]


@pytest.mark.slow
async def test_rule_10_refresh_after_retention_drops_all_older_ones_at_the_cost_of_a_page() -> None:
    fs = filesystem(page=50)
    names = [S(n * 10, 1, n) for n in range(500)]
    await put(fs, *names)
    segments = LogSegments(fs, PATH)
    await segments.cover(5000)
    for name in names[:100]:
        await fs.delete(PATH.log(name))
    fs.listed = 0
    await segments.refresh(names[40])
    assert segments.first_offset == 1000
    assert len(segments) == 400
    assert fs.listed <= 50


@pytest.mark.slow
@pytest.mark.parametrize("missed", [101, 105, 119])
async def test_rule_10_refresh_after_concat_gives_the_range_to_the_file_that_swallowed_it(missed: int) -> None:
    fs = filesystem(page=50)
    names = [S(n * 10, 1, n) for n in range(200)]
    await put(fs, *names)
    segments = LogSegments(fs, PATH)
    await segments.cover(2000)
    await fs.concat(PATH.log(names[100]), [PATH.log(name) for name in names[101:120]])
    await segments.refresh(names[missed])
    assert segments.find(missed * 10) == Extent(names[100], 1200)
    assert [extent.name for extent in extents(segments)] == names[:101] + names[120:]


async def test_refresh_of_an_emptied_folder_and_of_a_name_already_gone() -> None:
    fs = filesystem()
    await put(fs, S(0, 1, 0), S(10, 1, 1))
    segments = LogSegments(fs, PATH)
    await segments.cover(20)
    await segments.refresh(S(5, 1, 7))
    assert len(segments) == 2
    await fs.delete(PATH.log(S(0, 1, 0)))
    await fs.delete(PATH.log(S(10, 1, 1)))
    await segments.refresh(S(0, 1, 0))
    assert len(segments) == 0
    await put(fs, S(20, 2, 0))
    await segments.cover(20)
    assert extents(segments) == [Extent(S(20, 2, 0), None)]


# ------------------------------------------------------------------------------------------------------- retention

NOW = 10_000
A, B, C = (Retained(0, 10, 100, 1_000), Retained(10, 20, 100, 5_000), Retained(20, 30, 100, 9_000))
OPEN = Retained(30, None, 50, None)


@pytest.mark.parametrize(
    ("label", "segments", "options", "wanted"),
    [
        ("for ever", [A, B, C, OPEN], {}, 0),
        ("nothing at all", [], {"retention_ms": 0, "retention_bytes": 0}, 0),
        ("by time: the oldest", [A, B, C, OPEN], {"retention_ms": 6_000}, 10),
        ("by time: exactly as old stays", [A, B, C, OPEN], {"retention_ms": 9_000}, 0),
        ("by time: a millisecond more goes", [A, B, C, OPEN], {"retention_ms": 8_999}, 10),
        ("by time: all but the one written", [A, B, C, OPEN], {"retention_ms": 0}, 30),
        ("by time: an old one behind a young one stays", [C, A._replace(base=30, end=40)], {"retention_ms": 6_000}, 0),
        ("by time: not looked up is not old", [A._replace(timestamp=None), B], {"retention_ms": 0}, 0),
        ("by size: keeps at least as much as asked", [A, B, C, OPEN], {"retention_bytes": 151}, 10),
        ("by size: exactly as much may stay", [A, B, C, OPEN], {"retention_bytes": 150}, 20),
        ("by size: the one written counts", [A, B, C, OPEN], {"retention_bytes": 250}, 10),
        ("by size: enough room", [A, B, C, OPEN], {"retention_bytes": 351}, 0),
        ("by size: none kept, but the one written", [A, B, C, OPEN], {"retention_bytes": 0}, 30),
        ("both: time goes further", [A, B, C, OPEN], {"retention_ms": 2_000, "retention_bytes": 250}, 20),
        ("both: size goes further", [A, B, C, OPEN], {"retention_ms": 6_000, "retention_bytes": 50}, 30),
        ("never past the watermark", [A, B, C, OPEN], {"retention_ms": 0, "high_watermark": 25}, 20),
        ("below the log start is gone already", [A, B, C], {"log_start": 15, "retention_bytes": 200}, 15),
        ("never backwards", [A, B, C], {"log_start": 28, "retention_ms": 6_000}, 28),
    ],
)
def test_the_log_start_after_retention_in_each_case_of_the_table(
    label: str, segments: list[Retained], options: dict[str, int], wanted: int
) -> None:
    arguments = {"now_ms": NOW, "retention_ms": -1, "retention_bytes": -1, "high_watermark": 40, "log_start": 0}
    assert expired(segments, **(arguments | options)) == wanted, label


def test_only_a_segment_that_ends_at_or_below_the_log_start_is_deletable() -> None:
    live = ListedSegment(S(10, 1, 1), 20, 5, 0, True)
    assert is_deletable(live, 20)
    assert not is_deletable(live, 19)
    assert not is_deletable(live._replace(end=None), 20)
    superseded = live._replace(end=10)
    assert is_deletable(superseded, 11)
    assert not is_deletable(superseded, 10)


# ------------------------------------------------------------------------------------------- cleaned segments


@pytest.mark.parametrize("after", [None, S(100, 1, 1, 3)])
async def test_a_cleaned_segment_hides_its_sources_and_the_name_that_sorts_behind_it(after: SegmentName | None) -> None:
    fs = filesystem(page=2)
    sources = (S(100, 1, 1, 2), S(110, 1, 2), S(120, 2, 0))
    await put(fs, *sources, cleaned_name(sources), S(130, 2, 1), idx=True)
    assert cleaned_name(sources) == S(100, 2, 0, 3)
    names = [layout.base_name(status.path) async for status in fs.list(PATH.folder)]
    assert names[0].endswith("-0001-00000002.idx")
    found = await walked(fs, after)
    assert [(one.name, one.end) for one in found] == [
        (S(100, 1, 1, 2), 100),
        (S(100, 2, 0, 3), 130),
        (S(110, 1, 2), 110),
        (S(120, 2, 0), 120),
        (S(130, 2, 1), None),
    ]


async def test_a_segment_cleaned_alone_is_hidden_by_the_result() -> None:
    fs = filesystem()
    await put(fs, S(0, 1, 0), S(10, 1, 1), S(10, 1, 1, 1), S(20, 1, 2))
    assert [one.name for one in await walked(fs) if one.is_live] == [S(0, 1, 0), S(10, 1, 1, 1), S(20, 1, 2)]
    names = [status.path async for status in fs.list(PATH.folder, after=f"{10:020d}")]
    assert names[0] == PATH.log(S(10, 1, 1, 1)), "the name of the source sorts behind it: nothing may rely on order"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_any_part_of_the_sources_reads_as_the_cleaned_file_alone(seed: int) -> None:
    """20,000 layouts, 10^5 of a soak: nested cleanings, merged sources, failed registrations.

    ``recovery.ends`` agrees with names.
    """
    rng, checked = random.Random(seed), 0
    while checked < amount(1_000, 5_000):
        layouts = Layouts(rng)
        for _ in range(6):
            if rng.random() < 0.3:
                layouts.register()
            elif rng.random() < 0.3:
                layouts.merge()
            elif len(layouts.live) > 1:
                sources, _ = layouts.clean()
                alone = [*layouts.superseded, *layouts.live]
                wanted = spans(alone)
                assert [name for name, _ in wanted] == layouts.live
                left = [name for name in sources if rng.random() < 0.5]
                for kept in (left, sources):
                    assert spans([*alone, *kept]) == wanted
                    by_order = sorted([*alone, *kept], key=lambda name: name.order)
                    by_recovery = zip(by_order, ends(by_order), strict=True)
                    found = [(name, end) for name, end in by_recovery if end is None or end > name.base]
                    assert sorted(found) == wanted
                    checked += 1


@pytest.mark.parametrize("seed", range(20))
async def test_the_walk_over_files_agrees_with_the_reading_rule_beside_cleaned_ones(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        layouts = Layouts(rng)
        sources, _ = layouts.clean() if len(layouts.live) > 1 else ([], None)
        names = [*layouts.superseded, *layouts.live, *(name for name in sources if rng.random() < 0.5)]
        fs = filesystem(page=2)
        await put(fs, *names)
        found = [(one.name, one.end) for one in await walked(fs) if one.is_live]
        assert found == spans(names)
        after = rng.choice(found)[0]
        assert [(one.name, one.end) for one in await walked(fs, after) if one.is_live] == found[
            [name for name, _ in found].index(after) :
        ]


@pytest.mark.parametrize("seed", range(20))
async def test_a_crash_between_any_two_deletes_makes_no_source_live_again(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(15):
        layouts = Layouts(rng)
        hidden = list(layouts.superseded)
        for _ in range(2):
            if len(layouts.live) > 1:
                hidden += [name for name in layouts.clean()[0] if rng.random() < 0.7]
        fs = filesystem(page=3)
        await put(fs, *hidden, *layouts.live)
        log_start = rng.randrange(layouts.end + 1)
        limit = rng.randrange(1, 4)
        while True:
            found, is_more, _ = await find_deletable(fs, PATH, log_start, limit, lambda _: False)
            assert len(found) <= limit + 1
            for listed in found:
                await fs.delete(PATH.log(listed.name))
                live = {one.name for one in await walked(fs) if one.is_live}
                assert live <= set(layouts.live)
            assert found or not is_more
            if not is_more:
                break
        kept = [one for one in await walked(fs) if one.is_live]
        assert all(one.end is None or one.end > log_start for one in kept)
        assert kept[-1].name == layouts.live[-1]


@pytest.mark.slow
@pytest.mark.parametrize("missed", [100, 101, 150, 227])
@pytest.mark.parametrize(("first", "listings"), [(0, 1), (150, 1), (400, 2)])
async def test_a_cleaned_range_is_listed_once_for_all_its_sources(missed: int, first: int, listings: int) -> None:
    """Find the range with a second listing only in a log of more names than the first listing takes."""
    fs = filesystem()
    names = [S(n * 10, 1, n) for n in range(first + 300)]
    await put(fs, *names)
    segments = LogSegments(fs, PATH)
    await segments.cover(first * 10 + 3_000)
    sources = names[first + 100 : first + 228]
    cleaned = cleaned_name(sources)
    await put(fs, cleaned)
    for name in sources:
        await fs.delete(PATH.log(name))
    fs.listings = fs.listed = 0
    for name in (names[first + missed], *sources):
        await segments.refresh(name)
    assert fs.listings == listings
    assert fs.questions <= 4
    assert [extent.name for extent in extents(segments)] == [*names[: first + 100], cleaned, *names[first + 228 :]]
    await segments.cover(first * 10 + 3_000)
    assert fs.listings == listings, "all that was covered is still known"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_a_reader_that_knows_sources_finds_the_cleaned_file_at_any_step(seed: int) -> None:
    """The reader lists before the swap, and asks again for a name that is gone: it then knows the live names."""
    rng = random.Random(seed)
    for _ in range(10):
        layouts = Layouts(rng)
        fs = filesystem(page=3)
        await put(fs, *layouts.superseded, *layouts.live)
        segments = LogSegments(fs, PATH)
        await segments.cover(rng.randrange(layouts.end + 1))
        for step in range(3):
            if len(layouts.live) < 2:
                layouts.register()
                await put(fs, layouts.live[-1])
            sources, cleaned = layouts.clean() if len(layouts.live) > 1 else ([], layouts.live[0])
            before = [extent.name for extent in extents(segments)]
            await put(fs, cleaned) if sources else None
            for source in sources:
                await fs.delete(PATH.log(source))
                if rng.random() < 0.5:
                    await segments.cover(layouts.end + rng.randrange(9))
            layouts.register()
            await put(fs, layouts.live[-1])
            await segments.cover(1 << (40 + 2 * step))
            missing = [name for name in before if name in sources]
            for name in rng.sample(missing, len(missing)):
                await segments.refresh(name)
            await segments.cover(2 << (40 + 2 * step))
            assert [(one.name, one.end) for one in extents(segments)] == spans([*layouts.superseded, *layouts.live])

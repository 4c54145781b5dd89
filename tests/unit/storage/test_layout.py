"""Names on storage (storage/layout.py): each is built and parsed back, foreign ones are not ours, and order is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.model import CLEANING_MAX, SegmentName, cleaned_name
from bmq.storage import layout
from bmq.storage.layout import PartitionPath

NAMES = st.builds(
    SegmentName,
    base=st.integers(0, (1 << 63) - 1),
    epoch=st.integers(0, 99_999_999),
    n=st.integers(0, 1_000_000),
    cleaning=st.just(0) | st.integers(1, CLEANING_MAX),
)
HOLDERS = st.from_regex(r"[0-9]{1,5}-[0-9a-f]{16}", fullmatch=True)


def path(topic: str = "orders") -> PartitionPath:
    return PartitionPath(topic, "00000000-0000-0000-0000-000000000007", 12)


def test_paths_are_those_drawn_in_the_module() -> None:
    folder = "/topics/orders/00000000-0000-0000-0000-000000000007/12"
    name = SegmentName(123, 4, 5)
    assert path().folder == folder
    assert path().log(name) == f"{folder}/00000000000000000123-00000004-0005.log"
    assert path().idx(name) == f"{folder}/00000000000000000123-00000004-0005.idx"
    assert path().spare(4, 5, "7-ab") == f"{folder}/.spare-00000004-0005-7-ab"
    assert layout.journal("7-ab", 3) == "/journals/7-ab-00000003.jnl"
    assert layout.topic_json("orders", 88) == "/topics/orders/topic-88.json"
    assert str(path()) == "orders-12"


@pytest.mark.slow
@given(NAMES)
def test_segment_names_both_ways(name: SegmentName) -> None:
    assert layout.parse_segment(layout.base_name(path().log(name))) == (name, "log")
    assert layout.parse_segment(layout.base_name(path().idx(name))) == (name, "idx")


def test_only_a_cleaned_segment_has_a_cleaning_number_in_its_name() -> None:
    cleaned = SegmentName(123, 4, 5, 6)
    assert path().log(cleaned).endswith("/00000000000000000123-00000004-0005-00000006.log")
    assert path().idx(cleaned).endswith("/00000000000000000123-00000004-0005-00000006.idx")
    for text in ("-00000000", "-0006", "-000000006", "-00000006-00000001", "-"):
        assert layout.parse_segment(f"00000000000000000123-00000004-0005{text}.log") is None


def test_a_cleaned_segment_is_named_after_its_first_and_its_last_source() -> None:
    sources = [SegmentName(10, 1, 3, 7), SegmentName(20, 2, 0, 2), SegmentName(30, 4, 1)]
    assert cleaned_name(sources) == SegmentName(10, 4, 1, 8)
    assert cleaned_name(sources[-1:]) == SegmentName(30, 4, 1, 1)
    with pytest.raises(ValueError, match="has a source"):
        cleaned_name([])
    with pytest.raises(ValueError, match="does not fit"):
        cleaned_name([SegmentName(0, 1, 1, CLEANING_MAX)])


@pytest.mark.slow
@given(st.integers(0, 99_999_999), st.integers(0, 1_000_000), HOLDERS)
def test_spare_names_both_ways(epoch: int, n: int, holder: str) -> None:
    """A spare file is not a segment: only a final name means registered (rule 3)."""
    file_name = layout.base_name(path().spare(epoch, n, holder))
    assert layout.parse_spare(file_name) == (epoch, n, holder)
    assert layout.parse_segment(file_name) is None
    assert file_name.startswith(".")


@pytest.mark.slow
@given(HOLDERS, st.integers(0, 99_999_999))
def test_journal_names_both_ways(incarnation: str, n: int) -> None:
    assert layout.parse_journal(layout.base_name(layout.journal(incarnation, n))) == (incarnation, n)


@given(st.integers(0, 1 << 63))
def test_topic_files_both_ways(revision: int) -> None:
    assert layout.parse_topic_json(layout.base_name(layout.topic_json("t", revision))) == revision


@pytest.mark.slow
@given(st.lists(NAMES.filter(lambda name: name.n < 10_000), max_size=10))
def test_byte_order_is_offset_order_then_registration_order(names: list[SegmentName]) -> None:
    """A listing by pages relies on the order of bases; a cleaned segment's name sorts before its last source's."""
    by_bytes = sorted(names, key=lambda name: layout.base_name(path().log(name)).encode())
    assert by_bytes == sorted(names, key=lambda name: (*name[:3], name.cleaning or CLEANING_MAX + 1))


@pytest.mark.slow
@given(NAMES, NAMES)
def test_registration_order_is_epoch_then_n(one: SegmentName, other: SegmentName) -> None:
    """Segments are in order of registration whatever their bases are (rule 5); cleanings follow their last source."""
    assert (one.registration < other.registration) == ((one.epoch, one.n) < (other.epoch, other.n))
    assert (one.order < other.order) == (one[1:] < other[1:])


@pytest.mark.slow
@given(st.lists(st.integers(0, 99_999_999), max_size=8))
def test_byte_order_of_journals_is_their_number(numbers: list[int]) -> None:
    assert sorted(numbers) == sorted(numbers, key=lambda n: layout.journal("7-ab", n).encode())


@pytest.mark.parametrize(
    "name",
    [
        "",
        "00000000000000000123-00000004-0005",
        "00000000000000000123-00000004-0005.log.tmp",
        "00000000000000000123-00000004-0005.logs",
        "00000000000000000123-00000004-0005.LOG",
        "00000000000000000123-00000004-005.log",
        "0000000000000000123-00000004-0005.log",
        "000000000000000000123-00000004-0005.log",
        "-0000000000000000123-00000004-0005.log",
        "00000000000000000123-00000004-0005.log\n",
        ".idx-00000000000000000123-00000004-0005",
        "topic-5.json",
        "cluster.json",
    ],
)
def test_foreign_names_are_no_segments(name: str) -> None:
    assert layout.parse_segment(name) is None


@pytest.mark.parametrize("name", ["", ".spare-", ".spare-4-5-h", "spare-00000004-0005-h", ".spare-00000004-0005-"])
def test_foreign_names_are_no_spares(name: str) -> None:
    assert layout.parse_spare(name) is None


@pytest.mark.parametrize("name", ["", "-00000001.jnl", "b-0000001.jnl", "b-00000001.jnl~", "b-00000001", "b.jnl"])
def test_foreign_names_are_no_journals(name: str) -> None:
    assert layout.parse_journal(name) is None


@pytest.mark.parametrize("name", ["", "topic-.json", "topic-1.json.tmp", "topic-x.json", "topic--1.json", "a-1.json"])
def test_foreign_names_are_no_topic_files(name: str) -> None:
    assert layout.parse_topic_json(name) is None


@pytest.mark.slow
@given(st.text(max_size=60))
def test_parsers_take_any_text(name: str) -> None:
    """A folder may hold anything; what is taken for ours is built back to the same name."""
    segment, spare, journal = layout.parse_segment(name), layout.parse_spare(name), layout.parse_journal(name)
    assert segment is None or f"{segment[0]}.{segment[1]}" == name
    assert spare is None or layout.base_name(path().spare(*spare)) == name
    assert journal is None or layout.base_name(layout.journal(*journal)) == name


def test_digits_are_ascii() -> None:
    """Other scripts' digits are digits to Python, but would be built back to another name."""
    arabic = "".join(chr(0x660 + int(digit)) for digit in "00000001")
    assert layout.parse_segment(f"{'0' * 20}-{arabic}-0001.log") is None
    assert layout.parse_spare(f".spare-{arabic}-0001-h") is None
    assert layout.parse_journal(f"b-{arabic}.jnl") is None
    assert layout.parse_topic_json(f"topic-{arabic}.json") is None


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "__consumer_offsets", "...", ".a", "a" * 249, "-"])
def test_topic_names_of_kafkas_rule(name: str) -> None:
    assert layout.is_topic_name(name)
    assert path(name).folder.split("/")[2] == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a" * 250, "a/b", "../x", "a b", "a\n", "a\0", "é", "a:b", "a\\b", "a*", "٣"]
)
def test_bad_topic_names_never_become_a_path(name: str) -> None:
    assert not layout.is_topic_name(name)
    with pytest.raises(ValueError, match="is not a topic name"):
        path(name)

"""Levels of features: what a version supports, and the words in which a gap is named."""

from __future__ import annotations

import pytest

from bmq.core.features import (
    FEATURES,
    Feature,
    FeatureTable,
    LevelRange,
    UnsupportedLevel,
    decode_levels,
    highest_common,
    unsupported,
    without_zeros,
)

TABLE = FeatureTable((Feature("transaction.version", LevelRange(0, 2)), Feature("x", LevelRange(1, 3))))


def test_this_version_supports_transactions_of_version_2_clients_and_cleaned_segments() -> None:
    assert FEATURES.ranges == {"compaction.version": LevelRange(0, 1), "transaction.version": LevelRange(0, 2)}
    assert {each.name: set(each.safe_downgrades) for each in FEATURES.features} == {
        "compaction.version": set(),  # cleaned segments stay on storage
        "transaction.version": {(2, 1)},
    }


def test_a_version_without_compaction_refuses_a_root_or_a_cluster_with_cleaned_segments_by_name() -> None:
    """Spark jobs, repairs and processes meet the level in a root's folder ``/levels``, or in the store."""
    before = FeatureTable(tuple(each for each in FEATURES.features if each.name != "compaction.version"))
    with pytest.raises(UnsupportedLevel, match=r"compaction\.version 1 is in force, this version supports 0 to 0"):
        before.check({"compaction.version": 1, "transaction.version": 2}, "file:///root/levels")
    members = [FEATURES.ranges, before.ranges]
    assert highest_common("compaction.version", members) == 0, "an older member keeps the level at 0"
    assert highest_common("compaction.version", members[:1]) == 1


@pytest.mark.parametrize(
    ("levels", "names"),
    [
        ({"x": 1}, []),
        ({"x": 3, "transaction.version": 2}, []),
        ({}, ["x"]),  # level 0 is below its range
        ({"x": 4}, ["x"]),
        ({"x": 1, "transaction.version": 3}, ["transaction.version"]),
        ({"x": 1, "unknown": 1}, ["unknown"]),
        ({"x": 1, "unknown": 0}, []),
    ],
)
def test_a_level_outside_of_the_range_is_found(levels: dict[str, int], names: list[str]) -> None:
    assert [gap.feature for gap in unsupported(levels, TABLE.ranges)] == names


def test_a_process_says_which_level_it_does_not_support_and_what_to_do() -> None:
    with pytest.raises(UnsupportedLevel) as refused:
        FEATURES.check({"transaction.version": 3}, "file:///root/levels")
    text = str(refused.value)
    assert text.startswith(
        "file:///root/levels: transaction.version 3 is in force, this version supports 0 to 2. Use a version of BMQ"
    )
    assert 0 < text.index("`bmq cluster features --downgrade NAME=LEVEL`") < text.index("`kafka-features.sh ")
    assert "\n" not in text
    FEATURES.check({}, "anywhere")


def test_the_highest_common_level() -> None:
    def common(*ranges: tuple[int, int] | None) -> int | None:
        return highest_common("f", [{} if each is None else {"f": LevelRange(*each)} for each in ranges])

    assert common((0, 2), (0, 1), (1, 3)) == 1
    assert common((0, 2), None) == 0, "a process that does not know the feature supports level 0"
    assert common((0, 1), (2, 3)) is None
    assert common() == 0


def test_levels_have_one_form() -> None:
    assert without_zeros({"b": 1, "a": 2, "c": 0}) == {"a": 2, "b": 1}
    assert decode_levels({"b": 1, "c": 0}) == {"b": 1}


@pytest.mark.parametrize("raw", [None, [], {"a": "1"}, {"a": True}, {"a": -1}, {"a": 1 << 15}, {"a": 1.0}])
def test_what_is_no_level_is_refused(raw: object) -> None:
    with pytest.raises(ValueError, match=r"level"):
        decode_levels(raw)

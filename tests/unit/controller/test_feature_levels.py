"""The leader's decisions about levels of features: each state of the record with each state of the members."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bmq.controller.feature_levels import (
    FileLevels,
    Step,
    WriteRecord,
    next_step,
    unable,
    updated,
    waits_for,
)
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import Feature, FeatureTable, FeatureUpdate, LevelRange, Ranges, UpgradeType
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels

TABLE = FeatureTable((Feature("f", LevelRange(0, 2), frozenset({(2, 1), (1, 0)})),))
RAISE, SAFE, UNSAFE = (kind.value for kind in UpgradeType)


def supports(highest: int, lowest: int = 0) -> Ranges:
    return {"f": LevelRange(lowest, highest)}


AT_0 = NO_LEVELS
AT_1 = FeatureLevels(epoch=1, levels={"f": 1})
AT_2 = FeatureLevels(epoch=2, levels={"f": 2})
HELD_AT_1 = replace(AT_1, held=frozenset({"f"}))
TO_1 = FeatureLevels(intended={"f": 1})
TO_2 = replace(AT_1, intended={"f": 2})
HELD_TO_2 = replace(HELD_AT_1, intended={"f": 2})
RECORDS = {"AT_0": AT_0, "AT_1": AT_1, "AT_2": AT_2, "HELD_AT_1": HELD_AT_1, "TO_1": TO_1, "TO_2": TO_2,
           "HELD_TO_2": HELD_TO_2}  # fmt: skip
MEMBERS: dict[str, dict[str, Ranges]] = {
    "nobody": {},
    "all": {"a": supports(2), "b": supports(3)},
    "one to 1": {"a": supports(2), "b": supports(1)},
    "one without": {"a": supports(2), "old": {}},
}
FILE = FileLevels()


def intended(record: FeatureLevels, level: int) -> Step:
    return WriteRecord(replace(record, intended={"f": level}), "intended")


def done(record: FeatureLevels, level: int) -> Step:
    after = replace(record, epoch=record.epoch + 1, levels={"f": level}, intended={})
    return WriteRecord(after, "finalized")


def withdrawn(record: FeatureLevels) -> Step:
    return WriteRecord(replace(record, intended={}), "withdrawn")


EXPECTED: dict[tuple[str, str], Step | None] = {
    # at rest, filed
    ("AT_0", "nobody"): intended(AT_0, 2),
    ("AT_0", "all"): intended(AT_0, 2),
    ("AT_0", "one to 1"): intended(AT_0, 1),
    ("AT_0", "one without"): None,
    ("AT_1", "nobody"): intended(AT_1, 2),
    ("AT_1", "all"): intended(AT_1, 2),
    ("AT_1", "one to 1"): None,
    ("AT_1", "one without"): None,
    ("AT_2", "nobody"): None,
    ("AT_2", "all"): None,
    ("AT_2", "one to 1"): None,
    ("AT_2", "one without"): None,
    ("HELD_AT_1", "nobody"): None,
    ("HELD_AT_1", "all"): None,
    ("HELD_AT_1", "one to 1"): None,
    ("HELD_AT_1", "one without"): None,
    # an intention that storage has
    ("TO_1", "nobody"): done(TO_1, 1),
    ("TO_1", "all"): done(TO_1, 1),
    ("TO_1", "one to 1"): done(TO_1, 1),
    ("TO_1", "one without"): withdrawn(TO_1),
    ("TO_2", "nobody"): done(TO_2, 2),
    ("TO_2", "all"): done(TO_2, 2),
    ("TO_2", "one to 1"): withdrawn(TO_2),
    ("TO_2", "one without"): withdrawn(TO_2),
    ("HELD_TO_2", "nobody"): done(HELD_TO_2, 2),
    ("HELD_TO_2", "all"): done(HELD_TO_2, 2),
    ("HELD_TO_2", "one to 1"): withdrawn(HELD_TO_2),
    ("HELD_TO_2", "one without"): withdrawn(HELD_TO_2),
}


@pytest.mark.parametrize(("record", "members"), list(itertools.product(RECORDS, MEMBERS)))
def test_each_record_with_each_state_of_the_members(record: str, members: str) -> None:
    expected = EXPECTED[record, members]
    assert next_step(RECORDS[record], MEMBERS[members], TABLE, is_filed=True) == expected
    is_withdrawn = isinstance(expected, WriteRecord) and expected.what == "withdrawn"
    unfiled = next_step(RECORDS[record], MEMBERS[members], TABLE, is_filed=False)
    assert unfiled == (expected if is_withdrawn else FILE), "storage has a level before it is in force"


def test_a_level_that_the_leader_itself_does_not_support_is_withdrawn() -> None:
    record = FeatureLevels(intended={"f": 3})
    assert next_step(record, {"a": supports(3)}, TABLE, is_filed=True) == withdrawn(record)


def test_a_level_below_a_members_lowest_is_not_reached() -> None:
    assert next_step(AT_0, {"a": supports(1), "b": supports(2, lowest=2)}, TABLE, is_filed=True) is None


def test_a_table_at_level_0_writes_no_record() -> None:
    table = FeatureTable((Feature("f", LevelRange(0, 0)),))
    assert next_step(NO_LEVELS, MEMBERS["all"], table, is_filed=True) is None


def test_the_members_that_a_level_waits_for() -> None:
    assert waits_for(AT_1, MEMBERS["one to 1"], TABLE) == ["b"]
    assert waits_for(HELD_AT_1, MEMBERS["one to 1"], TABLE) == []
    assert waits_for(AT_2, MEMBERS["one to 1"], TABLE) == []
    assert unable({"f": 1}, MEMBERS["one without"]) == ["old"]


# ------------------------------------------------------------------------------------------------ operators' requests


def update(level: int, kind: int = RAISE, name: str = "f") -> FeatureUpdate:
    return FeatureUpdate(name, level, kind)


@pytest.mark.parametrize(
    ("record", "wanted", "after"),
    [
        (AT_0, update(2), FeatureLevels(intended={"f": 2})),
        (AT_0, update(1), FeatureLevels(intended={"f": 1}, held=frozenset({"f"}))),
        (HELD_AT_1, update(2), TO_2),
        (AT_2, update(1, SAFE), FeatureLevels(epoch=3, levels={"f": 1}, held=frozenset({"f"}))),
        (AT_2, update(1, UNSAFE), FeatureLevels(epoch=3, levels={"f": 1}, held=frozenset({"f"}))),
        (AT_1, update(0, SAFE), FeatureLevels(epoch=2, held=frozenset({"f"}))),
        (AT_2, update(2), AT_2),
        (TO_2, update(1), HELD_AT_1),  # the intention is given up
        (TO_2, update(0, SAFE), FeatureLevels(epoch=2, held=frozenset({"f"}))),
    ],
)
def test_an_operators_update(record: FeatureLevels, wanted: FeatureUpdate, after: FeatureLevels) -> None:
    assert updated(record, [wanted], MEMBERS["all"], TABLE) == after


@pytest.mark.parametrize(
    ("record", "wanted", "reason"),
    [
        (AT_0, update(1, 0), "The controller does not support the given upgrade type."),
        (AT_0, update(1, 4), "The controller does not support the given upgrade type."),
        (AT_0, update(-1), "A feature version cannot be less than 0."),
        (AT_0, update(3), "The controller only supports versions 0 to 2."),
        (AT_0, update(1, name="g"), "The controller does not support this feature."),
        (AT_0, update(2), "Member b only supports versions 0 to 1."),
        (
            AT_2,
            update(1),
            "Can't downgrade the version of this feature without setting the upgrade type to either safe",
        ),
        (AT_0, update(1, SAFE), "Can't downgrade to a newer version."),
        (AT_0, update(1, UNSAFE), "Can't downgrade to a newer version."),
        (AT_2, update(0, SAFE), "The downgrade from 2 is not safe, and is refused"),
        (AT_2, update(0, UNSAFE), "The downgrade from 2 is not safe, and is refused"),
    ],
)
def test_a_refused_update_has_kafkas_words(record: FeatureLevels, wanted: FeatureUpdate, reason: str) -> None:
    with pytest.raises(RequestError) as refused:
        updated(record, [wanted], MEMBERS["one to 1"], TABLE)
    assert refused.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert refused.value.message.startswith(
        f"Invalid update version {wanted.level} for feature {wanted.name}. {reason}"
    )


def test_one_refused_update_refuses_all() -> None:
    table = FeatureTable((*TABLE.features, Feature("g", LevelRange(0, 1))))
    with pytest.raises(RequestError):
        updated(AT_0, [update(1), update(1, name="g")], {"a": supports(1)}, table)

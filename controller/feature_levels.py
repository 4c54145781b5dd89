"""The leader's decisions about the levels of features: pure functions of the record, the members and storage.

A level is raised in steps, and a later leader can go on after any of them.  *Filed*: storage has the levels of the
record's present revision (``storage.feature_levels``).

=================  =============================  ===================================================================
the record         the members                    next step
=================  =============================  ===================================================================
intends levels     one does not support them      withdraw: the record without the intention
intends, unfiled   all support them               file the intended levels: readers of storage know them first
intends, filed     all support them               finalize: the levels are in force from this revision on
rests, unfiled     any                            file: a lowered level leaves the record first, then storage
rests, filed       all support a higher level     intend it, unless an operator holds the feature at its level
rests, filed       one does not                   nothing
no record          all support a level above 0    intend it
=================  =============================  ===================================================================

The members are looked at again after the intention is written.  A later registration compares the record's revision, so
the process supports the intention or is refused; an earlier registration is among the members by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import (
    LEVEL_MAX,
    UNKNOWN,
    UPGRADE_TYPES,
    FeatureTable,
    FeatureUpdate,
    Levels,
    Ranges,
    UpgradeType,
    highest_common,
    without_zeros,
)
from bmq.meta.cluster.levels import FeatureLevels

Members = Mapping[str, Ranges]
"""The supported levels of the registered members, by incarnation."""


@dataclass(frozen=True, slots=True)
class FileLevels:
    """A step: file the record's highest levels on storage."""


class WriteRecord(NamedTuple):
    """A step: write the record, compared with the revision that was decided on; ``what`` happens by it."""

    record: FeatureLevels
    what: str


Step = FileLevels | WriteRecord


def next_step(record: FeatureLevels, members: Members, table: FeatureTable, *, is_filed: bool) -> Step | None:
    """Return the next step of the module's table; None if nothing is to be done.

    ``members`` must be shown up to the record's revision at least.  ``table``: the features of the leader's version.
    ``is_filed`` is true without a record.
    """
    if record.intended:
        if unable(record.intended, {**members, "the leader itself": table.ranges}):
            return WriteRecord(replace(record, intended={}), "withdrawn")
        return finalized(record) if is_filed else FileLevels()
    if not is_filed:
        return FileLevels()
    intended = _raised(record, members, table)
    return WriteRecord(replace(record, intended=intended), "intended") if intended else None


def finalized(record: FeatureLevels) -> WriteRecord:
    """Return the step by which the record's intended levels are in force."""
    levels = without_zeros({**record.levels, **record.intended})
    return WriteRecord(replace(record, epoch=record.epoch + 1, levels=levels, intended={}), "finalized")


def unable(levels: Levels, members: Members) -> list[str]:
    """Return the members without support of all these levels, by name.  Other features do not matter."""
    return sorted(
        name
        for name, ranges in members.items()
        if any(not ranges.get(feature, UNKNOWN).has(level) for feature, level in levels.items())
    )


def waits_for(record: FeatureLevels, members: Members, table: FeatureTable) -> list[str]:
    """Return the members for which the leader's own highest levels wait, by name."""
    wanted = {feature.name: feature.supported.highest for feature in table.features if feature.name not in record.held}
    return unable({name: level for name, level in wanted.items() if level > record.of(name)}, members)


def _raised(record: FeatureLevels, members: Members, table: FeatureTable) -> dict[str, int]:
    """Return the levels that can be raised now, by feature."""
    raised: dict[str, int] = {}
    everybody = [*members.values(), table.ranges]
    for feature in table.features:
        highest = None if feature.name in record.held else highest_common(feature.name, everybody)
        if highest is not None and highest > record.of(feature.name):
            raised[feature.name] = highest
    return raised


# ---------------------------------------------------------------------------------------------- operators' requests


def updated(
    record: FeatureLevels, updates: Sequence[FeatureUpdate], members: Members, table: FeatureTable
) -> FeatureLevels:
    """Return the record after an operator's updates; equal to ``record`` if nothing changes.

    A lowered level is in force at once, and held.  A raised level is intended, and held if the leader supports a higher
    level: it would finalize the higher level next.  Raises RequestError INVALID_UPDATE_VERSION for
    the first update that is refused, with Kafka's texts (``FeatureControlManager``).
    """
    levels, intended, held = dict(record.levels), dict(record.intended), set(record.held)
    for update in updates:
        _check(record, update, members, table)
        feature = table.find(update.name)
        assert feature is not None, "the update was checked"
        intended.pop(update.name, None)
        if update.level > record.of(update.name):
            intended[update.name] = update.level
        elif update.level < record.of(update.name):
            levels[update.name] = update.level
        if update.level < feature.supported.highest:
            held.add(update.name)
        else:
            held.discard(update.name)
    levels = without_zeros(levels)
    epoch = record.epoch + (levels != dict(record.levels))
    return FeatureLevels(epoch=epoch, levels=levels, held=frozenset(held), intended=dict(sorted(intended.items())))


def _check(record: FeatureLevels, update: FeatureUpdate, members: Members, table: FeatureTable) -> None:
    """Raise RequestError INVALID_UPDATE_VERSION if the update is not allowed."""
    feature, before = table.find(update.name), record.of(update.name)
    if update.kind not in UPGRADE_TYPES:
        raise _invalid(update, "The controller does not support the given upgrade type.")
    kind = UpgradeType(update.kind)
    if not 0 <= update.level <= LEVEL_MAX:
        raise _invalid(update, "A feature version cannot be less than 0.")
    if feature is None:
        raise _invalid(update, "The controller does not support this feature.")
    if not feature.supported.has(update.level):
        raise _invalid(update, f"The controller only supports versions {feature.supported}.")
    missing = unable({update.name: update.level}, members)
    if missing:
        ranges = members[missing[0]].get(update.name, UNKNOWN)
        raise _invalid(update, f"Member {missing[0]} only supports versions {ranges}.")
    if update.level < before and kind is UpgradeType.UPGRADE:
        text = "Can't downgrade the version of this feature without setting the upgrade type to"
        raise _invalid(update, f"{text} either safe or unsafe downgrade.")
    if update.level > before and kind is not UpgradeType.UPGRADE:
        raise _invalid(update, "Can't downgrade to a newer version.")
    if update.level < before and (before, update.level) not in feature.safe_downgrades:
        text = "what was written at the present version would be misread"
        raise _invalid(update, f"The downgrade from {before} is not safe, and is refused: {text}.")


def _invalid(update: FeatureUpdate, reason: str) -> RequestError:
    text = f"Invalid update version {update.level} for feature {update.name}. {reason}"
    return RequestError(ErrorCode.INVALID_UPDATE_VERSION, text)

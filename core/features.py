"""Feature levels: what the processes of a cluster may write, and others must be able to read (KIP-584, KIP-1022).

A feature is a part of the formats or protocols that a later version extends.  Its level is a number: at 0 nothing of
the feature is written.  A level is *in force* once the cluster's record has it as finalized (``meta.cluster.levels``).
Nothing of a level is written before, and no process, tool or Spark job that does not support the level goes on after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from bmq.core.errors import FormatError

LEVEL_MAX = (1 << 15) - 1
"""The largest level: Kafka's requests have an int16."""
Levels = Mapping[str, int]
"""Levels by feature.  A feature that is absent is at level 0."""


class LevelRange(NamedTuple):
    """The lowest and the highest level of a feature that a process supports."""

    lowest: int
    highest: int

    def has(self, level: int) -> bool:
        """Return whether ``level`` is within the range."""
        return self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"


Ranges = Mapping[str, LevelRange]
"""Supported levels by feature."""
UNKNOWN = LevelRange(0, 0)
"""The range of a process that does not know the feature."""


class Feature(NamedTuple):
    """A feature of this version.

    ``safe_downgrades``: pairs of levels, from and to, between which the level may be lowered.  Processes at the second
    level read everything written at the first level.
    """

    name: str
    supported: LevelRange
    safe_downgrades: frozenset[tuple[int, int]] = frozenset()


class UnsupportedLevel(FormatError):
    """A level is in force that this version does not support; ``what`` has the finding, ``str`` the remedy too."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. {REMEDY}")
        self.what = what


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """The features of one version of the code."""

    features: tuple[Feature, ...]

    @property
    def ranges(self) -> Ranges:
        """The supported levels by feature."""
        return {feature.name: feature.supported for feature in self.features}

    def find(self, name: str) -> Feature | None:
        """Return the feature of this name; None if this version does not know it."""
        return next((feature for feature in self.features if feature.name == name), None)

    def check(self, levels: Levels, place: str) -> None:
        """Raise UnsupportedLevel if a level at ``place``, a path or a key, is not supported."""
        gaps = unsupported(levels, self.ranges)
        if gaps:
            raise UnsupportedLevel(f"{place}: {'; '.join(gap.text('this version') for gap in gaps)}")


REMEDY = (
    "Use a version of BMQ that supports the level. Or lower the level first, from a cluster of the version that raised"
    " it: `bmq cluster features --downgrade NAME=LEVEL`, or `kafka-features.sh --bootstrap-server ... downgrade"
    " --feature NAME=LEVEL`"
)
"""The remedy for a level beyond the version's own."""
TRANSACTION_VERSION = "transaction.version"
"""The feature of transactions: at level 0 nothing transactional is written.

At level 2 clients add partitions by Produce 12 and TxnOffsetCommit 5, and each end bumps the epoch (KIP-890).  The
request's version decides so, not the level: a transaction goes on through a change of the level.  Processes at level 1
read all that is written at level 2.
"""
COMPACTION_VERSION = "compaction.version"
"""The feature of compaction, BMQ's own: at level 0 no segment is cleaned, and no name has a cleaning number.

Versions without it do not parse the name of a cleaned segment: they would read its sources, and a hole once these are
deleted.  A level above 0 is never lowered: cleaned segments stay on storage.
"""
FEATURES = FeatureTable(
    (
        Feature(COMPACTION_VERSION, LevelRange(0, 1)),
        Feature(TRANSACTION_VERSION, LevelRange(0, 2), frozenset({(2, 1)})),
    )
)
"""The features of this version."""


class Gap(NamedTuple):
    """A level in force that a process does not support."""

    feature: str
    level: int
    supported: LevelRange

    def text(self, who: str, state: str = "is in force") -> str:
        """Return the gap in words; ``who`` is the process or version that does not support the level."""
        return f"{self.feature} {self.level} {state}, {who} supports {self.supported}"


def unsupported(levels: Levels, ranges: Ranges) -> list[Gap]:
    """Return the levels that are outside of ``ranges``, by name.  A feature without a level is at 0."""
    names = sorted(levels.keys() | ranges.keys())
    found = [Gap(name, levels.get(name, 0), ranges.get(name, UNKNOWN)) for name in names]
    return [gap for gap in found if not gap.supported.has(gap.level)]


def highest_common(name: str, members: Iterable[Ranges]) -> int | None:
    """Return the highest level of a feature that all ``members`` support; None if there is no such level."""
    ranges = [each.get(name, UNKNOWN) for each in members]
    highest = min((each.highest for each in ranges), default=0)
    return highest if all(each.has(highest) for each in ranges) else None


def without_zeros(levels: Levels) -> dict[str, int]:
    """Return the levels above 0, by name: equal levels have one form."""
    return {name: level for name, level in sorted(levels.items()) if level}


def decode_levels(raw: object) -> dict[str, int]:
    """Return levels as JSON has them, without zeros.  Raises ValueError if they are not levels."""
    if not isinstance(raw, dict):
        raise ValueError(f"{raw!r:.80} are not levels")
    for name, level in raw.items():
        if type(level) is not int or not 0 <= level <= LEVEL_MAX:
            raise ValueError(f"{name!r:.80} has level {level!r:.80}")
    return without_zeros(raw)


# ---------------------------------------------------------------------------------------------- operators' requests


class UpgradeType(Enum):
    """Kinds of change in an UpdateFeatures request, with Kafka's codes."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


UPGRADE_TYPES = frozenset(kind.value for kind in UpgradeType)


class FeatureUpdate(NamedTuple):
    """A level that an operator requests for a feature; ``kind`` is the code of an ``UpgradeType``, or another one."""

    name: str
    level: int
    kind: int

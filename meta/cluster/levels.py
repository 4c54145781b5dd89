"""The levels of features in force in the cluster, and the levels intended next (``core.features``).

::

    cluster/features    {"format": 1, "epoch": n, "levels": {...}, "held": [...], "intended": {...}}

Only the leader writes the record (``controller.feature_levels``).  ``intended`` are the levels that it is about to
finalize.  A process registers only if it supports both, by a commit that compares the record's revision: see
``meta.cluster.membership``.  So all members that support the intention, after it is written, go on doing so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from bmq.core.errors import FormatError
from bmq.core.features import Levels, decode_levels

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevels:
    """The cluster's levels; without a record all levels are 0.

    ``epoch`` counts the changes of ``levels``.  ``held``: features that stay at their level until an operator raises
    it.  ``intended``: levels that the leader is about to finalize, by feature.
    """

    epoch: int = 0
    levels: Levels = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    intended: Levels = field(default_factory=dict)

    def of(self, name: str) -> int:
        """Return the feature's level in force."""
        return self.levels.get(name, 0)

    @property
    def highest(self) -> Levels:
        """The maximum of the level in force and the intended level, by feature: readers must support it."""
        names = sorted(self.levels.keys() | self.intended.keys())
        return {name: max(self.of(name), self.intended.get(name, 0)) for name in names}


NO_LEVELS = FeatureLevels()


def encode_record(record: FeatureLevels) -> bytes:
    """Return the record as JSON."""
    fields = {
        "format": FORMAT,
        "epoch": record.epoch,
        "levels": dict(record.levels),
        "held": sorted(record.held),
        "intended": dict(record.intended),
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_record(data: bytes) -> FeatureLevels:
    """Return the record in ``data``.  Raises FormatError if it is not one, or is of a later format."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise FormatError(f"levels of features are of format {raw['format']!r:.80}: this version reads {FORMAT}")
        epoch, held = raw["epoch"], raw["held"]
        if type(epoch) is not int or not isinstance(held, list) or not all(isinstance(each, str) for each in held):
            raise ValueError(f"epoch {epoch!r:.80}, held {held!r:.80}")
        return FeatureLevels(
            epoch=epoch,
            levels=decode_levels(raw["levels"]),
            held=frozenset(held),
            intended=_intended(raw.get("intended", {})),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"not the levels of features: {data[:80]!r} ({error!r})") from error


def _intended(raw: object) -> dict[str, int]:
    """Return the intended levels.  Raises ValueError if they are not levels, or 0: a level is intended to be raised."""
    intended = decode_levels(raw)
    if not isinstance(raw, dict) or len(intended) != len(raw):
        raise ValueError(f"intended {raw!r:.80}")
    return intended

"""The table of effects."""

from __future__ import annotations

from typing import get_args

from bmq.broker.events import Effect
from bmq.broker.partition.effects import PERFORM


def test_every_effect_is_performed() -> None:
    assert set(PERFORM) == set(get_args(Effect))

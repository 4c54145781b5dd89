"""The settings of upkeep."""

from __future__ import annotations

import pytest

from bmq.broker.cleanup.config import JanitorConfig


def test_a_janitor_config_out_of_range_names_the_setting() -> None:
    with pytest.raises(ValueError, match="jobs_per_round"):
        JanitorConfig(jobs_per_round=0).validate()
    with pytest.raises(ValueError, match="merge_after"):
        JanitorConfig(merge_after=0).validate()

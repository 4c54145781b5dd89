"""The table of internal topics."""

from __future__ import annotations

import pytest

from bmq.controller.topics import internal_topics
from bmq.core.config import NodeConfig
from bmq.meta import topic_configs
from bmq.meta.catalog import INTERNAL_TOPICS


def test_each_internal_topic_has_an_entry() -> None:
    assert set(internal_topics.BY_NAME) == INTERNAL_TOPICS


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
@pytest.mark.parametrize("copies", [1, 3])
def test_its_configs_are_valid_and_no_more_copies_are_asked_for_than_storage_keeps(name: str, copies: int) -> None:
    configs = internal_topics.BY_NAME[name].configs(NodeConfig(), copies)
    assert topic_configs.validate(configs) == configs
    assert configs["cleanup.policy"] == "compact"
    assert int(configs.get("min.insync.replicas", "1")) <= copies


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_its_setting_is_kafkas_name_of_a_setting_of_the_process(name: str) -> None:
    assert internal_topics.BY_NAME[name].setting.replace(".", "_") in NodeConfig.__dataclass_fields__

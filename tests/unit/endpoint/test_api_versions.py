"""ApiVersions: the registered ranges, unknown versions of itself, and clients' names."""

from __future__ import annotations

import pytest

from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode
from bmq.core.features import Feature, FeatureTable, LevelRange
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import ApiVersionsResponse
from bmq.endpoint import api_versions
from bmq.endpoint.api_versions import SOFTWARE_KEPT
from bmq.meta.cluster.levels import FeatureLevels
from tests.harness.scopes import make_endpoint, make_scopes
from tests.unit.endpoint.endpoints import Asker, counters, decoded, endpoint, joined, versions


@pytest.mark.slow
@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_the_registrations(version: int) -> None:
    asker = Asker()
    response = endpoint()(versions(version), asker)
    message = decoded(response, ApiVersionsResponse, version)
    ranges = {each.api_key: (each.min_version, each.max_version) for each in message.api_keys}
    assert message.error_code == 0
    assert ranges == {ApiKey.PRODUCE: (0, 13), ApiKey.HEARTBEAT: (1, 4), ApiKey.API_VERSIONS: (0, 4)}
    assert asker.client_software == (("librdkafka", "2.3.0-rc1") if version >= 3 else ("", ""))
    if version >= 3:
        supported = [(each.name, each.min_version, each.max_version) for each in message.supported_features]
        known = [("compaction.version", 0, 1), ("transaction.version", 0, 2)]
        assert supported == (known if version == 4 else []), "KAFKA-17492"
        assert not message.finalized_features


@pytest.mark.parametrize("version", [5, 99, 32_767, -1])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(version: int) -> None:
    """The client's body may be of an unknown form (KIP-511)."""

    data = bytearray(versions(3))
    data[2:4] = version.to_bytes(2, "big", signed=True)
    made = endpoint()
    response = made(memoryview(data[:8] + b"\xff\xff\xff"), Asker())
    expected = (9).to_bytes(4, "big") + (35).to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\0\x12\0\0\0\x04"
    assert joined(response) == expected
    assert counters(made, ApiKey.API_VERSIONS).errors == {ErrorCode.UNSUPPORTED_VERSION: 1}


@pytest.mark.parametrize("name", ["", "a b", "-a", "a-", "ä", "a\n", ".a"])
async def test_a_software_name_that_kafka_refuses_is_an_invalid_request(name: str) -> None:
    for asked in (versions(3, name), versions(4, software=name)):
        asker, made = Asker(), endpoint()
        assert joined(made(asked, asker)) == b"\0\0\0\x09\0\x2a\x01\0\0\0\0\0"  # in the asked version
        assert asker.client_software == ("", "")
        assert counters(made, ApiKey.API_VERSIONS).errors == {42: 1}


async def test_little_of_a_software_name_is_kept() -> None:
    asker = Asker()
    response = endpoint()(versions(4, "n" * 5_000, "1" * 2_000), asker)
    assert decoded(response, ApiVersionsResponse, 4).error_code == 0
    assert asker.client_software == ("n" * SOFTWARE_KEPT, "1" * SOFTWARE_KEPT)


@pytest.mark.parametrize("version", range(5))
async def test_features_above_level_0_are_listed_with_the_levels_in_force(version: int) -> None:
    table = FeatureTable(
        (Feature("f", LevelRange(0, 2)), Feature("g", LevelRange(1, 3)), Feature("none", LevelRange(0, 0)))
    )
    levels = FeatureLevels(epoch=5, levels={"f": 1, "g": 2, "none": 1}, intended={"f": 2})
    scopes = make_scopes(clock=LoopClock(), features=table, levels=lambda: levels)
    message = decoded(
        make_endpoint(scopes, api_versions.APIS)(versions(version), Asker()), ApiVersionsResponse, version
    )
    assert message.error_code == 0
    if version < 3:
        return
    supported = [(each.name, each.min_version, each.max_version) for each in message.supported_features]
    assert supported == ([("f", 0, 2), ("g", 1, 3)] if version == 4 else [("g", 1, 3)]), "KAFKA-17492"
    finalized = [(each.name, each.min_version_level, each.max_version_level) for each in message.finalized_features]
    assert finalized == [("f", 1, 1), ("g", 2, 2)]
    assert message.finalized_features_epoch == 5
    assert not message.zk_migration_ready

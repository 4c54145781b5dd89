"""DescribeConfigs in every version: values, their sources, and no secrets."""

from __future__ import annotations

import pytest

from bmq.core.config import NodeConfig
from bmq.core.wire.messages import DescribeLogDirsRequest
from bmq.proxy.handlers import describe_log_dirs
from tests.unit.proxy.handlers.admin_requests import BROKER, DESCRIBE, TOPIC, describe, versions
from tests.unit.proxy.handlers.admin_serving import serving


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_configs_are_described_with_their_sources_in_every_version(version: int) -> None:
    async with serving(config=NodeConfig(node_id=7, log_retention_ms=99)) as w:
        await w.admin.create_topic("t", configs={"segment.ms": "8"})
        await w.admin.alter_broker_configs(None, {"log.segment.bytes": "2000000"})
        asked = describe(
            (TOPIC, "t", None), (TOPIC, "t", ["segment.ms"]), (BROKER, "7", None), (BROKER, "", None),
            (TOPIC, "none", None), (TOPIC, "a b", None), (BROKER, "8", None), (BROKER, "x", None), (16, "7", None),
            synonyms=True, documentation=version >= 3,
        )  # fmt: skip
        found = (await w.ask(DESCRIBE, version, asked)).results
        assert [(r.resource_type, r.resource_name, r.error_code) for r in found] == [
            (TOPIC, "t", 0), (TOPIC, "t", 0), (BROKER, "7", 0), (BROKER, "", 0), (TOPIC, "none", 3),
            (TOPIC, "a b", 17), (BROKER, "8", 42), (BROKER, "x", 42), (16, "7", 42),
        ]  # fmt: skip
        configs = {config.name: config for config in found[0].configs}
        assert [c.name for c in found[1].configs] == ["segment.ms"]
        values = {name: (configs[name].value, configs[name].config_source) for name in configs}
        assert values["segment.ms"] == ("8", 1)
        assert values["segment.bytes"] == ("2000000", 3)
        assert values["retention.ms"] == ("99", 4)
        assert values["retention.bytes"] == ("-1", 5)
        assert [(s.name, s.value, s.source) for s in configs["segment.ms"].synonyms] == [
            ("segment.ms", "8", 1), ("log.roll.ms", "604800000", 5),
        ]  # fmt: skip
        if version >= 3:
            assert configs["segment.ms"].config_type == 5
            assert "closed" in configs["segment.ms"].documentation
        node = {config.name: config for config in found[2].configs}
        assert node["num.partitions"].read_only
        assert not node["log.retention.ms"].read_only
        assert (node["log.retention.ms"].value, node["log.segment.bytes"].value) == ("99", "2000000")
        assert [(c.name, c.value, c.config_source) for c in found[3].configs] == [("log.segment.bytes", "2000000", 3)]
        found = (await w.ask(DESCRIBE, version, describe((TOPIC, "t", ["segment.ms"])))).results
        assert found[0].configs[0].synonyms == []
        assert not found[0].configs[0].documentation


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_secrets_are_not_described(version: int) -> None:
    secret = "S3cret"
    config = NodeConfig(
        node_id=7, meta=f"etcd://bmq:{secret}@h:2379", root=f"hdfs://bmq:{secret}@nn:8020/a", ssl_key_password=secret,
        delegation_token_secret_key=secret,
        listener_settings=(
            ("listener.name.plaintext.plain.sasl.jaas.config", secret),
            ("listener.name.plaintext.ssl.client.auth", "required"),
        ),
    )  # fmt: skip

    async with serving(config=config) as w:
        await w.admin.create_topic("t")
        asked = describe((BROKER, "7", None), (TOPIC, "t", None), (BROKER, "", None), synonyms=True)
        response = await w.ask(DESCRIBE, version, asked)
        assert secret not in repr(response)
        node = {config.name: config for config in response.results[0].configs}
        meta = node["meta"]
        assert (meta.value, meta.is_sensitive, meta.config_source) == (None, True, 4)
        assert [synonym.value for synonym in meta.synonyms] == [None, None]
        if version >= 3:
            assert meta.config_type == 9  # PASSWORD
        assert (node["root"].value, node["root"].is_sensitive) == ("hdfs://***@nn:8020/a", False)
        assert [config.name for config in node.values() if config.is_sensitive] == [
            "delegation.token.secret.key", "internal.secret", "internal.ssl.key.password",
            "internal.ssl.keystore.certificate.chain", "internal.ssl.keystore.key", "internal.ssl.keystore.password",
            "internal.ssl.truststore.certificates", "internal.ssl.truststore.password",
            "listener.name.plaintext.plain.sasl.jaas.config", "meta",
            "meta_password", "sasl.jaas.config", "schema_registry_url", "ssl.key.password",
            "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.password",
            "ssl.truststore.certificates", "ssl.truststore.password",
        ]  # fmt: skip
        own = node["listener.name.plaintext.ssl.client.auth"]
        assert (own.value, own.config_source, own.read_only) == ("required", 4, True)
        log_dirs = await w.ask(describe_log_dirs.APIS[0], 4, DescribeLogDirsRequest(topics=None))
        assert secret not in repr(log_dirs)

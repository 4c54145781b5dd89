"""A topic's configs: Kafka 4's names, types, defaults and checks, and the value in force.  Pure.

A topic has overrides only.  The values without an override come from the broker config named by ``ConfigKey.server``,
in Kafka's order: dynamic on the node, dynamic for the cluster, static, default.  Some names have no effect here,
because storage replicates and not the broker.  They are accepted, checked and shown, so that tools which set them go on
working; their help text says so.  ``flush.mode`` is not one of Kafka's.

Departures: ``index.interval.bytes`` is 65,536 by default (Kafka: 4,096), since storage is read in blocks of at least
that; an empty ``cleanup.policy`` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from bmq.core.config import NodeConfig
from bmq.core.file_access import check_mode, check_name
from bmq.meta.config_values import (
    BrokerLayers,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Described,
    Setting,
    at_least,
    between,
    one_of,
)

_NO_EFFECT = "Has no effect here, kept for Kafka's tools: "
_LONG_MAX = 9_223_372_036_854_775_807


def _check_cleanup(value: list[str]) -> str:
    if not value or set(value) - {"compact", "delete"} or len(set(value)) != len(value):
        return "must be delete, compact, or compact,delete"
    return ""


def _check_tiered(value: bool) -> str:
    return "there is no tiered storage: all segments lie on the cluster's storage already" if value else ""


def _check_throttled(value: list[str]) -> str:
    """Check as Kafka's ThrottledReplicaListValidator does: ``*`` or a list of ``partition:broker``."""
    pairs = [part.split(":") for part in value]
    if value == ["*"] or all(len(pair) == 2 and all(part.isdigit() for part in pair) for pair in pairs):
        return ""
    return "must be the literal '*' or a list of replicas as [partitionId]:[brokerId]"


def _gzip_level(value: int) -> str:
    return "" if value == -1 else between(1, 9)(value)


_KEYS = (
    ConfigKey(
        name="cleanup.policy",
        kind=ConfigType.LIST,
        default="delete",
        server="log.cleanup.policy",
        check=_check_cleanup,
        doc="delete: old segments are deleted by retention.ms and retention.bytes. compact: closed segments are "
        "cleaned, so that for every key the last record stays. compact,delete: both. With compact, records without a "
        "key are refused.",
    ),
    ConfigKey(
        name="compression.gzip.level",
        kind=ConfigType.INT,
        default="-1",
        server="compression.gzip.level",
        check=_gzip_level,
        doc="The level when compression.type is gzip; -1 is the codec's own.",
    ),
    ConfigKey(
        name="compression.lz4.level",
        kind=ConfigType.INT,
        default="9",
        server="compression.lz4.level",
        check=between(1, 17),
        doc="The level when compression.type is lz4.",
    ),
    ConfigKey(
        name="compression.type",
        kind=ConfigType.STRING,
        default="producer",
        server="compression.type",
        check=one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        doc="The codec that batches are stored with; producer keeps what the producer chose.",
    ),
    ConfigKey(
        name="compression.zstd.level",
        kind=ConfigType.INT,
        default="3",
        server="compression.zstd.level",
        check=between(-131_072, 22),
        doc="The level when compression.type is zstd.",
    ),
    ConfigKey(
        name="delete.retention.ms",
        kind=ConfigType.LONG,
        default="86400000",
        server="log.cleaner.delete.retention.ms",
        check=at_least(0),
        doc="How long compaction keeps a tombstone, and the marker of a transaction, after the round that found it "
        "without older records.",
    ),
    ConfigKey(
        name="file.delete.delay.ms",
        kind=ConfigType.LONG,
        default="60000",
        server="log.segment.delete.delay.ms",
        check=at_least(0),
        doc="How long a file that is no longer part of the log stays on storage for processes that still read it.",
    ),
    ConfigKey(
        name="flush.messages",
        kind=ConfigType.LONG,
        default=str(_LONG_MAX),
        server="log.flush.interval.messages",
        check=at_least(1),
        doc=_NO_EFFECT + "every acknowledged record is flushed; see flush.mode.",
    ),
    ConfigKey(
        name="flush.mode",
        kind=ConfigType.STRING,
        default="hflush",
        check=one_of("hflush", "hsync"),
        doc="hflush: acknowledged when all datanodes of the pipeline have the bytes in memory. hsync: when they have "
        "them on disk. Not one of Kafka's.",
    ),
    ConfigKey(
        name="flush.ms",
        kind=ConfigType.LONG,
        default=str(_LONG_MAX),
        server="log.flush.interval.ms",
        check=at_least(0),
        doc=_NO_EFFECT + "every acknowledged record is flushed; see flush.mode.",
    ),
    ConfigKey(
        name="follower.replication.throttled.replicas",
        kind=ConfigType.LIST,
        default="",
        check=_check_throttled,
        doc=_NO_EFFECT + "there are no followers.",
    ),
    ConfigKey(
        name="index.interval.bytes",
        kind=ConfigType.INT,
        default="65536",
        server="log.index.interval.bytes",
        check=at_least(0),
        doc="Bytes of the log between two entries of its index.",
    ),
    ConfigKey(
        name="leader.replication.throttled.replicas",
        kind=ConfigType.LIST,
        default="",
        check=_check_throttled,
        doc=_NO_EFFECT + "there are no followers.",
    ),
    ConfigKey(
        name="local.retention.bytes",
        kind=ConfigType.LONG,
        default="-2",
        server="log.local.retention.bytes",
        check=at_least(-2),
        doc=_NO_EFFECT + "there is no tiered storage.",
    ),
    ConfigKey(
        name="local.retention.ms",
        kind=ConfigType.LONG,
        default="-2",
        server="log.local.retention.ms",
        check=at_least(-2),
        doc=_NO_EFFECT + "there is no tiered storage.",
    ),
    ConfigKey(
        name="max.compaction.lag.ms",
        kind=ConfigType.LONG,
        default=str(_LONG_MAX),
        server="log.cleaner.max.compaction.lag.ms",
        check=at_least(1),
        doc="The age of a record at which its log is cleaned whatever its dirty ratio; the open segment is closed at "
        "this age. A log without produces then goes on in an empty segment, so that all of it is cleaned.",
    ),
    ConfigKey(
        name="max.message.bytes",
        kind=ConfigType.INT,
        default="1048588",
        server="message.max.bytes",
        check=at_least(0),
        doc="The largest record batch, as it comes compressed.",
    ),
    ConfigKey(
        name="message.timestamp.after.max.ms",
        kind=ConfigType.LONG,
        default="3600000",
        server="log.message.timestamp.after.max.ms",
        check=at_least(0),
        doc="How far a record's timestamp may be ahead of the server's clock.",
    ),
    ConfigKey(
        name="message.timestamp.before.max.ms",
        kind=ConfigType.LONG,
        default=str(_LONG_MAX),
        server="log.message.timestamp.before.max.ms",
        check=at_least(0),
        doc="How far a record's timestamp may be behind the server's clock.",
    ),
    ConfigKey(
        name="message.timestamp.type",
        kind=ConfigType.STRING,
        default="CreateTime",
        server="log.message.timestamp.type",
        check=one_of("CreateTime", "LogAppendTime"),
        doc="Whether records keep the producer's timestamp or get the time of their arrival.",
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        kind=ConfigType.DOUBLE,
        default="0.5",
        server="log.cleaner.min.cleanable.ratio",
        check=between(0, 1),
        doc="A log is cleaned when its bytes since the last cleaning are more than this part of all it would clean.",
    ),
    ConfigKey(
        name="min.compaction.lag.ms",
        kind=ConfigType.LONG,
        default="0",
        server="log.cleaner.min.compaction.lag.ms",
        check=at_least(0),
        doc="How long a record stays as it is: segments with a younger record are not cleaned yet.",
    ),
    ConfigKey(
        name="min.insync.replicas",
        kind=ConfigType.INT,
        default="1",
        server="min.insync.replicas",
        check=at_least(1),
        doc="Copies that a batch sent with acks=all has when it is acknowledged: its segment is written to so many "
        "datanodes at least. While storage has fewer, such produces wait 5 s and are then refused with "
        "NOT_ENOUGH_REPLICAS. A local folder keeps one copy, so more than 1 refuses them all. Brokers' defaults do not "
        "bind internal topics; __transaction_state has a value of its own.",
    ),
    ConfigKey(
        name="preallocate",
        kind=ConfigType.BOOLEAN,
        default="false",
        server="log.preallocate",
        doc=_NO_EFFECT + "storage reserves blocks itself.",
    ),
    ConfigKey(
        name="remote.log.copy.disable",
        kind=ConfigType.BOOLEAN,
        default="false",
        doc=_NO_EFFECT + "there is no tiered storage.",
    ),
    ConfigKey(
        name="remote.log.delete.on.disable",
        kind=ConfigType.BOOLEAN,
        default="false",
        doc=_NO_EFFECT + "there is no tiered storage.",
    ),
    ConfigKey(
        name="remote.storage.enable",
        kind=ConfigType.BOOLEAN,
        default="false",
        check=_check_tiered,
        doc="Only false: all segments lie on the cluster's storage already.",
    ),
    ConfigKey(
        name="retention.bytes",
        kind=ConfigType.LONG,
        default="-1",
        server="log.retention.bytes",
        doc="A partition's size from which on its oldest segments are deleted; -1 is no bound.",
    ),
    ConfigKey(
        name="retention.ms",
        kind=ConfigType.LONG,
        default="604800000",
        server="log.retention.ms",
        check=at_least(-1),
        doc="The age at which segments are deleted; -1 is never.",
    ),
    ConfigKey(
        name="segment.bytes",
        kind=ConfigType.INT,
        default="1073741824",
        server="log.segment.bytes",
        check=at_least(1 << 20),
        doc="A segment's size at most. It may be rolled earlier, at a block of storage; small ones are merged later.",
    ),
    ConfigKey(
        name="segment.index.bytes",
        kind=ConfigType.INT,
        default="10485760",
        server="log.index.size.max.bytes",
        check=at_least(4),
        doc=_NO_EFFECT + "indexes are as long as they need to be.",
    ),
    ConfigKey(
        name="segment.jitter.ms",
        kind=ConfigType.LONG,
        default="0",
        server="log.roll.jitter.ms",
        check=at_least(0),
        doc=_NO_EFFECT + "rolls are spread by the broker.",
    ),
    ConfigKey(
        name="segment.ms",
        kind=ConfigType.LONG,
        default="604800000",
        server="log.roll.ms",
        check=at_least(1),
        doc="The age at which a segment is closed and the next one begun.",
    ),
    ConfigKey(
        name="storage.group",
        kind=ConfigType.STRING,
        default="",
        server="log.storage.group",
        check=check_name,
        doc="The group of the topic's folders and files on storage; empty: as storage has it. Readers of files, as "
        "Spark, pass by ACLs, so storage decides who may read. Unset, what is there stays. Not one of Kafka's.",
    ),
    ConfigKey(
        name="storage.mode",
        kind=ConfigType.STRING,
        default="",
        server="log.storage.mode",
        check=check_mode,
        doc="The mode of the topic's folders, in octal, which its files have without x: 750 lets storage.group read. "
        "Empty: as storage has it. Not one of Kafka's.",
    ),
    ConfigKey(
        name="storage.owner",
        kind=ConfigType.STRING,
        default="",
        server="log.storage.owner",
        check=check_name,
        doc="The owner of the topic's folders and files on storage; empty: this process's user, as which all of the "
        "cluster run. Only a superuser of storage may set another one. Not one of Kafka's.",
    ),
    ConfigKey(
        name="unclean.leader.election.enable",
        kind=ConfigType.BOOLEAN,
        default="false",
        server="unclean.leader.election.enable",
        doc=_NO_EFFECT + "no acknowledged record depends on which broker leads.",
    ),
)
TABLE: Mapping[str, ConfigKey] = {key.name: key for key in _KEYS}
ACCESS_CONFIGS = frozenset(("storage.group", "storage.mode", "storage.owner"))
"""The configs that decide which users of storage read a topic's files, past Kafka's ACLs."""


def validate(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """Return the overrides in their canonical form.  Raises ValueError, with the text for INVALID_CONFIG."""
    empty = [name for name, value in overrides.items() if value is None]
    if empty:
        raise ValueError(f"Null value not supported for topic configs: {','.join(empty)}")
    kept = {}
    for name, value in overrides.items():
        if name not in TABLE:
            raise ValueError(f"Unknown topic config name: {name}")
        assert value is not None  # refused above
        kept[name] = TABLE[name].canonical(value)
    lags = [int(kept.get(name, TABLE[name].default)) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")]
    if lags[0] > lags[1]:
        raise ValueError(f"min.compaction.lag.ms ({lags[0]}) exceeds max.compaction.lag.ms ({lags[1]})")
    return kept


OF_CLIENTS_TOPICS = frozenset({"min.insync.replicas"})
"""Configs whose values at the brokers do not apply to internal topics.

A value that suits the records of some topics must not stop all groups of the cluster.
"""


def effective(
    overrides: Mapping[str, str],
    node: NodeConfig,
    cluster_defaults: Mapping[str, str],
    node_overrides: Mapping[str, str],
    *,
    is_internal: bool = False,
) -> dict[str, str]:
    """Return the value of every config of a topic that is in force on a node."""
    layers = BrokerLayers(node, cluster_defaults, node_overrides)
    return {name: _settings(key, overrides, layers, is_internal=is_internal)[0].value for name, key in TABLE.items()}


def describe(
    overrides: Mapping[str, str],
    node: NodeConfig,
    cluster_defaults: Mapping[str, str],
    node_overrides: Mapping[str, str],
    *,
    is_internal: bool = False,
) -> list[Described]:
    """Return every config of a topic by name, with its source and synonyms.

    As in Kafka, those without a broker config have no synonyms.
    """
    layers = BrokerLayers(node, cluster_defaults, node_overrides)
    described = []
    for key in TABLE.values():
        settings = _settings(key, overrides, layers, is_internal=is_internal)
        synonyms = [each for each in settings if key.server or each.source is ConfigSource.DYNAMIC_TOPIC_CONFIG]
        described.append(Described(key, settings[0].value, settings[0].source, False, synonyms))
    return described


def default_list(name: str, node: NodeConfig, cluster_defaults: Mapping[str, str]) -> str | None:
    """Return the list that APPEND and SUBTRACT start from if a topic has no override; None if it is not a list."""
    key = TABLE.get(name)
    if key is None or key.kind is not ConfigType.LIST:
        return None
    return _settings(key, {}, BrokerLayers(node, cluster_defaults, {}))[0].value


def _settings(
    key: ConfigKey, overrides: Mapping[str, str], layers: BrokerLayers, *, is_internal: bool = False
) -> list[Setting]:
    own = [Setting(key.name, overrides[key.name], ConfigSource.DYNAMIC_TOPIC_CONFIG)] if key.name in overrides else []
    if not key.server or (is_internal and key.name in OF_CLIENTS_TOPICS):
        return [*own, Setting(key.name, key.default, ConfigSource.DEFAULT_CONFIG)]
    return own + layers.settings(key.server, key.default)

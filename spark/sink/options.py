"""The options of ``write.format("bmq")`` and the columns it takes: checks on the driver, before anything is written.

Names and error texts are those of Spark's Kafka sink.  Producer settings (``kafka.*``) go to librdkafka, which shares
most names with Kafka's Java client; others are translated, or refused with the name to use instead.  Settings of
security are kept as they are: their files are read on executors (``sink.security``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bmq.core.options import ConfigError, meant
from bmq.core.security.client_settings import ClientSecuritySettings, is_security, security_of_client
from bmq.spark.options import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger("bmq.spark")
SINK_OPTIONS = {
    "kafka.bootstrap.servers": "the endpoint, host:port, several separated by commas",
    "topic": "the topic of all rows; overrides a column topic",
    "includeHeaders": "accepted, without effect: a column headers is always written, as in Spark's Kafka sink",
}
_OTHERS = frozenset(("checkpointlocation", "queryname", "path"))
"""Spark's own options, which it passes to the sink of a streaming query."""

_HEADERS = "array<struct<key:string,value:binary>>"
TYPES: Mapping[str, Sequence[str]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (_HEADERS,),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
DEFAULTS: Mapping[str, str] = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "delivery.timeout.ms": "120000",
    "queue.buffering.max.kbytes": "32768",
    "message.max.bytes": "1048576",
    "partitioner": "murmur2_random",
}
"""The defaults of Kafka's Java client, where librdkafka's differ.

Keys are hashed alike, so that both clients put a key into the same partition.  A task has 32 MB of buffer, and rows
have up to 1 MB (max.request.size).  After two minutes a row counts as not written.
"""

_REFUSED = {
    "key.serializer": "keys are written as the bytes that they are: cast them in the query",
    "value.serializer": "values are written as the bytes that they are: cast them in the query",
    "transactional.id": "the sink writes no transactions",
    "partitioner.class": "give kafka.partitioner, one of librdkafka's, or a column partition",
    "interceptor.classes": "there are no interceptors",
    "ssl.enabled.protocols": "librdkafka has no such setting; that of the servers decides",
    "max.block.ms": "rows that cannot be written fail after kafka.delivery.timeout.ms",
}
_OF_LIBRDKAFKA = frozenset((
    "sasl.username", "sasl.password", "sasl.mechanisms", "ssl.ca.location", "ssl.ca.pem", "ssl.certificate.location",
    "ssl.certificate.pem", "ssl.key.location", "ssl.key.pem", "ssl.crl.location", "sasl.kerberos.keytab",
    "sasl.kerberos.principal", "sasl.oauthbearer.config", "sasl.oauthbearer.method", "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret", "enable.ssl.certificate.verification",
))  # fmt: skip
"""librdkafka's own settings of security.  Who gives one has all of them passed on as they are."""
_OF_KAFKA = ("sasl.jaas.config", "ssl.truststore.", "ssl.keystore.key", "ssl.keystore.certificate.chain")
_RENAMED = {"max.request.size": "message.max.bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options of one write.  ``topic`` None: each row has its own.  ``config`` is the producer's;
    ``columns`` are those that are written."""

    topic: str | None
    columns: tuple[str, ...]
    config: dict[str, str] = field(repr=False)  # it may hold a password
    security: ClientSecuritySettings | None = field(default=None, repr=False)
    """Kafka's settings of security; None if those of librdkafka are in ``config``."""


def sink_of(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """Return the options of a write of ``schema``.  Raises OptionError if an option or a column is unknown, invalid or
    missing."""
    if overwrite:
        raise OptionError("a topic is appended to and never overwritten: use mode('append')")
    options = {name.casefold(): value for name, value in given.items()}
    topic = options.get("topic")
    if topic is not None and not topic.strip():
        raise OptionError("option 'topic' names no topic")
    if options.get("includeheaders", "false").strip().casefold() not in ("true", "false"):
        raise OptionError(f"includeHeaders={options['includeheaders']!r}: expected true or false")
    _refuse_unknown(options)
    types = {each.name: each.dataType.simpleString() for each in schema.fields}
    columns = _columns(types, has_topic_option=topic is not None)
    config = _config(options)
    return SinkOptions(topic=topic and topic.strip(), columns=columns, config=config, security=_security(config))


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.casefold() for name in SINK_OPTIONS} | _OTHERS
    for name in options:
        if name not in known and not name.startswith(("kafka.", "asyncprogresstracking")):
            hint = f"unknown option{meant(name, SINK_OPTIONS)}"
            if name == "root":
                hint = "the sink writes through kafka.bootstrap.servers"
            end = "" if hint.endswith("?") else "."
            names = "\n".join(f"  {each}: {text}" for each, text in SINK_OPTIONS.items())
            raise OptionError(f"option {name!r}: {hint}{end} The options of the sink, beside kafka.*:\n{names}")


def _columns(types: Mapping[str, str], *, has_topic_option: bool) -> tuple[str, ...]:
    """Return the columns to write; others are ignored, as in Spark's Kafka sink.  Raises OptionError."""
    if "topic" not in types and not has_topic_option:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in types:
        raise OptionError("Required attribute 'value' not found")
    written = tuple(name for name in TYPES if name in types and not (name == "topic" and has_topic_option))
    for name in written:
        if types[name] not in TYPES[name]:
            wanted = " or ".join(TYPES[name])
            raise OptionError(f"{name} attribute unsupported type {types[name]}. {name} must be a(n) {wanted}")
    return written


def _config(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    if not given.get("bootstrap.servers", "").strip():
        raise OptionError("Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer")
    config = dict(DEFAULTS)
    for name, value in given.items():
        if name in _REFUSED:
            raise OptionError(f"Kafka option '{name}' is not supported: {_REFUSED[name]}")
        if name == "buffer.memory":
            name, value = "queue.buffering.max.kbytes", _kilobytes(value)
        config[_RENAMED.get(name, name)] = value
    return config


def _security(config: dict[str, str]) -> ClientSecuritySettings | None:
    """Take Kafka's settings of security out of ``config`` and return them.  Raises OptionError without a secret."""
    own = [name for name in config if name in _OF_LIBRDKAFKA]
    if own:
        for name in config:
            if name.startswith(_OF_KAFKA):
                raise OptionError(f"kafka.{name} is of Kafka's client, kafka.{own[0]} of librdkafka: not both")
        return None
    given = {name: config.pop(name) for name in list(config) if is_security(name)}
    try:
        security, unused = security_of_client(given)
    except ConfigError as error:
        raise OptionError(f"kafka.*: {error}") from None
    for name in unused:
        _log.warning("the setting kafka.%s has no effect in the sink: it is of Java", name)
    return security


def _kilobytes(value: str) -> str:
    if not value.strip().isdecimal():
        raise OptionError(f"kafka.buffer.memory={value!r}: expected bytes, as in 33554432")
    return str(max(1, int(value) // 1024))

"""Settings of one process: a frozen dataclass, with each one's text, default and check.

A setting that Kafka has too carries Kafka's name and default (``kafka=`` below: the key in the file, in ``BMQ_...``
with dots as underscores, and in DescribeConfigs).  BMQ's own settings carry their field's name.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, get_type_hints

from bmq.core.audit.place import wrong_place
from bmq.core.file_access import Access, check_mode, check_name, parse_mode
from bmq.core.hdfs_login import HdfsLogin
from bmq.core.logging.lines import LOG_FORMATS
from bmq.core.machine_memory import WORKER_BYTES
from bmq.core.net.listener_config import ANY_HOST, PLAINTEXT, ListenerAddress, ListenerError, check_apart, resolve
from bmq.core.options import INT_MAX as INT_MAX
from bmq.core.options import LONG_MAX as LONG_MAX
from bmq.core.options import ConfigError as ConfigError
from bmq.core.options import check_choice, check_range, parse_as
from bmq.core.options import environment_name as environment_name
from bmq.core.options import option as _option
from bmq.core.options import option_name as option_name
from bmq.core.security import listener_settings
from bmq.core.security.listener_settings import ListenerSecurity
from bmq.core.security.settings import SecuritySettings
from bmq.core.security.shared_secret import SharedSecret, parse_secrets

HTTP_LISTENER = "HTTP"
"""Name of the HTTP port among the listeners: its settings of security are ``listener.name.http. ...``."""
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
ROLES = ("proxy", "broker", "controller", "coordinator")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(SecuritySettings):
    """The settings of one ``bmq serve``."""

    # BMQ's own.
    roles: tuple[str, ...] = _option(ROLES, "roles of this process, comma-separated", flag="--roles", metavar="LIST")
    listen: str = _option("127.0.0.1:9092", "address of the Kafka endpoint", flag="--listen", metavar="HOST:PORT")
    advertise: str = _option(
        "",
        "address advertised to clients; when empty the listen address, or the machine's full name for 0.0.0.0",
        flag="--advertise",
        metavar="HOST:PORT",
    )
    http: str = _option("127.0.0.1:9080", "address of health, metrics, API", flag="--http", metavar="HOST:PORT")
    http_hosts: tuple[str, ...] = _option(
        (),
        "host names, comma-separated, by which HTTP clients may address this process beside its machine's own, * for"
        " any; when empty: any, but only its machine's own where http is a loopback address",
    )
    http_tls: bool = _option(
        False,
        "serve the HTTP port by https, with the certificate of listener.name.http.ssl.keystore.location, else that of"
        " all listeners",
    )
    http_authentication: tuple[str, ...] = _option(
        ("none",),
        "how clients of the HTTP port log in: basic (a user's password, by the mechanisms of"
        " listener.name.http.sasl.enabled.mechanisms), bearer (a token, by the settings of"
        " listener.name.http.oauthbearer), both, or none",
        choices=("none", "basic", "bearer"),
    )
    http_metrics_authentication: bool = _option(
        True, "whether /metrics asks for a log-in too, where http_authentication does"
    )
    http_session_ms: int = _option(28_800_000, "longest session of the console's users, who then log in again")
    insecure: bool = _option(
        False,
        "let ports without authentication listen on other addresses than this machine's own",
        flag="--insecure",
    )
    internal: str = _option(
        "127.0.0.1:9093", "address for the cluster's other processes", flag="--internal", metavar="HOST:PORT"
    )
    root: str = _option(
        "",
        "where segments are stored: file:///dir, hdfs://namenode:port/dir or hdfs://nameservice/dir; when empty"
        " ./bmq-data/log",
        flag="--root",
        metavar="URL",
    )
    storage_shared_group: str = _option(
        "", "group of what the readers of any topic need: the root, its folder of topics, its journals"
    )
    storage_shared_mode: str = _option(
        "",
        "mode of the root and its folder of topics, in octal: 711 lets all users pass to topics by name, 755 list"
        " them too. Journals may be read by all who may pass. When empty, as storage has it",
    )
    hadoop_conf_dir: str = _option(
        "",
        "folder of core-site.xml and hdfs-site.xml, for hdfs://nameservice/dir and hdfs:///dir; when empty the"
        " environment's HADOOP_CONF_DIR",
        flag="--hadoop-conf-dir",
        metavar="DIR",
    )
    hdfs_keytab: str = _option(
        "",
        "keytab of the log-in to HDFS, where Hadoop's configuration has hadoop.security.authentication=kerberos; when"
        " empty the tickets of the environment's KRB5CCNAME, which others renew",
    )
    hdfs_principal: str = _option(
        "",
        "principal of that log-in, as in bmq/_HOST@EXAMPLE.ORG (_HOST is this machine's full name); when empty the"
        " keytab's first or the ticket's",
    )
    meta: str = _option(
        "", "metadata store: sqlite:///file or etcd://host:port,host:port; ./bmq-data/meta.db when empty",
        flag="--meta", metavar="URL", is_secret=True,
    )  # fmt: skip
    meta_user: str = _option("", "user of the store; when empty the URL's, etcd://user@host:port")
    meta_password: str = _option("", "password of that user; when empty the URL's own", is_secret=True)
    node_id: int = _option(
        0, "this proxy's id among the cluster's; the lowest free one when negative", flag="--node-id", metavar="N"
    )
    zone: str = _option(
        "",
        "zone (rack) of this process: consumers with this client.rack are sent to its proxies",
        flag="--zone",
        metavar="Z",
    )
    cluster: str = _option("bmq", "name of the cluster: the prefix of its keys in the metadata store")
    cache_bytes: int = _option(
        512 << 20,
        "one budget for tail cache, block cache and fetch responses; 0: an eighth of the machine's memory or of the"
        " container's limit, 512 MB (at most half of it) at least and 4 GB at most, which workers share",
    )
    tail_fraction: float = _option(
        0.5, "share of cache_bytes that is the tails' own; beyond it they borrow what cached blocks do not use"
    )
    held_produce_ms: int = _option(5_000, "how long a produce waits for a partition that is moving")
    workers: int = _option(
        1, "processes to run, each with these roles, on ports one after another", flag="--workers", metavar="N"
    )
    internal_advertise: str = _option(
        "", "address advertised to the cluster's other processes; when empty as for advertise"
    )
    internal_secret: str = _option(
        "",
        "secret of the cluster, which its processes show each other: 16 characters or more. Several, comma-separated:"
        " the first is shown, all are accepted",
        kafka="internal.secret", is_secret=True,
    )  # fmt: skip
    internal_secret_required: bool = _option(
        True,
        "refuse processes that do not show the secret; false while a cluster without one gets it, process by process",
        kafka="internal.secret.required",
    )
    internal_ssl_keystore_location: str = _option(
        "", "file of this process's certificate and key for the internal port, PEM or PKCS#12: TLS on both sides",
        kafka="internal.ssl.keystore.location",
    )  # fmt: skip
    internal_ssl_keystore_password: str = _option(
        "", "password of a PKCS#12 keystore",
        kafka="internal.ssl.keystore.password", is_secret=True,
    )  # fmt: skip
    internal_ssl_key_password: str = _option(
        "", "password of an encrypted private key in PEM",
        kafka="internal.ssl.key.password", is_secret=True,
    )  # fmt: skip
    internal_ssl_keystore_key: str = _option(
        "", "private key in PEM, in place of a keystore's file",
        kafka="internal.ssl.keystore.key", is_secret=True,
    )  # fmt: skip
    internal_ssl_keystore_certificate_chain: str = _option(
        "", "certificate and its chain in PEM, with that key",
        kafka="internal.ssl.keystore.certificate.chain", is_secret=True,
    )  # fmt: skip
    internal_ssl_truststore_location: str = _option(
        "", "file of the authorities that sign the processes' certificates, the cluster's own alone",
        kafka="internal.ssl.truststore.location",
    )  # fmt: skip
    internal_ssl_truststore_password: str = _option(
        "", "password of a PKCS#12 truststore",
        kafka="internal.ssl.truststore.password", is_secret=True,
    )  # fmt: skip
    internal_ssl_truststore_certificates: str = _option(
        "", "these authorities in PEM, in place of a file",
        kafka="internal.ssl.truststore.certificates", is_secret=True,
    )  # fmt: skip
    internal_ssl_endpoint_identification_algorithm: str = _option(
        "",
        "https: a process that is called must have its host in its certificate; when empty the authority alone counts",
        kafka="internal.ssl.endpoint.identification.algorithm", choices=("", "https"),
    )  # fmt: skip
    internal_ssl_required: bool = _option(
        True,
        "refuse processes without TLS, and call none without it; false while a cluster gets or loses TLS, process by"
        " process",
        kafka="internal.ssl.required",
    )  # fmt: skip
    shared_listen: str = _option(
        "", "a further address of the Kafka endpoint, shared with other processes of this machine (SO_REUSEPORT)"
    )
    etcd_history_ms: int = _option(
        3_600_000,
        "how much of etcd's history is kept: the leader compacts all of etcd's up to then; 0, for an etcd that others"
        " share or that compacts by itself, leaves it alone",
    )
    tls_handshake_ms: int = _option(10_000, "a client whose TLS handshake is not done after this is closed")
    internal_credit_bytes: int = _option(4 << 20, "bytes of one partition in flight from a proxy to its broker at most")
    block_bytes: int = _option(
        128 << 20, "largest segment file being written; HDFS reserves as much on each datanode of an open file"
    )
    open_pipelines_max: int = _option(
        1_000, "segment files that this broker keeps open at most; the idle ones are closed first"
    )
    metrics_topics_max: int = _option(
        1_000, 'topics with series of their own in /metrics; those past it share one, topic="(other)"'
    )
    metrics_group_lag_ms: int = _option(
        15_000, "least time between two counts of groups' lag for /metrics; 0: none is counted"
    )
    metrics_groups_max: int = _option(
        1_000,
        "groups' lag in /metrics: pairs of a group and a topic with series of their own, and partitions with theirs;"
        ' pairs past it share one, consumergroup="(other)"',
    )
    schema_registry_url: str = _option(
        "",
        "Confluent schema registry, by which the HTTP API shows keys and values in Avro, Protobuf and JSON Schema:"
        " http://host:8081 or https://user:password@host; none when empty",
        metavar="URL", is_secret=True,
    )  # fmt: skip
    log_level: str = _option("INFO", "least level of log lines on standard error: DEBUG, INFO, WARNING, ERROR")
    log_format: str = _option(
        "text",
        "form of log lines: text, or json (one object a line, for a log store)",
        flag="--log-format",
        metavar="FORM",
    )
    audit_log: str = _option(
        "",
        "where the audit log is written: a file, or topic:NAME; when empty there is none",
        metavar="FILE",
    )
    audit_lines_per_s: int = _option(
        1_000, "lines a second that the audit log writes at most; more wait, and are counted once there is no room"
    )
    drain_ms: int = _option(
        10_000, "how long SIGTERM waits, in all, for partitions to be handed over and clients to leave"
    )

    # Kafka's: listeners.
    listeners: tuple[str, ...] = _option(
        (),
        "addresses of the Kafka endpoint, each with a name: INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094; when empty"
        " PLAINTEXT on the address of listen",
        kafka="listeners", flag="--listeners", metavar="LIST",
    )  # fmt: skip
    advertised_listeners: tuple[str, ...] = _option(
        (),
        "addresses advertised to the clients of these listeners; one that is left out is advertised as with advertise",
        kafka="advertised.listeners", flag="--advertised-listeners", metavar="LIST",
    )  # fmt: skip
    listener_security_protocol_map: tuple[str, ...] = _option(
        (),
        "protocol of each listener: INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL; not needed for a listener that is named as its"
        " protocol",
        kafka="listener.security.protocol.map",
    )
    # Kafka's: connections.
    socket_request_max_bytes: int = _option(100 << 20, "largest request", kafka="socket.request.max.bytes")
    queued_max_request_bytes: int = _option(
        256 << 20,
        "bytes of requests read and not responded to, over all connections; past it nothing more is read, and clients "
        "whose requests arrive below 16 KB/s while others wait are closed (Kafka: no bound)",
        kafka="queued.max.request.bytes",
    )
    connections_max_idle_ms: int = _option(
        600_000, "an idle connection is closed after this", kafka="connections.max.idle.ms"
    )
    max_connections: int = _option(10_000, "connections at most (Kafka: no bound)", kafka="max.connections")
    max_connections_per_ip: int = _option(
        2_147_483_647, "connections from one address at most", kafka="max.connections.per.ip"
    )
    # Kafka's: fetch.
    fetch_max_bytes: int = _option(57_671_680, "bytes of one fetch response at most", kafka="fetch.max.bytes")
    max_incremental_fetch_session_cache_slots: int = _option(
        1_000, "fetch sessions at most", kafka="max.incremental.fetch.session.cache.slots"
    )
    # Kafka's: topics.
    auto_create_topics_enable: bool = _option(
        True, "create a topic that a client asks for", kafka="auto.create.topics.enable"
    )
    delete_topic_enable: bool = _option(True, "whether topics may be deleted", kafka="delete.topic.enable")
    num_partitions: int = _option(1, "partitions of a new topic", kafka="num.partitions")
    default_replication_factor: int = _option(
        3, "copies of a new topic's segments; 1 on a local folder", kafka="default.replication.factor"
    )
    message_max_bytes: int = _option(1_048_588, "default of max.message.bytes", kafka="message.max.bytes")
    log_retention_ms: int = _option(604_800_000, "default of retention.ms", kafka="log.retention.ms")
    log_retention_bytes: int = _option(-1, "default of retention.bytes", kafka="log.retention.bytes")
    log_segment_bytes: int = _option(1 << 30, "default of segment.bytes", kafka="log.segment.bytes")
    log_roll_ms: int = _option(604_800_000, "default of segment.ms", kafka="log.roll.ms")
    log_message_timestamp_type: str = _option(
        "CreateTime", "default of message.timestamp.type", kafka="log.message.timestamp.type"
    )
    log_message_timestamp_before_max_ms: int = _option(
        9_223_372_036_854_775_807,
        "default of message.timestamp.before.max.ms",
        kafka="log.message.timestamp.before.max.ms",
    )
    log_message_timestamp_after_max_ms: int = _option(
        3_600_000, "default of message.timestamp.after.max.ms", kafka="log.message.timestamp.after.max.ms"
    )
    log_storage_group: str = _option("", "default of storage.group", kafka="log.storage.group")
    log_storage_mode: str = _option("", "default of storage.mode", kafka="log.storage.mode")
    log_storage_owner: str = _option("", "default of storage.owner", kafka="log.storage.owner")
    log_cleanup_policy: str = _option("delete", "default of cleanup.policy", kafka="log.cleanup.policy")
    log_segment_delete_delay_ms: int = _option(
        60_000, "default of file.delete.delay.ms", kafka="log.segment.delete.delay.ms"
    )
    log_cleaner_backoff_ms: int = _option(
        15_000, "least time between two looks whether a compacted log is to be cleaned", kafka="log.cleaner.backoff.ms"
    )
    log_cleaner_dedupe_buffer_size: int = _option(
        128 << 20,
        "memory for the keys of a compacted log while it is cleaned, 24 bytes a key; more keys take several passes",
        kafka="log.cleaner.dedupe.buffer.size",
    )
    log_cleaner_enable: bool = _option(True, "whether compacted logs are cleaned", kafka="log.cleaner.enable")
    log_cleaner_io_max_bytes_per_second: int = _option(
        9_223_372_036_854_775_807,
        "most bytes that the cleaner of compacted logs reads and writes in a second",
        kafka="log.cleaner.io.max.bytes.per.second",
    )
    log_cleaner_threads: int = _option(
        1,
        "compacted logs that a broker cleans at once; they share log.cleaner.dedupe.buffer.size",
        kafka="log.cleaner.threads",
    )
    min_insync_replicas: int = _option(
        1,
        "default of min.insync.replicas; on a local folder more than 1 refuses every produce with acks=all",
        kafka="min.insync.replicas",
    )
    compression_type: str = _option("producer", "default of the topic's compression.type", kafka="compression.type")
    producer_id_expiration_ms: int = _option(
        86_400_000, "a producer id that sends nothing is forgotten after this", kafka="producer.id.expiration.ms"
    )
    # Kafka's: groups.
    offsets_topic_num_partitions: int = _option(
        50, "partitions of __consumer_offsets, fixed once it exists", kafka="offsets.topic.num.partitions"
    )
    offsets_topic_segment_bytes: int = _option(
        100 << 20, "segment.bytes of __consumer_offsets", kafka="offsets.topic.segment.bytes"
    )
    offsets_retention_minutes: int = _option(
        10_080, "offsets of a group without members are kept this long", kafka="offsets.retention.minutes"
    )
    offsets_retention_check_interval_ms: int = _option(
        600_000, "time between two searches for expired offsets", kafka="offsets.retention.check.interval.ms"
    )
    offset_metadata_max_bytes: int = _option(
        4_096, "metadata of one committed offset at most", kafka="offset.metadata.max.bytes"
    )
    group_min_session_timeout_ms: int = _option(
        6_000, "least session timeout of a member", kafka="group.min.session.timeout.ms"
    )
    group_max_session_timeout_ms: int = _option(
        1_800_000, "largest session timeout of a member", kafka="group.max.session.timeout.ms"
    )
    group_initial_rebalance_delay_ms: int = _option(
        3_000, "wait for more members at a group's first rebalance", kafka="group.initial.rebalance.delay.ms"
    )
    group_max_size: int = _option(2_147_483_647, "members of one group at most", kafka="group.max.size")
    # Kafka's: transactions.
    transaction_state_log_num_partitions: int = _option(
        50, "partitions of __transaction_state, fixed once it exists", kafka="transaction.state.log.num.partitions"
    )
    transaction_state_log_segment_bytes: int = _option(
        100 << 20, "segment.bytes of __transaction_state", kafka="transaction.state.log.segment.bytes"
    )
    transaction_state_log_min_isr: int = _option(
        2,
        "min.insync.replicas that __transaction_state is created with; fewer if storage keeps fewer copies then, as a"
        " local folder",
        kafka="transaction.state.log.min.isr",
    )
    transaction_max_timeout_ms: int = _option(
        900_000, "largest time-out of a transaction that a producer may ask for", kafka="transaction.max.timeout.ms"
    )
    transactional_id_expiration_ms: int = _option(
        604_800_000,
        "a transactional id without an open transaction is forgotten after this, since its last use",
        kafka="transactional.id.expiration.ms",
    )
    transaction_remove_expired_interval_ms: int = _option(
        3_600_000,
        "time between two searches for transactional ids to forget",
        kafka="transaction.remove.expired.transaction.cleanup.interval.ms",
    )

    listener_settings: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """Settings of single listeners, by their whole keys: see ``core.security.listener_settings``.  Some are secrets."""
    computed: tuple[str, ...] = field(default=(), repr=False)
    """Names of the settings that were not given, and whose defaults depend on the machine."""

    def shared_access(self) -> Access:
        """Return the rights on what the readers of any topic need."""
        return Access(group=self.storage_shared_group, mode=parse_mode(self.storage_shared_mode))

    def validate(self) -> None:
        """Check ranges, addresses and combinations.  Raises ConfigError, which names the setting, if one is wrong."""
        unknown = set(self.roles) - set(ROLES)
        if unknown or not self.roles:
            raise ConfigError(f"roles: {','.join(sorted(unknown)) or 'none'}; choose from {','.join(ROLES)}")
        for name in ("listen", "http", "internal"):
            parse_address(getattr(self, name), name)
        for name, who in (("advertise", "clients"), ("internal_advertise", "other processes")):
            if getattr(self, name):
                host, port = parse_address(getattr(self, name), name)
                if not port or host in ANY_HOST:
                    raise ConfigError(
                        f"{name}: {who} cannot connect to {getattr(self, name)!r}; give this machine's name"
                    )
        listeners = self.kafka_listeners()
        if self.workers > 1 and "proxy" in self.roles:
            try:
                check_apart(listeners, self.workers + 1)  # one port that all workers share, and one of each
            except ListenerError as error:
                raise ConfigError(str(error)) from None
        if self.shared_listen:
            self.shared_listeners()
        if self.internal_secret and not self.shared_secret().keys:
            raise ConfigError("internal.secret is blank: give it a value, or leave it out")
        self.super_principals()
        if self.log_level.upper() not in LOG_LEVELS:
            raise ConfigError(f"log_level={self.log_level!r}; choose from {', '.join(LOG_LEVELS)}")
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(f"log_format={self.log_format!r}; choose from {', '.join(LOG_FORMATS)}")
        for name, reason in (
            ("storage_shared_group", check_name(self.storage_shared_group)),
            ("storage_shared_mode", check_mode(self.storage_shared_mode)),
        ):
            if reason:
                raise ConfigError(f"{name}={getattr(self, name)[:100]!r} {reason}")
        if reason := _wrong_cluster_name(self.cluster):
            raise ConfigError(f"cluster={self.cluster[:100]!r} {reason}: it begins every key in the metadata store")
        if reason := wrong_place(self.audit_log):
            raise ConfigError(f"audit_log={self.audit_log[:100]!r}: {reason}")
        if len(self.zone) > ZONE_LENGTH_MAX:
            raise ConfigError(f"zone={self.zone[:100]!r}... is longer than {ZONE_LENGTH_MAX} characters")
        for option in OPTIONS:
            check_choice(option_name(option), option, getattr(self, option.name))
            if _TYPES[option.name] is int:
                check_range(option_name(option), getattr(self, option.name), *_range(option))
        if not self.http_authentication or ("none" in self.http_authentication and len(self.http_authentication) > 1):
            raise ConfigError("http_authentication: give none alone, or basic, bearer, or both")
        for option in listener_settings.SECURITY_OPTIONS:
            listener_settings.check(option_name(option), option, getattr(self, option.name))
        if 0 < self.etcd_history_ms < ETCD_HISTORY_MS_MIN:
            raise ConfigError(
                f"etcd_history_ms={self.etcd_history_ms} is under {ETCD_HISTORY_MS_MIN}: a process that is behind would"
                " read everything again; 0 leaves etcd's history alone"
            )
        if 0 < self.cache_bytes < WORKER_BYTES:
            raise ConfigError(f"cache_bytes={self.cache_bytes} is under {WORKER_BYTES}; 0 takes a share of the memory")
        if not 0 < self.tail_fraction < 1:
            raise ConfigError(f"tail_fraction={self.tail_fraction} is not between 0 and 1")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError("group.min.session.timeout.ms exceeds group.max.session.timeout.ms")
        if self.log_cleaner_dedupe_buffer_size // self.log_cleaner_threads < _LEAST["log_cleaner_dedupe_buffer_size"]:
            raise ConfigError("log.cleaner.dedupe.buffer.size is under 1 MB for each of log.cleaner.threads")
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise ConfigError(
                "queued.max.request.bytes is under socket.request.max.bytes: one request would wait for ever"
            )

    def shared_secret(self) -> SharedSecret:
        """Return the secrets of the cluster.  Raises ConfigError, without a secret in its text, if one is too short."""
        try:
            return SharedSecret(parse_secrets(self.internal_secret), is_required=self.internal_secret_required)
        except ValueError as error:
            raise ConfigError(f"internal.secret: {error}") from None

    @property
    def hdfs_login(self) -> HdfsLogin:
        """The identity of the log-in to a secure HDFS."""
        return HdfsLogin(self.hdfs_keytab, self.hdfs_principal)

    @property
    def is_internal_authenticated(self) -> bool:
        """True if no process is served on the internal port that does not show that it belongs to the cluster."""
        return (self.has_internal_tls and self.internal_ssl_required) or self.shared_secret().is_enforced

    @property
    def has_internal_tls(self) -> bool:
        """True if connections between processes are TLS, with certificates of both."""
        return bool(self.internal_ssl_keystore_location or self.internal_ssl_keystore_key)

    def internal_tls_settings(self) -> dict[str, Any]:
        """Return the TLS settings of the internal port, by their keys without ``internal.``."""
        options = {option_name(each): each.name for each in OPTIONS}
        keys = [key for key in listener_settings.TABLE if f"internal.{key}" in options]
        return {key: getattr(self, options[f"internal.{key}"]) for key in keys}

    def kafka_listeners(self) -> tuple[ListenerAddress, ...]:
        """Return the addresses of the Kafka endpoint, in the settings' order.  Raises ConfigError if they are wrong."""
        if not self.listeners:
            if self.advertised_listeners:
                raise ConfigError("advertised.listeners: there are no listeners; give advertise with listen")
            listener = ListenerAddress(PLAINTEXT, *parse_address(self.listen, "listen"))
            if not self.advertise:
                return (listener,)
            host, port = parse_address(self.advertise, "advertise")
            return (replace(listener, advertised_host=host, advertised_port=port),)
        if self.advertise:
            raise ConfigError("advertise: with listeners give advertised.listeners, which has an address for each")
        try:
            return resolve(self.listeners, self.advertised_listeners, self.listener_security_protocol_map)
        except ListenerError as error:
            raise ConfigError(str(error)) from None

    def listener_security(self) -> dict[str, ListenerSecurity]:
        """Return the security settings of each Kafka listener, by its name, in the settings' order.

        Raises ConfigError if the listeners are wrong.
        """
        return {
            each.name: listener_settings.security_of(each.name, each.protocol, self, self.listener_settings)
            for each in self.kafka_listeners()
        }

    def secured_names(self) -> list[str]:
        """Return the names that settings of single listeners may have: the Kafka listeners', and the HTTP port's.

        Raises ConfigError if the listeners are wrong.
        """
        names = [each.name for each in self.kafka_listeners()]
        if HTTP_LISTENER in map(str.upper, names):
            raise ConfigError(f"listeners: {HTTP_LISTENER} is the name of the HTTP port; choose another one")
        return [*names, HTTP_LISTENER]

    def http_security(self) -> ListenerSecurity:
        """Return the security settings of the HTTP port: those of a listener with the name ``HTTP_LISTENER``."""
        protocol = "SASL_SSL" if self.http_tls else "SASL_PLAINTEXT"
        return listener_settings.security_of(HTTP_LISTENER, protocol, self, self.listener_settings)

    def shared_listeners(self) -> tuple[ListenerAddress, ...]:
        """Return the addresses that are shared with other workers; empty if there are none.

        Raises ConfigError if the setting is wrong.
        """
        if not self.shared_listen:
            return ()
        if not self.listeners:
            return (ListenerAddress(PLAINTEXT, *parse_address(self.shared_listen, "shared_listen")),)
        try:
            return resolve(self.shared_listen.split(","), (), self.listener_security_protocol_map)
        except ListenerError as error:
            raise ConfigError(f"shared_listen: {error}") from None


def _range(option: Field[Any]) -> tuple[int, int]:
    """Return the least and the largest legal value of an integer setting."""
    most = LONG_MAX if is_long(option) else INT_MAX
    return _LEAST.get(option.name, -most - 1), _MOST.get(option.name, most)


def _wrong_cluster_name(name: str) -> str:
    if not name:
        return "is empty"
    if name in (".", "..") or "/" in name:
        return "is '.', '..' or contains '/'"
    if not name.isprintable():
        return "contains a control character"
    return f"is longer than {CLUSTER_LENGTH_MAX} characters" if len(name) > CLUSTER_LENGTH_MAX else ""


ETCD_HISTORY_MS_MIN = 300_000
CLUSTER_LENGTH_MAX = 249
ZONE_LENGTH_MAX = 249
_LEAST = {  # of Kafka's settings: as in Kafka's ConfigDef, unless narrower here
    "node_id": -INT_MAX,
    "cache_bytes": 0,
    "held_produce_ms": 0,
    "drain_ms": 0,
    "http_session_ms": 60_000,
    "audit_lines_per_s": 1,
    "metrics_topics_max": 0,
    "metrics_group_lag_ms": 0,
    "metrics_groups_max": 0,
    "workers": 1,
    "etcd_history_ms": 0,
    "tls_handshake_ms": 1,
    "internal_credit_bytes": 64 << 10,
    "block_bytes": 1 << 20,
    "open_pipelines_max": 1,
    "socket_request_max_bytes": 1 << 10,
    "max_connections": 1,
    "max_connections_per_ip": 1,
    "fetch_max_bytes": 1 << 10,
    "max_incremental_fetch_session_cache_slots": 0,
    "num_partitions": 1,
    "default_replication_factor": 1,
    "offsets_topic_num_partitions": 1,
    "offsets_retention_minutes": 1,
    "offset_metadata_max_bytes": 0,
    "group_min_session_timeout_ms": 1,
    "group_initial_rebalance_delay_ms": 0,
    "group_max_size": 1,
    "connections_max_idle_ms": 1,
    "producer_id_expiration_ms": 1,
    "log_cleaner_backoff_ms": 0,
    "log_cleaner_dedupe_buffer_size": 1 << 20,
    "log_cleaner_io_max_bytes_per_second": 1,
    "log_cleaner_threads": 1,
    "offsets_topic_segment_bytes": 1 << 20,
    "offsets_retention_check_interval_ms": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_segment_bytes": 1 << 20,
    "transaction_state_log_min_isr": 1,
    "transaction_max_timeout_ms": 1,
    "transactional_id_expiration_ms": 1,
    "transaction_remove_expired_interval_ms": 1,
}
_MOST = {
    "workers": 1_000,
    "log_cleaner_threads": 64,
    "default_replication_factor": (1 << 15) - 1,
    "num_partitions": 100_000,
    "offsets_topic_num_partitions": 100_000,
    "transaction_state_log_num_partitions": 100_000,
}
"""Largest values, where they are below the type's.  A topic has at most 100,000 partitions
(``topic_rules.PARTITIONS_MAX``)."""
_LONGS = (
    "cache_bytes",
    "internal_credit_bytes",
    "queued_max_request_bytes",
    "log_retention_bytes",
    "log_cleaner_dedupe_buffer_size",
    "log_cleaner_io_max_bytes_per_second",
)
OPTIONS = tuple(
    sorted(
        (each for each in fields(NodeConfig) if "doc" in each.metadata),
        key=lambda each: each in listener_settings.SECURITY_OPTIONS,  # those of security last
    )
)
_TYPES = get_type_hints(NodeConfig)


def is_long(option: Field[Any]) -> bool:
    """Return whether an integer setting has 64 bits (Kafka's LONG), not 32 (INT)."""
    default: Any = option.default
    return option_name(option).endswith((".ms", "_ms")) or abs(default) > INT_MAX or option.name in _LONGS


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Return host and port of ``host:port`` or ``[v6]:port``.  Raises ConfigError, which names the setting ``name``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{name}: {text!r} is not HOST:PORT, as in 127.0.0.1:9092")
    return host, int(port)


def parse_value(option: Field[Any], value: object, where: str) -> Any:
    """Return ``value`` (a text, or a value from TOML) as the setting's type.

    Raises ConfigError, which begins with ``where``, if it is not of that type.
    """
    return parse_as(option, _TYPES[option.name], value, where)

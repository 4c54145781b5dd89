"""Keys of the internal APIs, which the processes of a cluster use beside Kafka's Produce and Fetch."""

from __future__ import annotations

from enum import IntEnum


class InternalKey(IntEnum):
    """API keys of the internal protocol: above all of Kafka's.  10008 was used before 0.1.0, and stays free."""

    HELLO = 10000
    PING = 10001
    ASK = 10002
    PRODUCERS = 10003
    ACTIVE_SEGMENT = 10004
    SHARD_OPEN = 10005
    SHARD_APPEND = 10006
    FORWARD = 10007
    REPORT = 10009
    HANDED_OVER = 10010
    LOAD = 10011
    LEAVE = 10012
    RELAY = 10013
    SHARDS_NOT_LOADED = 10014
    SHARD_CONFIRM = 10015
    OPEN_FILES = 10016
    HIGH_WATERMARKS = 10017
    ASK_PARTITIONS = 10018
    PARTITIONS_NOT_SERVED = 10019
    TRAFFIC = 10020
    LOG_LEVELS = 10021
    HISTORY = 10022
    GROUP_LAG = 10023
    LOG_SIZES = 10024
    CREATE_TOPIC = 10025
    ENSURE_TOPIC = 10026
    DELETE_TOPIC = 10027
    CREATE_PARTITIONS = 10028
    ALTER_TOPIC_CONFIGS = 10029
    ALTER_BROKER_CONFIGS = 10030
    DRAIN = 10031
    MOVE_PARTITION = 10032
    BALANCE = 10033
    CLUSTER_STATUS = 10034
    QUOTA_SHARES = 10035
    UPDATE_FEATURES = 10036
    WRITE_MARKERS = 10037
    END_GROUP_TRANSACTIONS = 10038
    LOG_CLEANING = 10039

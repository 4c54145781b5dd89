"""Settings of the servers that are measured: Apache Kafka and ``bmq serve``, each as its users would run it."""

from __future__ import annotations

from tests.services.kafka import SERVER_JAVA

KAFKA_HEAP_MB = 1024
"""Heap that Kafka's own kafka-server-start.sh sets, at once."""
KAFKA_JAVA = (*SERVER_JAVA, f"-Xms{KAFKA_HEAP_MB}m")
"""The JVM's options, as those scripts give them."""
KAFKA_PROPERTIES = {
    # Kafka's documentation recommends one thread a core at most; its defaults (3 and 8) are for larger machines.
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}
BMQ_ENVIRONMENT = {
    "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "BMQ_AUTO_CREATE_TOPICS_ENABLE": "false",
    "BMQ_LOG_LEVEL": "WARNING",
}

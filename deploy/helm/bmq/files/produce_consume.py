"""Produce records and read them again, through the bootstrap address: what `helm test` does.

    python produce_consume.py HOST:PORT

The topic is made for it and deleted after it.
"""

import sys
import time
import uuid
from collections.abc import Sequence

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

RECORDS = 100
PARTITIONS = 3
TIMEOUT_S = 60


def main(arguments: Sequence[str]) -> int:
    """0 when every record came back."""
    if len(arguments) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    bootstrap, topic = arguments[0], f"bmq-helm-test-{uuid.uuid4().hex[:12]}"
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=-1)])
    try:
        sent = {b"record %d" % number for number in range(RECORDS)}
        produce(bootstrap, topic, sent)
        read = consume(bootstrap, topic)
    finally:
        admin.delete_topics([topic])
        admin.close()
    if read != sent:
        sys.stderr.write(f"{len(sent)} records were acknowledged, {len(read & sent)} of them came back\n")
        return 1
    sys.stdout.write(f"{len(sent)} records were acknowledged and came back\n")
    return 0


def produce(bootstrap: str, topic: str, values: set[bytes]) -> None:
    """Return when every record is acknowledged; raises KafkaError otherwise."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    waiting = [producer.send(topic, value) for value in sorted(values)]
    for future in waiting:
        future.get(timeout=TIMEOUT_S)
    producer.close()


def consume(bootstrap: str, topic: str) -> set[bytes]:
    """Return what a group of one reads until it has as many records as were sent, or the time is over."""
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
    values: set[bytes] = set()
    end = time.monotonic() + TIMEOUT_S
    while len(values) < RECORDS and time.monotonic() < end:
        for records in consumer.poll(timeout_ms=500).values():
            values.update(record.value for record in records)
    consumer.close()
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

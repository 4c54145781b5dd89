"""Produce records and read them again, through the bootstrap address: what `helm test` does.

    python produce_consume.py HOST:PORT

The topic is made for it and deleted after it.  How it connects comes from the environment:

    KAFKA_PROTOCOL                  the listener's: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
    KAFKA_CA                        file of the authority of the listener's certificate
    KAFKA_MECHANISM, KAFKA_USER, KAFKA_PASSWORD_FILE   of SASL
"""

import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

RECORDS = 100
PARTITIONS = 3
TIMEOUT_S = 60


def settings(bootstrap: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what every client is made with."""
    found: dict[str, Any] = {"bootstrap_servers": bootstrap}
    protocol = found["security_protocol"] = environment.get("KAFKA_PROTOCOL", "PLAINTEXT")
    if "KAFKA_CA" in environment:
        found["ssl_cafile"] = environment["KAFKA_CA"]
    if protocol.startswith("SASL_"):
        found["sasl_mechanism"] = environment["KAFKA_MECHANISM"]
        found["sasl_plain_username"] = environment["KAFKA_USER"]
        found["sasl_plain_password"] = Path(environment["KAFKA_PASSWORD_FILE"]).read_text().splitlines()[0]
    return found


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """0 when every record came back."""
    if len(arguments) != 1:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    client, topic = settings(arguments[0], environment), f"bmq-helm-test-{uuid.uuid4().hex[:12]}"
    admin = KafkaAdminClient(**client)
    admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=-1)])
    try:
        sent = {b"record %d" % number for number in range(RECORDS)}
        produce(client, topic, sent)
        read = consume(client, topic)
    finally:
        admin.delete_topics([topic])
        admin.close()
    if read != sent:
        sys.stderr.write(f"{len(sent)} records were acknowledged, {len(read & sent)} of them came back\n")
        return 1
    sys.stdout.write(f"{len(sent)} records were acknowledged and came back\n")
    return 0


def produce(client: Mapping[str, Any], topic: str, values: set[bytes]) -> None:
    """Return when every record is acknowledged; raises KafkaError otherwise."""
    producer = KafkaProducer(**client, acks="all")
    waiting = [producer.send(topic, value) for value in sorted(values)]
    for future in waiting:
        future.get(timeout=TIMEOUT_S)
    producer.close()


def consume(client: Mapping[str, Any], topic: str) -> set[bytes]:
    """Return what a group of one reads until it has as many records as were sent, or the time is over.

    A poll has all the time that is left.  kafka-python 3.0 forgets a rejoin of its group if a poll ends during it.
    """
    consumer = KafkaConsumer(topic, **client, group_id=topic, auto_offset_reset="earliest")
    values: set[bytes] = set()
    end = time.monotonic() + TIMEOUT_S
    while len(values) < RECORDS and (left_s := end - time.monotonic()) > 0:
        for records in consumer.poll(timeout_ms=int(left_s * 1000)).values():
            values.update(record.value for record in records)
    consumer.close()
    return values


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))

"""The report on a group that does not go on: what its coordinator, its clients and the partitions' servers say.

A group stands still when the servers do not respond, and also when they do: a client may wait in a call of its own, or
may have come back under another id, so that the group waits for the session of the old id.  `describe` asks all three.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

ASK_S = 5.0
"""How long each of the servers' answers is waited for, in seconds."""


def describe(bootstrap: str, group: str, topic: str, clients: Mapping[str, str], behind: Mapping[int, int]) -> str:
    """Return lines on the group's state, on each of its clients, and on each partition that is behind.

    ``clients`` says what each client does, by client id; ``behind`` is the next offset by partition.
    """
    return "\n".join([*_group(bootstrap, group, clients), *_partitions(bootstrap, topic, behind)])


def _group(bootstrap: str, group: str, clients: Mapping[str, str]) -> list[str]:
    """Compare the clients with the members that the coordinator has: a client that has two is waited for as the first.

    The clients are not asked for their member ids: that call of the binding waits for a client that waits.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    members: dict[str, list[str]] = {}
    try:
        found: Any = admin.describe_consumer_groups([group], request_timeout=ASK_S)[group].result(ASK_S)
    except (KafkaException, TimeoutError) as error:
        state = f"the coordinator does not respond: {error}"
    else:
        state = f"the coordinator says {found.state.name} with {len(found.members)} members of {len(clients)} clients"
        for each in found.members:
            members.setdefault(each.client_id, []).append(each.member_id)
    lines = [state, *(f"client {client}: {text}" for client, text in clients.items())]
    for client, ids in members.items():
        if client not in clients:
            lines.append(f"client {client} is not of this test: the group waits for {ids}")
        elif len(ids) > 1:
            lines.append(
                f"client {client} has forgotten an id: the group waits for the sessions of all but one of {ids}"
            )
    return lines


def _partitions(bootstrap: str, topic: str, behind: Mapping[int, int]) -> list[str]:
    """Read from each partition that is behind, as a client that belongs to no group."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "trouble", "enable.auto.commit": False, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, *each) for each in behind.items()])
    began, given = time.monotonic(), dict[int, str]()
    while len(given) < len(behind) and (waited_s := time.monotonic() - began) < ASK_S:
        for message in consumer.consume(1000, 0.1):
            partition, error = message.partition(), message.error()
            if partition is not None:
                given.setdefault(partition, str(error or f"offset {message.offset()}") + f" in {waited_s:.1f} s")
    consumer.close()
    return [f"partition {each} at {behind[each]}: the servers give {given.get(each, 'nothing')}" for each in behind]

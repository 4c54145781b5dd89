"""DescribeTransactions (KIP-664), whose response has a tagged field of this project.  Kafka's clients skip the field.

``marker_errors`` of a topic: why a partition of an ended transaction refused the marker at the last try, for each of
``partitions`` in their order, "" without a refusal.  It is empty if no partition of the topic has refused its marker,
and from servers without the field.

kafka-python's clients in a process that has loaded this module read responses as this class.
"""

from __future__ import annotations

from kafka.protocol.admin.transactions import DescribeTransactionsRequest as DescribeTransactionsRequest  # comes first
from kafka.protocol.api_message import ApiMessage

from bmq.core.wire import schemas


class DescribeTransactionsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Response with the state of each transactional id."""

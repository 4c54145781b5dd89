"""DescribeTransactions (KIP-664), whose response has tagged fields of this project.  Kafka's clients skip the fields.

=======================  ===========================================================================================
field                    content
=======================  ===========================================================================================
``marker_errors``        of a transaction: the different reasons why the last try wrote no marker to partitions of an
                         ended transaction: a refusal, or a time-out.  100,000 partitions may share a reason
``marker_error_of``      of a topic: for ``partitions``, in their order, the index of the reason in ``marker_errors``;
                         ``NO_ERROR`` before a failed try.  Empty if no try has failed for a partition of the topic
=======================  ===========================================================================================

Both are empty in responses of servers without the fields.  Tag 10000 of a topic is of an earlier form.

kafka-python's clients in a process that has loaded this module read responses as this class.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin.transactions import DescribeTransactionsRequest as DescribeTransactionsRequest  # comes first
from kafka.protocol.api_message import ApiMessage

from bmq.core.wire import schemas


class DescribeTransactionsResponse(ApiMessage, load_json=schemas):  # type: ignore[call-arg, misc]
    """Response with the state of each transactional id."""


NO_ERROR = -1


def errors_of(state: Any, topic: Any) -> list[str]:
    """Return the reasons of a topic's ``partitions``, in their order; "" for a partition without a reason.

    ``topic`` is one of the topics of ``state``.
    """
    texts, places = state.marker_errors, topic.marker_error_of
    known = [texts[each] if 0 <= each < len(texts) else "" for each in places[: len(topic.partitions)]]
    return known + [""] * (len(topic.partitions) - len(known))


def forget_errors(state: Any) -> None:
    """Empty the reasons of topics that were taken out of a transaction's ``state``."""
    used = {each for topic in state.topics for each in topic.marker_error_of}
    state.marker_errors = [text if place in used else "" for place, text in enumerate(state.marker_errors)]

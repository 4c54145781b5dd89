"""The internal topics: content, number of partitions and first configs of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bmq.core.config import NodeConfig
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

MESSAGE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """One internal topic.

    | field | meaning |
    |---|---|
    | ``holds`` | its content, for refusals |
    | ``partitions`` | its first number of partitions |
    | ``setting`` | Kafka's name of the setting for this number |
    | ``own_configs`` | the configs that other internal topics do not have, by the copies that storage keeps |
    """

    holds: str
    partitions: Callable[[NodeConfig], int]
    setting: str
    own_configs: Callable[[NodeConfig, int], Mapping[str, str]]

    def configs(self, config: NodeConfig, copies: int) -> dict[str, str]:
        """Return the first configs of the topic: Kafka's, with room for a group of any size.

        ``copies``: most copies that storage keeps of the topic's segments now; more could never be asked for.  See
        Kafka's ``GroupCoordinatorService.groupMetadataTopicConfigs`` and
        ``TransactionStateManager.transactionTopicConfigs``.  A group is one record with all its members' subscriptions
        and assignments.  Under the default size of a client's batch, a large group could not be written and would
        never finish a rebalance.
        """
        return {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
            **self.own_configs(config, copies),
        }


def _offsets_configs(config: NodeConfig, _copies: int) -> dict[str, str]:
    return {"segment.bytes": str(config.offsets_topic_segment_bytes)}


def _transactions_configs(config: NodeConfig, copies: int) -> dict[str, str]:
    return {
        "segment.bytes": str(config.transaction_state_log_segment_bytes),
        "min.insync.replicas": str(min(config.transaction_state_log_min_isr, copies)),
    }


BY_NAME: Mapping[str, InternalTopic] = {
    OFFSETS_TOPIC: InternalTopic(
        holds="the offsets and members of all groups",
        partitions=lambda config: config.offsets_topic_num_partitions,
        setting="offsets.topic.num.partitions",
        own_configs=_offsets_configs,
    ),
    TRANSACTIONS_TOPIC: InternalTopic(
        holds="the state of all transactions",
        partitions=lambda config: config.transaction_state_log_num_partitions,
        setting="transaction.state.log.num.partitions",
        own_configs=_transactions_configs,
    ),
}
"""An entry for each name in ``meta.catalog.INTERNAL_TOPICS``."""

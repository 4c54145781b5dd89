"""All APIs of the endpoint for clients, from the handlers' registrations; ApiVersions is built from this."""

from __future__ import annotations

from bmq.endpoint import api_versions
from bmq.endpoint.api import Api
from bmq.endpoint.fetch import handler as fetch
from bmq.endpoint.produce import handler as produce
from bmq.proxy.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    expire_delegation_token,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from bmq.proxy.scopes import ProxyScopes

SERVES_TRANSACTIONS = True
"""The switch of transactions: False while the feature ``transaction.version`` ends at level 0."""
OF_TRANSACTIONS: tuple[Api[ProxyScopes], ...] = tuple(
    api
    for module in (
        add_partitions_to_txn,
        add_offsets_to_txn,
        end_txn,
        describe_transactions,
        list_transactions,
        txn_offset_commit,
        write_txn_markers,
    )
    for api in module.APIS
)
"""APIs that are neither listed nor served while the switch is off."""

ALL_APIS: tuple[Api[ProxyScopes], ...] = tuple(
    api
    for module in (
        produce,
        fetch,
        list_offsets,
        metadata,
        offset_commit,
        offset_fetch,
        find_coordinator,
        join_group,
        heartbeat,
        leave_group,
        sync_group,
        describe_groups,
        list_groups,
        sasl_handshake,
        api_versions,
        create_topics,
        delete_topics,
        delete_records,
        init_producer_id,
        offset_for_leader_epoch,
        describe_acls,
        create_acls,
        delete_acls,
        describe_configs,
        alter_configs,
        describe_log_dirs,
        sasl_authenticate,
        create_partitions,
        create_delegation_token,
        renew_delegation_token,
        expire_delegation_token,
        describe_delegation_token,
        delete_groups,
        offset_delete,
        describe_user_scram_credentials,
        alter_user_scram_credentials,
        update_features,
        describe_cluster,
        describe_producers,
        describe_topic_partitions,
        elect_leaders,
        alter_partition_reassignments,
        list_partition_reassignments,
        describe_client_quotas,
        alter_client_quotas,
    )
    for api in module.APIS
) + (OF_TRANSACTIONS if SERVES_TRANSACTIONS else ())

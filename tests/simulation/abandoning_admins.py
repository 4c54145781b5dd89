"""Administrators with a change that they give up, make through another process, and then replace or undo."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataResponse

from bmq.core.errors import ErrorCode
from bmq.core.features import TRANSACTION_VERSION, UpgradeType
from bmq.core.wire.api_keys import ApiKey
from tests.simulation.abandoned_requests import Message, respond
from tests.simulation.abandoning import Abandoning
from tests.simulation.cluster_world import ClusterClient
from tests.simulation.kafka_clients import create_topic, metadata_request

_TOPIC, _BROKER = 2, 4  # types of resources with configs
_ANY, _ALLOW, _READ = 1, 3, 3
_LITERAL = 3
_SHA_256 = 1


@dataclass
class Change:
    """A change, and the errors that it gets if it was made already."""

    message: Message
    done: tuple[ErrorCode, ...] = ()


class Administrating(Abandoning):
    """An administrator: gives up the first of ``changes``, and makes all of them through other processes."""

    shards = None
    changes: tuple[Change, ...]
    right: object
    """What ``describe`` returns after the last change."""

    async def give_up(self) -> None:
        await self.abandon(self.changes[0].message)

    async def go_on(self) -> None:
        for change in self.changes:
            await self.respond(change.message, *change.done)

    async def describe(self, client: ClusterClient) -> object:
        raise NotImplementedError

    async def check(self) -> None:
        found = await self.at.ask(self.describe)
        assert found == self.right, f"{self.name}: {found} after the last change, not {self.right}"


class _Configuring(Administrating):
    """An administrator of the configs of a topic or of all brokers."""

    kind: int
    config: str

    async def prepare(self) -> None:
        await super().prepare()
        first = 2_000_000 + 10 * self.at.number
        self.changes = tuple(Change(self._set(str(first + each))) for each in range(2))
        self.right = str(first + 1)

    @property
    def resource(self) -> str:
        return self.name if self.kind == _TOPIC else ""

    def _set(self, value: str) -> Message:
        Resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        config = Resource.AlterableConfig(name=self.config, config_operation=0, value=value)
        resource = Resource(resource_type=self.kind, resource_name=self.resource, configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        return Message(request, IncrementalAlterConfigsResponse, 1)

    async def describe(self, client: ClusterClient) -> object:
        Resource = DescribeConfigsRequest.DescribeConfigsResource
        resource = Resource(resource_type=self.kind, resource_name=self.resource, configuration_keys=[self.config])
        response = await respond(
            client, Message(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 1)
        )
        return response.results[0].configs[0].value


class ConfiguringTopics(_Configuring):
    """An administrator of a topic of its own."""

    apis = (ApiKey.INCREMENTAL_ALTER_CONFIGS,)
    found_by = "the value that was set last stands"

    kind, config = _TOPIC, "retention.ms"

    async def prepare(self) -> None:
        await super().prepare()
        await create_topic(self.at.world, self.name, 1)


class ConfiguringBrokers(_Configuring):
    """An administrator of the default of all brokers."""

    apis = (ApiKey.INCREMENTAL_ALTER_CONFIGS,)
    found_by = "the value that was set last stands"

    kind, config = _BROKER, "message.max.bytes"


class ReplacingConfigs(ConfiguringTopics):
    """An administrator of a topic of its own, with a tool that sends all configs each time."""

    apis = (ApiKey.ALTER_CONFIGS,)

    def _set(self, value: str) -> Message:
        Resource = AlterConfigsRequest.AlterConfigsResource
        config = Resource.AlterableConfig(name=self.config, value=value)
        resource = Resource(resource_type=self.kind, resource_name=self.resource, configs=[config])
        return Message(AlterConfigsRequest(resources=[resource], validate_only=False), AlterConfigsResponse, 1)


class Downgrading(Administrating):
    """An administrator who lowers ``transaction.version`` to 1, and raises it to 2 again."""

    apis = (ApiKey.UPDATE_FEATURES,)
    found_by = "the level is 2"

    async def prepare(self) -> None:
        await super().prepare()
        levels = (1, UpgradeType.SAFE_DOWNGRADE), (2, UpgradeType.UPGRADE)
        self.changes, self.right = tuple(Change(self._set(*each)) for each in levels), 2

    def _set(self, level: int, kind: UpgradeType) -> Message:
        update = UpdateFeaturesRequest.FeatureUpdateKey(
            feature=TRANSACTION_VERSION, max_version_level=level, upgrade_type=kind.value
        )
        request = UpdateFeaturesRequest(timeout_ms=20_000, feature_updates=[update], validate_only=False)
        return Message(request, UpdateFeaturesResponse, 1)

    async def describe(self, client: ClusterClient) -> object:
        request = ApiVersionsRequest(client_software_name="bmq", client_software_version="1")
        response = await respond(client, Message(request, ApiVersionsResponse, 3))
        found = {each.name: each.max_version_level for each in response.finalized_features}
        return found.get(TRANSACTION_VERSION)


class _OfTopics(Administrating):
    """An administrator who creates and deletes topics."""

    def create(self) -> Change:
        Topic = CreateTopicsRequest.CreatableTopic
        topic = Topic(name=self.name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        message = Message(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), CreateTopicsResponse, 4)
        return Change(message, (ErrorCode.TOPIC_ALREADY_EXISTS,))

    def delete(self) -> Change:
        message = Message(DeleteTopicsRequest(topic_names=[self.name], timeout_ms=20_000), DeleteTopicsResponse, 3)
        return Change(message, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))

    async def describe(self, client: ClusterClient) -> int:
        """Return the number of partitions; 0 without the topic."""
        message = Message(metadata_request(self.name), MetadataResponse, 9)
        response = await respond(client, message, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,))
        return len(response.topics[0].partitions)


class CreatingTopics(_OfTopics):
    """An administrator who creates a topic, and deletes it again."""

    apis = (ApiKey.CREATE_TOPICS,)
    found_by = "the topic is not there"

    async def prepare(self) -> None:
        await super().prepare()
        self.changes, self.right = (self.create(), self.delete()), 0


class DeletingTopics(_OfTopics):
    """An administrator who deletes a topic, and creates it again."""

    apis = (ApiKey.DELETE_TOPICS,)
    found_by = "the topic is there"

    async def prepare(self) -> None:
        await super().prepare()
        await create_topic(self.at.world, self.name, 1)
        self.changes, self.right = (self.delete(), self.create()), 1


class Partitioning(_OfTopics):
    """An administrator who adds a partition to a topic, and creates the topic again with one."""

    apis = (ApiKey.CREATE_PARTITIONS,)
    found_by = "the topic has one partition"

    async def prepare(self) -> None:
        await super().prepare()
        await create_topic(self.at.world, self.name, 1)
        topic = CreatePartitionsRequest.CreatePartitionsTopic(name=self.name, count=2, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=20_000, validate_only=False)
        add = Change(Message(request, CreatePartitionsResponse, 3), (ErrorCode.INVALID_PARTITIONS,))
        self.changes, self.right = (add, self.delete(), self.create()), 1


class SettingQuotas(Administrating):
    """An administrator of the quota of a client."""

    apis = (ApiKey.ALTER_CLIENT_QUOTAS,)
    found_by = "the value that was set last stands"

    async def prepare(self) -> None:
        await super().prepare()
        self.changes, self.right = tuple(Change(self._set(rate)) for rate in (1e6, 2e6)), 2e6

    def _set(self, rate: float) -> Message:
        Entry = AlterClientQuotasRequest.EntryData
        entity = Entry.EntityData(entity_type="client-id", entity_name=self.name)
        op = Entry.OpData(key="producer_byte_rate", value=rate, remove=False)
        request = AlterClientQuotasRequest(entries=[Entry(entity=[entity], ops=[op])], validate_only=False)
        return Message(request, AlterClientQuotasResponse, 1)

    async def describe(self, client: ClusterClient) -> object:
        Component = DescribeClientQuotasRequest.ComponentData
        component = Component(entity_type="client-id", match_type=0, match=self.name)
        request = DescribeClientQuotasRequest(components=[component], strict=True)
        (entry,) = (await respond(client, Message(request, DescribeClientQuotasResponse, 1))).entries
        return entry.values[0].value


class SettingPasswords(Administrating):
    """An administrator who gives a user a password, and takes it away again."""

    apis = (ApiKey.ALTER_USER_SCRAM_CREDENTIALS,)
    found_by = "the user has no password"

    async def prepare(self) -> None:
        await super().prepare()
        Request = AlterUserScramCredentialsRequest
        put = Request.ScramCredentialUpsertion(
            name=self.name, mechanism=_SHA_256, iterations=4096, salt=b"salt", salted_password=b"s" * 32
        )
        remove = Request.ScramCredentialDeletion(name=self.name, mechanism=_SHA_256)
        requests = Request(deletions=[], upsertions=[put]), Request(deletions=[remove], upsertions=[])
        done = (), (ErrorCode.RESOURCE_NOT_FOUND,)
        self.changes = tuple(
            Change(Message(request, AlterUserScramCredentialsResponse, 0), each)
            for request, each in zip(requests, done, strict=True)
        )
        self.right = 0

    async def describe(self, client: ClusterClient) -> int:
        Request = DescribeUserScramCredentialsRequest
        message = Message(Request(users=[Request.UserName(name=self.name)]), DescribeUserScramCredentialsResponse, 0)
        response = await respond(client, message, (ErrorCode.RESOURCE_NOT_FOUND,))
        return sum(len(each.credential_infos) for each in response.results)


class _OfRights(Administrating):
    """An administrator of a right to read a topic."""

    def create(self) -> Change:
        creation = CreateAclsRequest.AclCreation(
            resource_type=_TOPIC, resource_name=self.name, resource_pattern_type=_LITERAL, principal="User:alice",
            host="*", operation=_READ, permission_type=_ALLOW,
        )  # fmt: skip
        return Change(Message(CreateAclsRequest(creations=[creation]), CreateAclsResponse, 3))

    def delete(self) -> Change:
        matching = DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=_TOPIC, resource_name_filter=self.name, pattern_type_filter=_LITERAL,
            principal_filter=None, host_filter=None, operation=_ANY, permission_type=_ANY,
        )  # fmt: skip
        return Change(Message(DeleteAclsRequest(filters=[matching]), DeleteAclsResponse, 3))

    async def describe(self, client: ClusterClient) -> int:
        """Return the number of rights."""
        request = DescribeAclsRequest(
            resource_type_filter=_TOPIC, resource_name_filter=self.name, pattern_type_filter=_LITERAL,
            principal_filter=None, host_filter=None, operation=_ANY, permission_type=_ANY,
        )  # fmt: skip
        response: Any = await respond(client, Message(request, DescribeAclsResponse, 3))
        return sum(len(each.acls) for each in response.resources)


class Granting(_OfRights):
    """An administrator who grants a right, and revokes it."""

    apis = (ApiKey.CREATE_ACLS,)
    found_by = "the right is not there"

    async def prepare(self) -> None:
        await super().prepare()
        self.changes, self.right = (self.create(), self.delete()), 0


class Revoking(_OfRights):
    """An administrator who revokes a right, and grants it again."""

    apis = (ApiKey.DELETE_ACLS,)
    found_by = "the right is there"

    async def prepare(self) -> None:
        await super().prepare()
        self.changes, self.right = (self.delete(), self.create()), 1
        await self.at.ask(partial(respond, message=self.create().message))


KINDS = (
    ConfiguringTopics, ConfiguringBrokers, ReplacingConfigs, Downgrading, CreatingTopics, DeletingTopics, Partitioning,
    SettingQuotas, SettingPasswords, Granting, Revoking,
)  # fmt: skip

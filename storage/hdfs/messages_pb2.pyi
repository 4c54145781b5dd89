from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RpcRequestHeader(_message.Message):
    __slots__ = ("rpc_kind", "rpc_op", "call_id", "client_id", "retry_count")
    RPC_KIND_FIELD_NUMBER: _ClassVar[int]
    RPC_OP_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    RETRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    rpc_kind: int
    rpc_op: int
    call_id: int
    client_id: bytes
    retry_count: int
    def __init__(self, rpc_kind: _Optional[int] = ..., rpc_op: _Optional[int] = ..., call_id: _Optional[int] = ..., client_id: _Optional[bytes] = ..., retry_count: _Optional[int] = ...) -> None: ...

class RpcResponseHeader(_message.Message):
    __slots__ = ("call_id", "status", "exception_class", "error_message", "error_detail")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[RpcResponseHeader.Status]
        ERROR: _ClassVar[RpcResponseHeader.Status]
        FATAL: _ClassVar[RpcResponseHeader.Status]
    SUCCESS: RpcResponseHeader.Status
    ERROR: RpcResponseHeader.Status
    FATAL: RpcResponseHeader.Status
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_DETAIL_FIELD_NUMBER: _ClassVar[int]
    call_id: int
    status: RpcResponseHeader.Status
    exception_class: str
    error_message: str
    error_detail: int
    def __init__(self, call_id: _Optional[int] = ..., status: _Optional[_Union[RpcResponseHeader.Status, str]] = ..., exception_class: _Optional[str] = ..., error_message: _Optional[str] = ..., error_detail: _Optional[int] = ...) -> None: ...

class ConnectionContext(_message.Message):
    __slots__ = ("user", "protocol")
    class User(_message.Message):
        __slots__ = ("effective_user",)
        EFFECTIVE_USER_FIELD_NUMBER: _ClassVar[int]
        effective_user: str
        def __init__(self, effective_user: _Optional[str] = ...) -> None: ...
    USER_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    user: ConnectionContext.User
    protocol: str
    def __init__(self, user: _Optional[_Union[ConnectionContext.User, _Mapping]] = ..., protocol: _Optional[str] = ...) -> None: ...

class RpcSasl(_message.Message):
    __slots__ = ("state", "token", "auths")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[RpcSasl.State]
        NEGOTIATE: _ClassVar[RpcSasl.State]
        INITIATE: _ClassVar[RpcSasl.State]
        CHALLENGE: _ClassVar[RpcSasl.State]
        RESPONSE: _ClassVar[RpcSasl.State]
        WRAP: _ClassVar[RpcSasl.State]
    SUCCESS: RpcSasl.State
    NEGOTIATE: RpcSasl.State
    INITIATE: RpcSasl.State
    CHALLENGE: RpcSasl.State
    RESPONSE: RpcSasl.State
    WRAP: RpcSasl.State
    class Auth(_message.Message):
        __slots__ = ("method", "mechanism", "protocol", "server_id", "challenge")
        METHOD_FIELD_NUMBER: _ClassVar[int]
        MECHANISM_FIELD_NUMBER: _ClassVar[int]
        PROTOCOL_FIELD_NUMBER: _ClassVar[int]
        SERVER_ID_FIELD_NUMBER: _ClassVar[int]
        CHALLENGE_FIELD_NUMBER: _ClassVar[int]
        method: str
        mechanism: str
        protocol: str
        server_id: str
        challenge: bytes
        def __init__(self, method: _Optional[str] = ..., mechanism: _Optional[str] = ..., protocol: _Optional[str] = ..., server_id: _Optional[str] = ..., challenge: _Optional[bytes] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AUTHS_FIELD_NUMBER: _ClassVar[int]
    state: RpcSasl.State
    token: bytes
    auths: _containers.RepeatedCompositeFieldContainer[RpcSasl.Auth]
    def __init__(self, state: _Optional[_Union[RpcSasl.State, str]] = ..., token: _Optional[bytes] = ..., auths: _Optional[_Iterable[_Union[RpcSasl.Auth, _Mapping]]] = ...) -> None: ...

class CallHeader(_message.Message):
    __slots__ = ("method", "protocol", "version")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    method: str
    protocol: str
    version: int
    def __init__(self, method: _Optional[str] = ..., protocol: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("identifier", "password", "kind", "service")
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    identifier: bytes
    password: bytes
    kind: str
    service: str
    def __init__(self, identifier: _Optional[bytes] = ..., password: _Optional[bytes] = ..., kind: _Optional[str] = ..., service: _Optional[str] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("pool", "id", "generation", "length")
    POOL_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    pool: str
    id: int
    generation: int
    length: int
    def __init__(self, pool: _Optional[str] = ..., id: _Optional[int] = ..., generation: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class NodeId(_message.Message):
    __slots__ = ("ip", "host", "uuid", "data_port", "info_port", "ipc_port")
    IP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    DATA_PORT_FIELD_NUMBER: _ClassVar[int]
    INFO_PORT_FIELD_NUMBER: _ClassVar[int]
    IPC_PORT_FIELD_NUMBER: _ClassVar[int]
    ip: str
    host: str
    uuid: str
    data_port: int
    info_port: int
    ipc_port: int
    def __init__(self, ip: _Optional[str] = ..., host: _Optional[str] = ..., uuid: _Optional[str] = ..., data_port: _Optional[int] = ..., info_port: _Optional[int] = ..., ipc_port: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("id", "location")
    ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    id: NodeId
    location: str
    def __init__(self, id: _Optional[_Union[NodeId, _Mapping]] = ..., location: _Optional[str] = ...) -> None: ...

class LocatedBlock(_message.Message):
    __slots__ = ("block", "offset", "nodes", "corrupt", "token", "storage_types", "storage_ids")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    block: Block
    offset: int
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    corrupt: bool
    token: Token
    storage_types: _containers.RepeatedScalarFieldContainer[int]
    storage_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., offset: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., corrupt: _Optional[bool] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., storage_types: _Optional[_Iterable[int]] = ..., storage_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class LocatedBlocks(_message.Message):
    __slots__ = ("file_length", "blocks", "under_construction", "last_block", "last_block_complete", "encryption", "erasure_coding")
    FILE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    UNDER_CONSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    ERASURE_CODING_FIELD_NUMBER: _ClassVar[int]
    file_length: int
    blocks: _containers.RepeatedCompositeFieldContainer[LocatedBlock]
    under_construction: bool
    last_block: LocatedBlock
    last_block_complete: bool
    encryption: EncryptionInfo
    erasure_coding: ErasureCodingPolicy
    def __init__(self, file_length: _Optional[int] = ..., blocks: _Optional[_Iterable[_Union[LocatedBlock, _Mapping]]] = ..., under_construction: _Optional[bool] = ..., last_block: _Optional[_Union[LocatedBlock, _Mapping]] = ..., last_block_complete: _Optional[bool] = ..., encryption: _Optional[_Union[EncryptionInfo, _Mapping]] = ..., erasure_coding: _Optional[_Union[ErasureCodingPolicy, _Mapping]] = ...) -> None: ...

class EncryptionInfo(_message.Message):
    __slots__ = ("key_name",)
    KEY_NAME_FIELD_NUMBER: _ClassVar[int]
    key_name: str
    def __init__(self, key_name: _Optional[str] = ...) -> None: ...

class ErasureCodingPolicy(_message.Message):
    __slots__ = ("name", "id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: int
    def __init__(self, name: _Optional[str] = ..., id: _Optional[int] = ...) -> None: ...

class Permission(_message.Message):
    __slots__ = ("mode",)
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: int
    def __init__(self, mode: _Optional[int] = ...) -> None: ...

class FileInfo(_message.Message):
    __slots__ = ("kind", "path", "length", "permission", "owner", "group", "modification_time", "access_time", "replication", "block_size", "file_id", "encryption", "erasure_coding", "flags")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        DIRECTORY: _ClassVar[FileInfo.Kind]
        FILE: _ClassVar[FileInfo.Kind]
        SYMLINK: _ClassVar[FileInfo.Kind]
    DIRECTORY: FileInfo.Kind
    FILE: FileInfo.Kind
    SYMLINK: FileInfo.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MODIFICATION_TIME_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TIME_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    ERASURE_CODING_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    kind: FileInfo.Kind
    path: bytes
    length: int
    permission: Permission
    owner: str
    group: str
    modification_time: int
    access_time: int
    replication: int
    block_size: int
    file_id: int
    encryption: EncryptionInfo
    erasure_coding: ErasureCodingPolicy
    flags: int
    def __init__(self, kind: _Optional[_Union[FileInfo.Kind, str]] = ..., path: _Optional[bytes] = ..., length: _Optional[int] = ..., permission: _Optional[_Union[Permission, _Mapping]] = ..., owner: _Optional[str] = ..., group: _Optional[str] = ..., modification_time: _Optional[int] = ..., access_time: _Optional[int] = ..., replication: _Optional[int] = ..., block_size: _Optional[int] = ..., file_id: _Optional[int] = ..., encryption: _Optional[_Union[EncryptionInfo, _Mapping]] = ..., erasure_coding: _Optional[_Union[ErasureCodingPolicy, _Mapping]] = ..., flags: _Optional[int] = ...) -> None: ...

class DirectoryListing(_message.Message):
    __slots__ = ("entries", "remaining")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[FileInfo]
    remaining: int
    def __init__(self, entries: _Optional[_Iterable[_Union[FileInfo, _Mapping]]] = ..., remaining: _Optional[int] = ...) -> None: ...

class VoidResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BoolResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: bool
    def __init__(self, result: _Optional[bool] = ...) -> None: ...

class GetBlockLocationsRequest(_message.Message):
    __slots__ = ("path", "offset", "length")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    path: str
    offset: int
    length: int
    def __init__(self, path: _Optional[str] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class GetBlockLocationsResponse(_message.Message):
    __slots__ = ("locations",)
    LOCATIONS_FIELD_NUMBER: _ClassVar[int]
    locations: LocatedBlocks
    def __init__(self, locations: _Optional[_Union[LocatedBlocks, _Mapping]] = ...) -> None: ...

class GetServerDefaultsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerDefaultsResponse(_message.Message):
    __slots__ = ("defaults",)
    class Defaults(_message.Message):
        __slots__ = ("block_size", "chunk_bytes", "packet_bytes", "replication", "buffer_bytes", "encrypt_data")
        BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
        CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
        PACKET_BYTES_FIELD_NUMBER: _ClassVar[int]
        REPLICATION_FIELD_NUMBER: _ClassVar[int]
        BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
        ENCRYPT_DATA_FIELD_NUMBER: _ClassVar[int]
        block_size: int
        chunk_bytes: int
        packet_bytes: int
        replication: int
        buffer_bytes: int
        encrypt_data: bool
        def __init__(self, block_size: _Optional[int] = ..., chunk_bytes: _Optional[int] = ..., packet_bytes: _Optional[int] = ..., replication: _Optional[int] = ..., buffer_bytes: _Optional[int] = ..., encrypt_data: _Optional[bool] = ...) -> None: ...
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    defaults: GetServerDefaultsResponse.Defaults
    def __init__(self, defaults: _Optional[_Union[GetServerDefaultsResponse.Defaults, _Mapping]] = ...) -> None: ...

class GetDataEncryptionKeyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetDataEncryptionKeyResponse(_message.Message):
    __slots__ = ("key",)
    class Key(_message.Message):
        __slots__ = ("id", "pool", "nonce", "key", "expiry_ms", "algorithm")
        ID_FIELD_NUMBER: _ClassVar[int]
        POOL_FIELD_NUMBER: _ClassVar[int]
        NONCE_FIELD_NUMBER: _ClassVar[int]
        KEY_FIELD_NUMBER: _ClassVar[int]
        EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
        ALGORITHM_FIELD_NUMBER: _ClassVar[int]
        id: int
        pool: str
        nonce: bytes
        key: bytes
        expiry_ms: int
        algorithm: str
        def __init__(self, id: _Optional[int] = ..., pool: _Optional[str] = ..., nonce: _Optional[bytes] = ..., key: _Optional[bytes] = ..., expiry_ms: _Optional[int] = ..., algorithm: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: GetDataEncryptionKeyResponse.Key
    def __init__(self, key: _Optional[_Union[GetDataEncryptionKeyResponse.Key, _Mapping]] = ...) -> None: ...

class GetDatanodeReportRequest(_message.Message):
    __slots__ = ("type",)
    TYPE_FIELD_NUMBER: _ClassVar[int]
    type: int
    def __init__(self, type: _Optional[int] = ...) -> None: ...

class GetDatanodeReportResponse(_message.Message):
    __slots__ = ("datanodes",)
    class Datanode(_message.Message):
        __slots__ = ("admin_state",)
        ADMIN_STATE_FIELD_NUMBER: _ClassVar[int]
        admin_state: int
        def __init__(self, admin_state: _Optional[int] = ...) -> None: ...
    DATANODES_FIELD_NUMBER: _ClassVar[int]
    datanodes: _containers.RepeatedCompositeFieldContainer[GetDatanodeReportResponse.Datanode]
    def __init__(self, datanodes: _Optional[_Iterable[_Union[GetDatanodeReportResponse.Datanode, _Mapping]]] = ...) -> None: ...

class SetSafeModeRequest(_message.Message):
    __slots__ = ("action", "checked")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CHECKED_FIELD_NUMBER: _ClassVar[int]
    action: int
    checked: bool
    def __init__(self, action: _Optional[int] = ..., checked: _Optional[bool] = ...) -> None: ...

class SetSafeModeResponse(_message.Message):
    __slots__ = ("result",)
    RESULT_FIELD_NUMBER: _ClassVar[int]
    result: bool
    def __init__(self, result: _Optional[bool] = ...) -> None: ...

class GetFsStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFsStatsResponse(_message.Message):
    __slots__ = ("capacity", "used", "remaining", "under_replicated", "corrupt_blocks", "missing_blocks")
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    UNDER_REPLICATED_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MISSING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    capacity: int
    used: int
    remaining: int
    under_replicated: int
    corrupt_blocks: int
    missing_blocks: int
    def __init__(self, capacity: _Optional[int] = ..., used: _Optional[int] = ..., remaining: _Optional[int] = ..., under_replicated: _Optional[int] = ..., corrupt_blocks: _Optional[int] = ..., missing_blocks: _Optional[int] = ...) -> None: ...

class GetQuotaUsageResponse(_message.Message):
    __slots__ = ("usage",)
    class Usage(_message.Message):
        __slots__ = ("names", "names_quota", "bytes", "bytes_quota")
        NAMES_FIELD_NUMBER: _ClassVar[int]
        NAMES_QUOTA_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        BYTES_QUOTA_FIELD_NUMBER: _ClassVar[int]
        names: int
        names_quota: int
        bytes: int
        bytes_quota: int
        def __init__(self, names: _Optional[int] = ..., names_quota: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_quota: _Optional[int] = ...) -> None: ...
    USAGE_FIELD_NUMBER: _ClassVar[int]
    usage: GetQuotaUsageResponse.Usage
    def __init__(self, usage: _Optional[_Union[GetQuotaUsageResponse.Usage, _Mapping]] = ...) -> None: ...

class HAServiceStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HAServiceStateResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: int
    def __init__(self, state: _Optional[int] = ...) -> None: ...

class CreateRequest(_message.Message):
    __slots__ = ("path", "permission", "holder", "flags", "create_parent", "replication", "block_size", "unmasked")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    CREATE_PARENT_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    UNMASKED_FIELD_NUMBER: _ClassVar[int]
    path: str
    permission: Permission
    holder: str
    flags: int
    create_parent: bool
    replication: int
    block_size: int
    unmasked: Permission
    def __init__(self, path: _Optional[str] = ..., permission: _Optional[_Union[Permission, _Mapping]] = ..., holder: _Optional[str] = ..., flags: _Optional[int] = ..., create_parent: _Optional[bool] = ..., replication: _Optional[int] = ..., block_size: _Optional[int] = ..., unmasked: _Optional[_Union[Permission, _Mapping]] = ...) -> None: ...

class CreateResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: FileInfo
    def __init__(self, file: _Optional[_Union[FileInfo, _Mapping]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("path", "holder", "flags")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    path: str
    holder: str
    flags: int
    def __init__(self, path: _Optional[str] = ..., holder: _Optional[str] = ..., flags: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("block", "file")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    block: LocatedBlock
    file: FileInfo
    def __init__(self, block: _Optional[_Union[LocatedBlock, _Mapping]] = ..., file: _Optional[_Union[FileInfo, _Mapping]] = ...) -> None: ...

class AbandonBlockRequest(_message.Message):
    __slots__ = ("block", "path", "holder", "file_id")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    block: Block
    path: str
    holder: str
    file_id: int
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., path: _Optional[str] = ..., holder: _Optional[str] = ..., file_id: _Optional[int] = ...) -> None: ...

class AddBlockRequest(_message.Message):
    __slots__ = ("path", "holder", "previous", "exclude", "file_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    holder: str
    previous: Block
    exclude: _containers.RepeatedCompositeFieldContainer[Node]
    file_id: int
    def __init__(self, path: _Optional[str] = ..., holder: _Optional[str] = ..., previous: _Optional[_Union[Block, _Mapping]] = ..., exclude: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., file_id: _Optional[int] = ...) -> None: ...

class AddBlockResponse(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: LocatedBlock
    def __init__(self, block: _Optional[_Union[LocatedBlock, _Mapping]] = ...) -> None: ...

class CompleteRequest(_message.Message):
    __slots__ = ("path", "holder", "last", "file_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    holder: str
    last: Block
    file_id: int
    def __init__(self, path: _Optional[str] = ..., holder: _Optional[str] = ..., last: _Optional[_Union[Block, _Mapping]] = ..., file_id: _Optional[int] = ...) -> None: ...

class ConcatRequest(_message.Message):
    __slots__ = ("target", "sources")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    target: str
    sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, target: _Optional[str] = ..., sources: _Optional[_Iterable[str]] = ...) -> None: ...

class RenameRequest(_message.Message):
    __slots__ = ("source", "target", "overwrite")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    overwrite: bool
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., overwrite: _Optional[bool] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("path", "recursive")
    PATH_FIELD_NUMBER: _ClassVar[int]
    RECURSIVE_FIELD_NUMBER: _ClassVar[int]
    path: str
    recursive: bool
    def __init__(self, path: _Optional[str] = ..., recursive: _Optional[bool] = ...) -> None: ...

class MkdirsRequest(_message.Message):
    __slots__ = ("path", "permission", "create_parent", "unmasked")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_PARENT_FIELD_NUMBER: _ClassVar[int]
    UNMASKED_FIELD_NUMBER: _ClassVar[int]
    path: str
    permission: Permission
    create_parent: bool
    unmasked: Permission
    def __init__(self, path: _Optional[str] = ..., permission: _Optional[_Union[Permission, _Mapping]] = ..., create_parent: _Optional[bool] = ..., unmasked: _Optional[_Union[Permission, _Mapping]] = ...) -> None: ...

class SetPermissionRequest(_message.Message):
    __slots__ = ("path", "permission")
    PATH_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_FIELD_NUMBER: _ClassVar[int]
    path: str
    permission: Permission
    def __init__(self, path: _Optional[str] = ..., permission: _Optional[_Union[Permission, _Mapping]] = ...) -> None: ...

class SetOwnerRequest(_message.Message):
    __slots__ = ("path", "owner", "group")
    PATH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    path: str
    owner: str
    group: str
    def __init__(self, path: _Optional[str] = ..., owner: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class GetListingRequest(_message.Message):
    __slots__ = ("path", "start_after", "need_location")
    PATH_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    NEED_LOCATION_FIELD_NUMBER: _ClassVar[int]
    path: str
    start_after: bytes
    need_location: bool
    def __init__(self, path: _Optional[str] = ..., start_after: _Optional[bytes] = ..., need_location: _Optional[bool] = ...) -> None: ...

class GetListingResponse(_message.Message):
    __slots__ = ("listing",)
    LISTING_FIELD_NUMBER: _ClassVar[int]
    listing: DirectoryListing
    def __init__(self, listing: _Optional[_Union[DirectoryListing, _Mapping]] = ...) -> None: ...

class ReportBadBlocksRequest(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[LocatedBlock]
    def __init__(self, blocks: _Optional[_Iterable[_Union[LocatedBlock, _Mapping]]] = ...) -> None: ...

class GetDelegationTokenRequest(_message.Message):
    __slots__ = ("renewer",)
    RENEWER_FIELD_NUMBER: _ClassVar[int]
    renewer: str
    def __init__(self, renewer: _Optional[str] = ...) -> None: ...

class GetDelegationTokenResponse(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: Token
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ...) -> None: ...

class DelegationTokenRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: Token
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ...) -> None: ...

class RenewDelegationTokenResponse(_message.Message):
    __slots__ = ("expires_ms",)
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    expires_ms: int
    def __init__(self, expires_ms: _Optional[int] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("holder",)
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    holder: str
    def __init__(self, holder: _Optional[str] = ...) -> None: ...

class RecoverLeaseRequest(_message.Message):
    __slots__ = ("path", "holder")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    path: str
    holder: str
    def __init__(self, path: _Optional[str] = ..., holder: _Optional[str] = ...) -> None: ...

class PathRequest(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class GetFileInfoResponse(_message.Message):
    __slots__ = ("file",)
    FILE_FIELD_NUMBER: _ClassVar[int]
    file: FileInfo
    def __init__(self, file: _Optional[_Union[FileInfo, _Mapping]] = ...) -> None: ...

class FsyncRequest(_message.Message):
    __slots__ = ("path", "holder", "last_block_length", "file_id")
    PATH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    path: str
    holder: str
    last_block_length: int
    file_id: int
    def __init__(self, path: _Optional[str] = ..., holder: _Optional[str] = ..., last_block_length: _Optional[int] = ..., file_id: _Optional[int] = ...) -> None: ...

class UpdateBlockForPipelineRequest(_message.Message):
    __slots__ = ("block", "holder")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    block: Block
    holder: str
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., holder: _Optional[str] = ...) -> None: ...

class UpdateBlockForPipelineResponse(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: LocatedBlock
    def __init__(self, block: _Optional[_Union[LocatedBlock, _Mapping]] = ...) -> None: ...

class UpdatePipelineRequest(_message.Message):
    __slots__ = ("holder", "old_block", "new_block", "nodes", "storage_ids")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    OLD_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NEW_BLOCK_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    old_block: Block
    new_block: Block
    nodes: _containers.RepeatedCompositeFieldContainer[NodeId]
    storage_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, holder: _Optional[str] = ..., old_block: _Optional[_Union[Block, _Mapping]] = ..., new_block: _Optional[_Union[Block, _Mapping]] = ..., nodes: _Optional[_Iterable[_Union[NodeId, _Mapping]]] = ..., storage_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetReplicaVisibleLengthRequest(_message.Message):
    __slots__ = ("block",)
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    block: Block
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ...) -> None: ...

class GetReplicaVisibleLengthResponse(_message.Message):
    __slots__ = ("length",)
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    length: int
    def __init__(self, length: _Optional[int] = ...) -> None: ...

class OpHeader(_message.Message):
    __slots__ = ("base", "client")
    class Base(_message.Message):
        __slots__ = ("block", "token")
        BLOCK_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        block: Block
        token: Token
        def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ...) -> None: ...
    BASE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    base: OpHeader.Base
    client: str
    def __init__(self, base: _Optional[_Union[OpHeader.Base, _Mapping]] = ..., client: _Optional[str] = ...) -> None: ...

class Checksum(_message.Message):
    __slots__ = ("type", "chunk_bytes")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    type: int
    chunk_bytes: int
    def __init__(self, type: _Optional[int] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class WriteBlock(_message.Message):
    __slots__ = ("header", "targets", "stage", "pipeline_size", "min_bytes_received", "max_bytes_received", "latest_generation", "checksum", "storage_type", "target_storage_types", "storage_id", "target_storage_ids")
    class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SETUP_APPEND: _ClassVar[WriteBlock.Stage]
        SETUP_APPEND_RECOVERY: _ClassVar[WriteBlock.Stage]
        STREAMING: _ClassVar[WriteBlock.Stage]
        SETUP_STREAMING_RECOVERY: _ClassVar[WriteBlock.Stage]
        CLOSE: _ClassVar[WriteBlock.Stage]
        CLOSE_RECOVERY: _ClassVar[WriteBlock.Stage]
        SETUP_CREATE: _ClassVar[WriteBlock.Stage]
    SETUP_APPEND: WriteBlock.Stage
    SETUP_APPEND_RECOVERY: WriteBlock.Stage
    STREAMING: WriteBlock.Stage
    SETUP_STREAMING_RECOVERY: WriteBlock.Stage
    CLOSE: WriteBlock.Stage
    CLOSE_RECOVERY: WriteBlock.Stage
    SETUP_CREATE: WriteBlock.Stage
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MIN_BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    LATEST_GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    TARGET_STORAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_STORAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    header: OpHeader
    targets: _containers.RepeatedCompositeFieldContainer[Node]
    stage: WriteBlock.Stage
    pipeline_size: int
    min_bytes_received: int
    max_bytes_received: int
    latest_generation: int
    checksum: Checksum
    storage_type: int
    target_storage_types: _containers.RepeatedScalarFieldContainer[int]
    storage_id: str
    target_storage_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[_Union[OpHeader, _Mapping]] = ..., targets: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., stage: _Optional[_Union[WriteBlock.Stage, str]] = ..., pipeline_size: _Optional[int] = ..., min_bytes_received: _Optional[int] = ..., max_bytes_received: _Optional[int] = ..., latest_generation: _Optional[int] = ..., checksum: _Optional[_Union[Checksum, _Mapping]] = ..., storage_type: _Optional[int] = ..., target_storage_types: _Optional[_Iterable[int]] = ..., storage_id: _Optional[str] = ..., target_storage_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadBlock(_message.Message):
    __slots__ = ("header", "offset", "length", "send_checksums")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    SEND_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    header: OpHeader
    offset: int
    length: int
    send_checksums: bool
    def __init__(self, header: _Optional[_Union[OpHeader, _Mapping]] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ..., send_checksums: _Optional[bool] = ...) -> None: ...

class BlockOpResponse(_message.Message):
    __slots__ = ("status", "first_bad_link", "read_info", "message")
    class ReadInfo(_message.Message):
        __slots__ = ("checksum", "chunk_offset")
        CHECKSUM_FIELD_NUMBER: _ClassVar[int]
        CHUNK_OFFSET_FIELD_NUMBER: _ClassVar[int]
        checksum: Checksum
        chunk_offset: int
        def __init__(self, checksum: _Optional[_Union[Checksum, _Mapping]] = ..., chunk_offset: _Optional[int] = ...) -> None: ...
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FIRST_BAD_LINK_FIELD_NUMBER: _ClassVar[int]
    READ_INFO_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: int
    first_bad_link: str
    read_info: BlockOpResponse.ReadInfo
    message: str
    def __init__(self, status: _Optional[int] = ..., first_bad_link: _Optional[str] = ..., read_info: _Optional[_Union[BlockOpResponse.ReadInfo, _Mapping]] = ..., message: _Optional[str] = ...) -> None: ...

class ReadStatus(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    def __init__(self, status: _Optional[int] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("status", "payload", "message", "cipher_option", "access_token_error")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SUCCESS: _ClassVar[Handshake.Status]
        ERROR_UNKNOWN_KEY: _ClassVar[Handshake.Status]
        ERROR: _ClassVar[Handshake.Status]
    SUCCESS: Handshake.Status
    ERROR_UNKNOWN_KEY: Handshake.Status
    ERROR: Handshake.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CIPHER_OPTION_FIELD_NUMBER: _ClassVar[int]
    ACCESS_TOKEN_ERROR_FIELD_NUMBER: _ClassVar[int]
    status: Handshake.Status
    payload: bytes
    message: str
    cipher_option: _containers.RepeatedCompositeFieldContainer[CipherOption]
    access_token_error: bool
    def __init__(self, status: _Optional[_Union[Handshake.Status, str]] = ..., payload: _Optional[bytes] = ..., message: _Optional[str] = ..., cipher_option: _Optional[_Iterable[_Union[CipherOption, _Mapping]]] = ..., access_token_error: _Optional[bool] = ...) -> None: ...

class CipherOption(_message.Message):
    __slots__ = ("suite", "in_key", "in_iv", "out_key", "out_iv")
    SUITE_FIELD_NUMBER: _ClassVar[int]
    IN_KEY_FIELD_NUMBER: _ClassVar[int]
    IN_IV_FIELD_NUMBER: _ClassVar[int]
    OUT_KEY_FIELD_NUMBER: _ClassVar[int]
    OUT_IV_FIELD_NUMBER: _ClassVar[int]
    suite: int
    in_key: bytes
    in_iv: bytes
    out_key: bytes
    out_iv: bytes
    def __init__(self, suite: _Optional[int] = ..., in_key: _Optional[bytes] = ..., in_iv: _Optional[bytes] = ..., out_key: _Optional[bytes] = ..., out_iv: _Optional[bytes] = ...) -> None: ...

class PacketHeader(_message.Message):
    __slots__ = ("offset", "seqno", "last", "data_length", "sync")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DATA_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    offset: int
    seqno: int
    last: bool
    data_length: int
    sync: bool
    def __init__(self, offset: _Optional[int] = ..., seqno: _Optional[int] = ..., last: _Optional[bool] = ..., data_length: _Optional[int] = ..., sync: _Optional[bool] = ...) -> None: ...

class PipelineAck(_message.Message):
    __slots__ = ("seqno", "reply", "downstream_ack_nanos", "flag")
    SEQNO_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_ACK_NANOS_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    seqno: int
    reply: _containers.RepeatedScalarFieldContainer[int]
    downstream_ack_nanos: int
    flag: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, seqno: _Optional[int] = ..., reply: _Optional[_Iterable[int]] = ..., downstream_ack_nanos: _Optional[int] = ..., flag: _Optional[_Iterable[int]] = ...) -> None: ...

class Credentials(_message.Message):
    __slots__ = ("tokens",)
    class Entry(_message.Message):
        __slots__ = ("alias", "token")
        ALIAS_FIELD_NUMBER: _ClassVar[int]
        TOKEN_FIELD_NUMBER: _ClassVar[int]
        alias: str
        token: Token
        def __init__(self, alias: _Optional[str] = ..., token: _Optional[_Union[Token, _Mapping]] = ...) -> None: ...
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Credentials.Entry]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Credentials.Entry, _Mapping]]] = ...) -> None: ...

"""The calls to the NameNode, retried and failed over.

A call keeps its client id and call id through all attempts and raises its retry count.  If the NameNode has already
done the call, its retry cache returns the first response again (RetryCache.java), so every call is safe to repeat.
With several NameNodes a call begins with the NameNode of the last response.  A StandbyException or a refused connection
moves on to the next, as does a token that is not known there (``TokenRefusals``).  After
``call_deadline_s`` the call raises StorageUnavailable.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Iterable, Sequence
from typing import TypeVar

from google.protobuf.message import Message

from bmq.storage.filesystem import CannotLogIn, NoSuchFile, NotAllowed, StorageError, StorageUnavailable
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.auth import Authenticator
from bmq.storage.hdfs.delegation_token import HadoopToken
from bmq.storage.hdfs.errors import (
    INVALID_TOKEN,
    TRY_AGAIN,
    TRY_ANOTHER_NAMENODE,
    ConnectionEnded,
    RemoteError,
    translate,
)
from bmq.storage.hdfs.rpc import NAMENODE_PROTOCOL, RpcConnection, RpcConnectionLost
from bmq.storage.hdfs.sasl import LoginFailed, LoginRefused
from bmq.storage.hdfs.settings import HdfsSettings
from bmq.storage.hdfs.umask import file_mode, folder_mode
from bmq.storage.logins import LOGINS

CREATE = 0x01
APPEND = 0x04
SHOULD_REPLICATE = 0x80  # also in an erasure-coded folder, since erasure-coded files cannot be flushed

IN_SERVICE = 0  # a node's admin state: neither leaving the cluster nor in maintenance, so it is given new blocks
_LIVE = 2  # DatanodeReportType
_SAFE_MODE_GET = 3  # SafeModeAction


Response = TypeVar("Response", bound=Message)


class TokenRefusals:
    """The worth of a delegation token's refusal within one call: an observer may have refused.

    An observer learns of a new token up to ``dfs.ha.tail-edits.period`` later, a minute by default, and until then
    refuses it as if it had ended.  A standby sends StandbyException instead (DelegationTokenSecretManager).  So a
    refusal counts after a round of all NameNodes.  It is final after a round in which all of them, the active NameNode
    too, have responded.
    """

    def __init__(self, namenodes: int, first_attempt: int = 0) -> None:
        self._namenodes = namenodes
        self._first = first_attempt
        self._silent: int | None = None
        self.last: StorageError | None = None
        """The last refusal, as the caller's error."""

    def no_response(self, attempt: int) -> None:
        """Take in that a NameNode does not respond."""
        self._silent = attempt

    def count(self, attempt: int) -> bool:
        """Return whether each NameNode has been tried."""
        return attempt - self._first >= self._namenodes - 1

    def are_final(self, attempt: int) -> bool:
        """Return whether each NameNode has been tried, and has responded in the last round."""
        return self.count(attempt) and (self._silent is None or attempt - self._silent >= self._namenodes)


class NameNode:
    """The client of ClientProtocol, for one user and the NameNodes of one name service.

    ``holder`` in the calls below is the lease's; paths are HDFS paths, ``/.reserved/.inodes/<id>`` among them.  Every
    call raises a StorageError, as ``errors.translate`` chooses it, and StorageUnavailable if no NameNode responds.
    """

    def __init__(
        self, namenodes: Sequence[tuple[str, int]], settings: HdfsSettings, authenticator: Authenticator
    ) -> None:
        self._namenodes = tuple(namenodes)
        self._settings = settings
        self._authenticator = authenticator
        self._client_id = uuid.uuid4().bytes
        self._call_ids = itertools.count(1)
        self._current = 0
        self._connection: RpcConnection | None = None
        self._connecting = asyncio.Lock()  # held across a connect: callers of that time share one connection
        self._has_served = False
        self._is_closed = False

    async def close(self) -> None:
        """Close the connection and the identity; calls under way raise StorageUnavailable."""
        self._is_closed = True
        self._authenticator.close()
        if self._connection is not None:
            self._connection.close()

    # ---- files being written

    async def create(
        self, path: str, holder: str, *, block_bytes: int, replication: int, mode: int | None = None
    ) -> pb.FileInfo:
        """Create an open, empty file, with missing parents, and never over another one.

        The file and new folders have the group of the folder above them, and new folders its mode, too.  ``mode``: the
        file's; None: by the umask, or by a default ACL of the folder (``umask``).
        """
        modes = file_mode(mode, self._settings.umask)
        request = pb.CreateRequest(
            path=path,
            permission=pb.Permission(mode=modes.masked),
            holder=holder,
            flags=CREATE | SHOULD_REPLICATE,
            create_parent=True,
            replication=replication,
            block_size=block_bytes,
            unmasked=modes.unmasked_permission,
        )
        return (await self._call("create", path, request, pb.CreateResponse)).file

    async def append(self, path: str, holder: str) -> pb.AppendResponse:
        """Open a closed file again; the response has its last block, unless that is full."""
        request = pb.AppendRequest(path=path, holder=holder, flags=APPEND)
        return await self._call("append", path, request, pb.AppendResponse)

    async def add_block(
        self, path: str, holder: str, file_id: int, exclude: Iterable[pb.Node], previous: pb.Block | None = None
    ) -> pb.LocatedBlock:
        """Allocate the file's next block, on nodes that are not excluded."""
        request = pb.AddBlockRequest(path=path, holder=holder, file_id=file_id, exclude=exclude, previous=previous)
        return (await self._call("addBlock", path, request, pb.AddBlockResponse)).block

    async def abandon_block(self, path: str, holder: str, file_id: int, block: pb.Block) -> None:
        """Give back a block that was allocated and not written."""
        request = pb.AbandonBlockRequest(block=block, path=path, holder=holder, file_id=file_id)
        await self._call("abandonBlock", path, request, pb.VoidResponse)

    async def complete(self, path: str, holder: str, file_id: int, last: pb.Block | None) -> bool:
        """Close the file; return False if no datanode has reported the last block yet: call it again then."""
        request = pb.CompleteRequest(path=path, holder=holder, file_id=file_id, last=last)
        return (await self._call("complete", path, request, pb.BoolResponse)).result

    async def fsync(self, path: str, holder: str, file_id: int, last_block_length: int) -> None:
        """Store the length of an open file's last block; -1 stores none, but still checks the lease."""
        request = pb.FsyncRequest(path=path, holder=holder, file_id=file_id, last_block_length=last_block_length)
        await self._call("fsync", path, request, pb.VoidResponse)

    async def update_block_for_pipeline(self, block: pb.Block, holder: str) -> pb.LocatedBlock:
        """Get a new generation stamp and token for an open block; the block itself does not change yet."""
        request = pb.UpdateBlockForPipelineRequest(block=block, holder=holder)
        what = f"block {block.id}"
        return (await self._call("updateBlockForPipeline", what, request, pb.UpdateBlockForPipelineResponse)).block

    async def update_pipeline(
        self, holder: str, old: pb.Block, new: pb.Block, nodes: Iterable[pb.NodeId], storage_ids: Iterable[str]
    ) -> None:
        """Replace an open block's generation stamp, length and nodes."""
        request = pb.UpdatePipelineRequest(
            holder=holder, old_block=old, new_block=new, nodes=nodes, storage_ids=storage_ids
        )
        await self._call("updatePipeline", f"block {old.id}", request, pb.VoidResponse)

    async def renew_lease(self, holder: str) -> None:
        """Renew the lease of all files that ``holder`` has open."""
        await self._call("renewLease", holder, pb.RenewLeaseRequest(holder=holder), pb.VoidResponse)

    async def recover_lease(self, path: str, holder: str) -> bool:
        """Recover the lease of a file; return True if it is closed, False if the recovery has only begun."""
        request = pb.RecoverLeaseRequest(path=path, holder=holder)
        return (await self._call("recoverLease", path, request, pb.BoolResponse)).result

    async def report_bad_blocks(self, blocks: Iterable[pb.LocatedBlock]) -> None:
        """Have the replicas of ``blocks`` on their nodes marked as corrupt, and others made from the good ones."""
        request = pb.ReportBadBlocksRequest(blocks=blocks)
        await self._call("reportBadBlocks", "", request, pb.VoidResponse)

    # ---- the namespace

    async def block_locations(self, path: str, offset: int = 0, length: int = 1 << 62) -> pb.LocatedBlocks:
        """Return the blocks of [offset, offset + length) of a file.  Raises NoSuchFile if there is no file."""
        request = pb.GetBlockLocationsRequest(path=path, offset=offset, length=length)
        response = await self._call("getBlockLocations", path, request, pb.GetBlockLocationsResponse)
        if not response.HasField("locations"):
            raise NoSuchFile(f"getBlockLocations {path}: no such file")
        return response.locations

    async def file_info(self, path: str) -> pb.FileInfo | None:
        """Return the entry of a file or folder, None if there is none."""
        response = await self._call("getFileInfo", path, pb.PathRequest(path=path), pb.GetFileInfoResponse)
        return response.file if response.HasField("file") else None

    async def is_file_closed(self, path: str) -> bool:
        """Return whether a file is closed."""
        return (await self._call("isFileClosed", path, pb.PathRequest(path=path), pb.BoolResponse)).result

    async def listing(self, path: str, start_after: bytes) -> pb.DirectoryListing | None:
        """Return one page (dfs.ls.limit, 1,000 names) of a folder, without locations; None if there is no folder."""
        request = pb.GetListingRequest(path=path, start_after=start_after, need_location=False)
        response = await self._call("getListing", path, request, pb.GetListingResponse)
        return response.listing if response.HasField("listing") else None

    async def set_permission(self, path: str, mode: int) -> None:
        """Set the mode.  Raises NotAllowed unless the user owns the file or folder, or is a superuser."""
        request = pb.SetPermissionRequest(path=path, permission=pb.Permission(mode=mode))
        await self._call("setPermission", path, request, pb.VoidResponse)

    async def set_owner(self, path: str, owner: str, group: str) -> None:
        """Set owner and group, where they are not empty.

        Raises NotAllowed unless the user is a superuser; its owner may set a group of which it is a member.
        """
        request = pb.SetOwnerRequest(path=path, owner=owner or None, group=group or None)
        await self._call("setOwner", path, request, pb.VoidResponse)

    async def mkdirs(self, path: str, mode: int | None = None) -> None:
        """Make a folder and its parents, unless they are there; ``mode`` as that of ``create``."""
        modes = folder_mode(mode, self._settings.umask)
        request = pb.MkdirsRequest(
            path=path,
            permission=pb.Permission(mode=modes.masked),
            create_parent=True,
            unmasked=modes.unmasked_permission,
        )
        await self._call("mkdirs", path, request, pb.BoolResponse)

    async def rename(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename atomically.  The target's folder must exist."""
        request = pb.RenameRequest(source=source, target=target, overwrite=overwrite)
        await self._call("rename2", f"{source} to {target}", request, pb.VoidResponse)

    async def delete(self, path: str, *, recursive: bool) -> bool:
        """Delete a file or folder, and return False if there is none."""
        request = pb.DeleteRequest(path=path, recursive=recursive)
        return (await self._call("delete", path, request, pb.BoolResponse)).result

    async def concat(self, target: str, sources: Iterable[str]) -> None:
        """Move the blocks of closed files of one folder to the end of another one of it."""
        await self._call("concat", target, pb.ConcatRequest(target=target, sources=sources), pb.VoidResponse)

    async def server_defaults(self) -> pb.GetServerDefaultsResponse.Defaults:
        """Return the settings that the NameNode has for clients."""
        request = pb.GetServerDefaultsRequest()
        return (await self._call("getServerDefaults", "", request, pb.GetServerDefaultsResponse)).defaults

    async def encrypts_data(self) -> bool:
        """Return whether the NameNode demands encrypted connections to datanodes (``dfs.encrypt.data.transfer``)."""
        return (await self.server_defaults()).encrypt_data

    async def data_encryption_key(self) -> pb.GetDataEncryptionKeyResponse.Key | None:
        """Return a key for encrypted connections to datanodes, None if the NameNode has none."""
        request = pb.GetDataEncryptionKeyRequest()
        response = await self._call("getDataEncryptionKey", "", request, pb.GetDataEncryptionKeyResponse)
        return response.key if response.HasField("key") else None

    # ---- delegation tokens

    async def delegation_token(self, renewer: str, service: str) -> HadoopToken | None:
        """Return a new token of this user for ``service``, None from a NameNode without Kerberos.

        ``renewer`` is the user who may renew it, empty for none.  Raises StorageError if this log-in was by token.
        """
        request = pb.GetDelegationTokenRequest(renewer=renewer)
        response = await self._call("getDelegationToken", "", request, pb.GetDelegationTokenResponse)
        return HadoopToken.from_message(response.token, service) if response.HasField("token") else None

    async def renew_delegation_token(self, token: HadoopToken) -> int:
        """Renew ``token``, and return until when it is valid, in milliseconds since 1970.

        Raises CannotLogIn if it has expired or was cancelled, and NotAllowed unless the user is its renewer.
        """
        request = pb.DelegationTokenRequest(token=token.to_message())
        response = await self._call("renewDelegationToken", str(token), request, pb.RenewDelegationTokenResponse)
        return response.expires_ms

    async def cancel_delegation_token(self, token: HadoopToken) -> None:
        """Make ``token`` invalid at once: no further log-in succeeds with it.

        Raises CannotLogIn if it was invalid already, and NotAllowed unless the user is its owner or renewer.
        """
        request = pb.DelegationTokenRequest(token=token.to_message())
        await self._call("cancelDelegationToken", str(token), request, pb.VoidResponse)

    # ---- the cluster

    async def live_datanodes(self) -> Sequence[pb.GetDatanodeReportResponse.Datanode]:
        """Return the datanodes that the NameNode takes for live, decommissioned ones too.

        Raises Unsupported unless the user is an HDFS superuser; no other call returns the number of datanodes.
        """
        request = pb.GetDatanodeReportRequest(type=_LIVE)
        return (await self._call("getDatanodeReport", "", request, pb.GetDatanodeReportResponse)).datanodes

    # ---- its health

    async def ha_state(self) -> int:
        """Return the number of Hadoop's HAServiceState.  Raises Unsupported before Hadoop 3.3, or without HA."""
        response = await self._call("getHAServiceState", "", pb.HAServiceStateRequest(), pb.HAServiceStateResponse)
        return response.state

    async def is_in_safe_mode(self) -> bool:
        """Return whether the NameNode is in safe mode, in which it refuses writes."""
        request = pb.SetSafeModeRequest(action=_SAFE_MODE_GET, checked=False)
        return (await self._call("setSafeMode", "get", request, pb.SetSafeModeResponse)).result

    async def stats(self) -> pb.GetFsStatsResponse:
        """Return bytes and blocks of the whole HDFS."""
        return await self._call("getFsStats", "", pb.GetFsStatusRequest(), pb.GetFsStatsResponse)

    async def quota_usage(self, path: str) -> pb.GetQuotaUsageResponse.Usage:
        """Return the names and bytes of a folder, and their quotas, -1 for none."""
        request = pb.PathRequest(path=path)
        return (await self._call("getQuotaUsage", path, request, pb.GetQuotaUsageResponse)).usage

    # ---- attempts

    async def _call(self, method: str, what: str, request: Message, response_type: type[Response]) -> Response:
        loop = asyncio.get_running_loop()
        call_id = next(self._call_ids) & 0x7FFFFFFF
        deadline = loop.time() + self._settings.call_deadline_s
        refusals = TokenRefusals(len(self._namenodes))
        may_be_done = False  # a NameNode has got the call, and its response is lost
        for attempt in itertools.count():
            connection: RpcConnection | None = None
            try:
                connection = await self._connected()
                response = await connection.call(
                    method,
                    request,
                    response_type,
                    call_id=call_id,
                    retry_count=attempt,
                    timeout_s=self._settings.call_timeout_s,
                )
                self._has_served = True
                return response
            except RemoteError as error:
                if connection is None and error.short_class == INVALID_TOKEN:
                    by = f"the log-in by {self._authenticator}"
                    refusal = refusals.last = translate(error, f"{method} {what}".rstrip() + f": {by}")
                    if refusals.count(attempt) and await self._authenticator.has_another():
                        refusals = TokenRefusals(len(self._namenodes), attempt + 1)
                    elif refusals.are_final(attempt):
                        raise refusal from error
                elif error.short_class in TRY_ANOTHER_NAMENODE:
                    self._leave(connection)
                elif error.short_class in TRY_AGAIN:
                    pass
                elif isinstance(error, ConnectionEnded):  # all calls under way get it: it refuses the user, not a call
                    self._leave(connection)
                    if self._is_final(attempt, NotAllowed, may_be_done=may_be_done):
                        raise translate(error, f"{method} {what}", self._identity) from error
                else:
                    raise translate(error, f"{method} {what}", self._identity) from error
                failure: Exception = error
            except RpcConnectionLost as error:
                may_be_done = may_be_done or connection is not None
                self._leave(connection)
                refusals.no_response(attempt)
                failure = error
            except LoginFailed as error:
                if error.is_final and self._is_final(attempt, error.kind, may_be_done=may_be_done):
                    raise error.kind(f"{method + (what and ' ' + what)}: {error}") from error
                refusals.no_response(attempt)
                failure = error
            except TimeoutError:
                may_be_done = True
                self._leave(connection)
                refusals.no_response(attempt)
                failure = TimeoutError(f"no response within {self._settings.call_timeout_s:g} s")
            pause_s = self._pause_s(attempt)
            if self._is_closed or loop.time() + pause_s > deadline:
                if refusals.last is not None:  # no NameNode has taken the token, and this says what to do
                    raise refusals.last from failure
                kind = _kind(failure)
                raise kind(f"{method + (what and ' ' + what)}: {failure} (attempt {attempt + 1})") from failure
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    def _is_final(self, attempt: int, kind: type[StorageError], *, may_be_done: bool) -> bool:
        """Return whether the failure ``kind`` of a log-in ends the call, with every NameNode tried once.

        A refusal is final at the start only.  Once a call was served, the refusal may pass: keys and clocks change.
        Another NameNode may have done the call before, and then it is no refusal of the call either.
        """
        may_pass = (self._has_served or may_be_done) and not issubclass(kind, StorageUnavailable)
        return not may_pass and attempt + 1 >= len(self._namenodes)

    @property
    def _identity(self) -> str:
        """The identity of calls, for the text of a refusal: whether there was a ticket."""
        if self._authenticator.login is None:
            return "without a ticket: the NameNode trusts the user's name"
        return f"logged in as {self._authenticator}"

    def _pause_s(self, attempt: int) -> float:
        if attempt < len(self._namenodes) - 1:
            return 0.0  # the other NameNode may well be the active one
        return self._settings.backoff_s.half_random(attempt + 1)

    async def _connected(self) -> RpcConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._connecting:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._is_closed:
                raise RpcConnectionLost("the HDFS client was closed")
            host, port = self._namenodes[self._current]
            try:
                self._connection = await RpcConnection.connect(
                    host,
                    port,
                    protocol=NAMENODE_PROTOCOL,
                    authenticator=self._authenticator,
                    client_id=self._client_id,
                    timeout_s=self._settings.connect_timeout_s,
                    login_timeout_s=self._settings.login_timeout_s,
                    # A silent NameNode is left before others have waited long: another one may be active by then.
                    response_timeout_s=self._settings.call_timeout_s if len(self._namenodes) > 1 else 0.0,
                )
            except (RpcConnectionLost, LoginFailed, RemoteError, asyncio.CancelledError) as error:
                # A caller that gives up has waited for this NameNode: the others' log-ins must not begin here again.
                if isinstance(error, LoginFailed):
                    LOGINS.failed(error.reason)
                if isinstance(error, LoginRefused):
                    self._authenticator.note_refusal()
                self._current = (self._current + 1) % len(self._namenodes)
                raise
            if self._authenticator.login is not None:
                LOGINS.succeeded()
            return self._connection

    def _leave(self, connection: RpcConnection | None) -> None:
        """Call the next NameNode from now on, unless another call has already left this one."""
        if connection is not None and connection is self._connection:
            self._connection = None
            self._current = (self._current + 1) % len(self._namenodes)
            connection.close()


def _kind(failure: Exception) -> type[StorageError]:
    """Return the error of a call at its deadline, by its last failure.  A refused log-in is no refusal of the call."""
    if isinstance(failure, LoginFailed):
        return failure.kind if issubclass(failure.kind, StorageUnavailable) else CannotLogIn
    if isinstance(failure, ConnectionEnded) and isinstance(translate(failure, ""), NotAllowed):
        return CannotLogIn
    return StorageUnavailable

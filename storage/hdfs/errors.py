"""The translation of Hadoop's exceptions into storage errors, in one place.

Java's exception class decides.  A plain ``IOException`` has its meaning in its text only, so a few texts are listed
(FSNamesystem, BlockManager).  Any other exception becomes a ``StorageError`` with class and text.
"""

from __future__ import annotations

from bmq.storage.filesystem import (
    AlreadyExists,
    CannotLogIn,
    LeaseLost,
    NoSuchFile,
    NotAllowed,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    Unjoinable,
    Unsupported,
)
from bmq.storage.hdfs.zones import ZONE_ADVICE

SAFE_MODE = "SafeModeException"


class RemoteError(Exception):
    """The response to a call is a Java exception.  Never leaves this package.

    The text has Hadoop's first line.  For safe mode it has the second line too, which is the reason: blocks or
    datanodes that are missing, or an administrator's command (FSNamesystem.newSafemodeException).
    """

    def __init__(self, exception_class: str, message: str) -> None:
        self.exception_class = exception_class
        self.short_class = exception_class.rpartition(".")[2].rpartition("$")[2]
        self.first_line, *more = (line.strip() for line in message.split("\n", 2)[:2])
        reason = more[0] if more and self.short_class == SAFE_MODE and not more[0].startswith("at ") else ""
        super().__init__(f"{self.short_class}: {self.first_line} {reason}".strip())


class ConnectionEnded(RemoteError):
    """The server ends the connection with a Java exception, which is no response to a call.  Never leaves this package.

    The service authorization after a log-in fails like this (Server.authorizeConnection).
    """


_DENIED = "AccessControlException"

TRY_ANOTHER_NAMENODE = frozenset({"StandbyException", "ObserverRetryOnActiveException"})
"""Exceptions of a NameNode that is not the active one."""

TRY_AGAIN = frozenset({"RetriableException", SAFE_MODE, "RetryStartFileException"})
"""Exceptions of the active NameNode, called too early: safe mode, start-up, overload (Server, FSNamesystem)."""

INVALID_TOKEN = "InvalidToken"
"""The exception of a server that does not take a token: it has expired, or its key is not known there."""

_BY_CLASS: dict[str, type[StorageError]] = {
    "FileNotFoundException": NoSuchFile,
    "FileAlreadyExistsException": AlreadyExists,
    "AlreadyBeingCreatedException": LeaseLost,
    "RecoveryInProgressException": LeaseLost,
    "LeaseExpiredException": LeaseLost,
    "InvalidToken": CannotLogIn,
    "StandbyException": StorageUnavailable,
    "RetriableException": StorageUnavailable,
    SAFE_MODE: StorageUnavailable,
    "NotReplicatedYetException": StorageUnavailable,
    "QuotaExceededException": OutOfSpace,
    "NSQuotaExceededException": OutOfSpace,
    "DSQuotaExceededException": OutOfSpace,
    "QuotaByStorageTypeExceededException": OutOfSpace,
    "DiskOutOfSpaceException": OutOfSpace,
    "UnknownCryptoProtocolVersionException": Unsupported,
    "AccessControlException": NotAllowed,
    "AuthorizationException": NotAllowed,
    "RpcNoSuchMethodException": Unsupported,
    "ServiceFailedException": Unsupported,  # the response to getHAServiceState of a NameNode without HA
    "RpcNoSuchProtocolException": Unsupported,
    "VersionMismatch": Unsupported,
    "UnsupportedOperationException": Unsupported,
}

_HINTS = {
    "UnknownCryptoProtocolVersionException": f"it is in an encryption zone: {ZONE_ADVICE}",
    "NSQuotaExceededException": "the folder's quota of names is used up: raise it with hdfs dfsadmin -setQuota, or "
    "delete topics",
    "DSQuotaExceededException": "the folder's quota of space is used up: raise it with hdfs dfsadmin -setSpaceQuota,"
    " or delete records",
    "InvalidToken": "the delegation token has expired or was cancelled: fetch another one with hdfs fetchdt, and have"
    " its renewer renew it before its renewal is due",
    "AuthorizationException": "the service's authorization refuses the user: security.client.protocol.acl in the"
    " NameNode's hadoop-policy.xml, or hadoop.proxyuser for a user in another's name",
    "AccessControlException": "the user may not do this, or the cluster demands Kerberos: then hadoop_conf_dir must"
    " have its configuration, with hadoop.security.authentication=kerberos",
}


def translate(error: RemoteError, what: str, identity: str = "") -> StorageError:
    """Return the storage error for a server's exception.

    ``what`` is the call, as in "create /path".  ``identity`` says how the caller had logged in.
    """
    # A file in the place of a folder is an AccessControlException (FSPermissionChecker).
    if "(is not a directory)" in error.first_line:
        return NoSuchFile(f"{what}: {error}")
    kind = _BY_CLASS.get(error.short_class) or _by_text(error.first_line) or StorageError
    hint = _HINTS.get(error.short_class)
    if identity and error.short_class == _DENIED and "Permission denied" in error.first_line:
        hint = f"{identity}. The owner of the folder, or an HDFS superuser, gives the right: hdfs dfs -chown, -chmod"
    return kind(f"{what}: {error}" + (f" ({hint})" if hint else ""))


def is_no_nodes(error: StorageError) -> bool:
    """Return whether addBlock failed for want of datanodes: perhaps only because too many were excluded."""
    return "could only be written to" in str(error) or "could only be replicated to" in str(error)


_CODINGS_DIFFER = "have different erasure coding policy"


def _by_text(text: str) -> type[StorageError] | None:
    if "could only be written to" in text or "could only be replicated to" in text:
        # BlockPlacementPolicy found no room: either no datanode is up, or those that are have no space.
        return StorageUnavailable if "There are 0 datanode" in text else OutOfSpace
    if "No lease on" in text or "is not the lease owner" in text:
        return LeaseLost
    if "which is greater than the target file's preferred block size" in text or _CODINGS_DIFFER in text:
        return Unjoinable  # FSDirConcatOp: neither changes once a file is created
    return None

"""Hadoop's exceptions as storage errors."""

import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    LeaseLost,
    NoSuchFile,
    NotAllowed,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    Unjoinable,
)
from bmq.storage.hdfs.errors import RemoteError, is_no_nodes, translate


@pytest.mark.parametrize(
    ("java_class", "message", "expected"),
    [
        ("java.io.FileNotFoundException", "File does not exist: /x", NoSuchFile),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "/x already exists", AlreadyExists),
        ("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException", "No lease on /x", LeaseLost),
        ("org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException", "being created", LeaseLost),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "quota", OutOfSpace),
        ("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "safe mode", StorageUnavailable),
        ("org.apache.hadoop.ipc.RetriableException", "later", StorageUnavailable),
        ("org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled", NotAllowed),
        ("java.io.IOException", "File /x could only be written to 0 of the 1 minReplication nodes.", OutOfSpace),
        (
            "java.io.IOException",
            "File /x could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running",
            StorageUnavailable,
        ),
        (
            "org.apache.hadoop.HadoopIllegalArgumentException",
            "concat: source file /y has preferred block size 2 which is greater than the target file's preferred block"
            " size 1",
            Unjoinable,
        ),
        (
            "org.apache.hadoop.HadoopIllegalArgumentException",
            "Source file /y and target file /x have different erasure coding policy",
            Unjoinable,
        ),
        (
            "org.apache.hadoop.HadoopIllegalArgumentException",
            "concat: source file /y is invalid or empty or underConstruction",
            StorageError,
        ),
        ("java.io.IOException", "something else\n\tat java.lang.Thread", StorageError),
    ],
)
def test_each_hadoop_exception_becomes_a_storage_error(
    java_class: str, message: str, expected: type[StorageError]
) -> None:
    error = translate(RemoteError(java_class, message), "create /x")
    assert type(error) is expected
    assert str(error).startswith("create /x: ")
    assert "\n" not in str(error)
    assert is_no_nodes(error) == ("could only be written" in message)


@pytest.mark.parametrize("identity", ["logged in as bmq@R of the keytab /etc/bmq.keytab", "without a ticket: the name"])
def test_a_missing_right_is_told_with_path_user_right_and_ticket(identity: str) -> None:
    text = 'Permission denied: user=bmq, access=WRITE, inode="/bmq":hdfs:hdfs:drwxr-xr-x\n\tat x.y'
    error = translate(RemoteError("org.apache.hadoop.security.AccessControlException", text), "mkdirs /bmq/t", identity)
    assert type(error) is NotAllowed
    assert str(error).startswith("mkdirs /bmq/t: AccessControlException: Permission denied: user=bmq, access=WRITE, ")
    assert 'inode="/bmq"' in str(error)
    assert f"({identity}. The owner of the folder" in str(error)
    assert "demands Kerberos" not in str(error)


def test_a_refusal_for_want_of_kerberos_keeps_its_hint() -> None:
    refused = RemoteError("org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled")
    assert "demands Kerberos" in str(translate(refused, "create /x", "without a ticket"))


def test_the_reason_of_safe_mode_is_hadoops_second_line() -> None:
    text = (
        "Cannot create directory /bmq. Name node is in safe mode.\nThe reported blocks 10 needs additional 990 blocks"
        " to reach the threshold 0.9990 of total blocks 1000.\nSafe mode will be turned off automatically once the"
        " thresholds have been reached. NamenodeHostName:nn1\n\tat x.y"
    )
    error = translate(RemoteError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", text), "mkdirs /bmq")
    assert str(error) == (
        "mkdirs /bmq: SafeModeException: Cannot create directory /bmq. Name node is in safe mode. The reported blocks"
        " 10 needs additional 990 blocks to reach the threshold 0.9990 of total blocks 1000."
    )
    alone = RemoteError("org.apache.hadoop.hdfs.server.namenode.SafeModeException", "in safe mode\n\tat x.y")
    assert str(alone) == "SafeModeException: in safe mode"

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

"""URLs, settings, errors and suspicions of the HDFS client: all that needs no HDFS."""

from dataclasses import replace

import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    LeaseLost,
    NoSuchFile,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    Unsupported,
)
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.address import HdfsAddress
from bmq.storage.hdfs.auth import AUTH_SIMPLE, SimpleAuthenticator
from bmq.storage.hdfs.datanode import SuspectNodes, node_name
from bmq.storage.hdfs.errors import RemoteError, is_no_nodes, translate
from bmq.storage.hdfs.settings import HdfsSettings


@pytest.mark.parametrize(
    ("url", "namenodes", "root"),
    [
        ("hdfs://nn:9000/bmq", (("nn", 9000),), "/bmq"),
        ("hdfs://nn", (("nn", 8020),), ""),
        ("hdfs://nn/", (("nn", 8020),), ""),
        ("hdfs://nn1:1,nn2:2,nn3/a//b/", (("nn1", 1), ("nn2", 2), ("nn3", 8020)), "/a/b"),
        ("hdfs://[::1]:8021/x", (("::1", 8021),), "/x"),
        ("hdfs://[::1]/x", (("::1", 8020),), "/x"),
    ],
)
def test_address(url: str, namenodes: tuple[tuple[str, int], ...], root: str) -> None:
    address = HdfsAddress.parse(url)
    assert (address.namenodes, address.root) == (namenodes, root)
    assert address.full_path("/f") == root + "/f"
    assert address.full_path("/") == (root or "/")


@pytest.mark.parametrize(
    "url",
    ["http://nn/x", "hdfs:///x", "hdfs://nn:x/", "hdfs://nn:0/", "hdfs://nn,/x", "hdfs://u@nn/x", "hdfs://nn/a/../b"],
)
def test_address_that_is_none(url: str) -> None:
    with pytest.raises(ValueError, match="://"):
        HdfsAddress.parse(url)


def test_path_must_be_absolute() -> None:
    with pytest.raises(Unsupported, match="begin with /"):
        HdfsAddress.parse("hdfs://nn/x").full_path("f")


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
        ("org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled", Unsupported),
        ("java.io.IOException", "File /x could only be written to 0 of the 1 minReplication nodes.", OutOfSpace),
        (
            "java.io.IOException",
            "File /x could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s) running",
            StorageUnavailable,
        ),
        ("java.io.IOException", "something else\n\tat java.lang.Thread", StorageError),
    ],
)
def test_translation(java_class: str, message: str, expected: type[StorageError]) -> None:
    error = translate(RemoteError(java_class, message), "create /x")
    assert type(error) is expected
    assert str(error).startswith("create /x: ")
    assert "\n" not in str(error)
    assert is_no_nodes(error) == ("could only be written" in message)


def test_settings_say_which_number_is_wrong() -> None:
    HdfsSettings().validate()
    for change in ({"packet_bytes": 16 << 20}, {"window_bytes": 1}, {"call_deadline_s": 1.0}, {"heartbeat_s": 45.0}):
        with pytest.raises(ValueError, match=next(iter(change))):
            replace(HdfsSettings(), **change).validate()


def test_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "spark")
    assert SimpleAuthenticator.for_user().user == "spark"
    assert SimpleAuthenticator.for_user("bmq").user == "bmq"
    monkeypatch.delenv("HADOOP_USER_NAME")
    assert SimpleAuthenticator.for_user().user
    assert SimpleAuthenticator.for_user().auth_byte == AUTH_SIMPLE


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 65532"), OSError("No username set")])
def test_a_user_id_without_a_name_is_said(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run under a user id without a name, as in a container; each error is what some version of Python raises."""

    def getuser() -> str:
        raise error

    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    monkeypatch.setattr("getpass.getuser", getuser)
    with pytest.raises(StorageError, match="has no name here: set HADOOP_USER_NAME"):
        SimpleAuthenticator.for_user()


def node(port: int) -> pb.Node:
    return pb.Node(
        id=pb.NodeId(ip="10.0.0.1", host="a", uuid=f"u{port}", data_port=port, info_port=1, ipc_port=2),
    )


def test_suspicion_ends() -> None:
    suspects = SuspectNodes(30.0)
    suspects.learn([node(1), node(2)])
    suspects.suspect(["10.0.0.1:1", "10.0.0.1:9"], now=100.0)
    assert suspects.suspected(110.0) == {"10.0.0.1:1", "10.0.0.1:9"}
    assert [node_name(known.id) for known in suspects.resolve({"10.0.0.1:1", "10.0.0.1:9"})] == ["10.0.0.1:1"]
    suspects.clear(["10.0.0.1:9"])
    assert suspects.suspected(129.0) == {"10.0.0.1:1"}
    assert suspects.suspected(130.0) == set()

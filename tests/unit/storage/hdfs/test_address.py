"""URLs of a root on HDFS."""

import pytest

from bmq.storage.filesystem import Unsupported
from bmq.storage.hdfs.address import HdfsAddress


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
def test_a_url_that_names_no_hdfs_root_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="://"):
        HdfsAddress.parse(url)


def test_a_path_that_is_not_absolute_is_refused() -> None:
    with pytest.raises(Unsupported, match="begin with /"):
        HdfsAddress.parse("hdfs://nn/x").full_path("f")

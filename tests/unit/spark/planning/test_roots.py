"""The root that a Spark driver hands to its executors, with the NameNodes of Hadoop's configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bmq.spark.options import OptionError, ReadOptions
from bmq.spark.planning.roots import with_namenodes

HA = {
    "dfs.nameservices": "mycluster",
    "dfs.ha.namenodes.mycluster": "nn1, nn2",
    "dfs.namenode.rpc-address.mycluster.nn1": "m1.example.org:8020",
    "dfs.namenode.rpc-address.mycluster.nn2": "m2.example.org",
}


def test_the_driver_resolves_the_namenodes_for_its_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor gets a root that needs no configuration; what is wrong with it is the option's error."""
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in HA.items()
    )
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{properties}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    options = ReadOptions.parse({"root": "hdfs://mycluster/bmq", "topic": "orders"})
    assert with_namenodes(options).root == "hdfs://m1.example.org:8020,m2.example.org:8020/bmq"
    for root in ("file:///x", "webhdfs://nn:9870/bmq", "memory:x"):
        assert with_namenodes(replace(options, root=root)).root == root
    with pytest.raises(OptionError, match=r"option 'root': .* has no port: leave it out"):
        with_namenodes(replace(options, root="hdfs://mycluster:8020/bmq"))

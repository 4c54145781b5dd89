"""The log-in of a driver: a server's settings out of the environment, for hdfs:// alone."""

from __future__ import annotations

from pathlib import Path

from bmq.core.hdfs_login import HdfsLogin
from bmq.spark.planning.driver_login import DriverLogin, driver_login


def test_the_settings_of_the_environment_are_the_drivers_log_in(tmp_path: Path) -> None:
    keytab = tmp_path / "keytab"
    keytab.touch()
    environment = {
        "BMQ_HADOOP_CONF_DIR": str(tmp_path),
        "BMQ_HDFS_KEYTAB": str(keytab),
        "BMQ_HDFS_PRINCIPAL": "bmq@EXAMPLE.ORG",
        "BMQ_SESSION_MS": "a setting of servers, which a driver does not read",
    }
    found = driver_login("hdfs://ns/bmq", environment)
    assert found == DriverLogin(str(tmp_path), HdfsLogin(str(keytab), "bmq@EXAMPLE.ORG"))
    assert driver_login("file:///bmq", environment) == driver_login("hdfs://ns/bmq", {}) == DriverLogin()

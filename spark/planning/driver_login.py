"""The driver's log-in to HDFS, by the settings that a server's environment has.

The environment of an executor need not have them: its partitions carry a token (``executor_tokens``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bmq.core.hdfs_login import NO_HDFS_LOGIN, HdfsLogin
from bmq.core.urls import scheme_of


@dataclass(frozen=True, slots=True)
class DriverLogin:
    """The folder of Hadoop's configuration, empty for HADOOP_CONF_DIR, and the identity for Kerberos."""

    hadoop_conf_dir: str = ""
    login: HdfsLogin = NO_HDFS_LOGIN


def driver_login(root: str, environment: Mapping[str, str] = os.environ) -> DriverLogin:
    """Return the log-in by BMQ_HADOOP_CONF_DIR, BMQ_HDFS_KEYTAB and BMQ_HDFS_PRINCIPAL, which only hdfs:// has."""
    if scheme_of(root) != "hdfs":
        return DriverLogin()
    keytab, principal = environment.get("BMQ_HDFS_KEYTAB", ""), environment.get("BMQ_HDFS_PRINCIPAL", "")
    return DriverLogin(environment.get("BMQ_HADOOP_CONF_DIR", ""), HdfsLogin(keytab, principal))

"""The settings by which a process logs in to a secure HDFS."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HdfsLogin:
    """A keytab's file and the principal in it; without a keytab the tickets of the library's cache are used."""

    keytab: str = ""
    principal: str = ""


NO_HDFS_LOGIN = HdfsLogin()

"""The cells of the matrix: a version of Hadoop, a protection, one NameNode or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.services.hdfs_security import AUTHENTICATED, TRANSFERS
from tests.services.jars import HADOOP_VERSION

OLDEST = "3.0.0"
"""The first release of Hadoop 3."""
VERSIONS = (OLDEST, "3.1.4", "3.2.4", "3.3.6", "3.4.1", HADOOP_VERSION)


@dataclass(frozen=True, slots=True)
class Protection:
    """A level of calls, ``hadoop.rpc.protection`` ("" without Kerberos), and of the connections to datanodes.

    ``text`` names the latter in the table.  ``is_rare``: it is tried with the oldest and the newest version alone.
    """

    name: str
    calls: str
    transfer: Mapping[str, str]
    text: str
    is_rare: bool = False


OPEN = Protection("open", "", {}, "open")
AUTHENTICATION = Protection("authentication", "authentication", AUTHENTICATED, "authentication")
PROTECTIONS = (
    OPEN,
    AUTHENTICATION,
    Protection("integrity", "integrity", TRANSFERS["integrity"], "integrity"),
    Protection("aes", "privacy", TRANSFERS["aes"], "privacy, AES"),
    Protection("3des", "privacy", TRANSFERS["privacy"], "privacy, 3DES", is_rare=True),
    Protection("encrypted", "privacy", TRANSFERS["encrypted"], "encrypted, AES", is_rare=True),
    Protection("rc4", "authentication", TRANSFERS["encrypted-rc4"], "encrypted, RC4", is_rare=True),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One cluster.  ``is_ha``: a pair of NameNodes that ZooKeeper fails over."""

    version: str
    protection: Protection
    is_ha: bool = False

    @property
    def key(self) -> str:
        """The cell in the file of results."""
        return f"{self.version} {self.protection.name}{' ha' if self.is_ha else ''}"


def all_cells() -> list[Cell]:
    """Return the cells in the order of the table."""
    cells = []
    for version in VERSIONS:
        is_end = version in (VERSIONS[0], VERSIONS[-1])
        cells += [Cell(version, protection) for protection in PROTECTIONS if is_end or not protection.is_rare]
        cells.append(Cell(version, AUTHENTICATION, is_ha=True))
    return cells

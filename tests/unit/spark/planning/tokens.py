"""Delegation tokens of the user alice, who is nobody's: numbers tell them apart."""

from __future__ import annotations

from bmq.storage.hdfs.delegation_token import HDFS_DELEGATION_TOKEN, HadoopToken, StorageToken
from bmq.storage.hdfs.security import HdfsSecurity
from tests.unit.storage.hdfs.token_files import IDENTIFIER

ROOT = "hdfs://127.0.0.1:8020/a"


def granted(number: int, root: str = ROOT) -> StorageToken:
    """Return the token with the sequence number 256 + ``number``, up to 511."""
    identifier = IDENTIFIER[:-2] + bytes([number]) + IDENTIFIER[-1:]
    token = HadoopToken(HDFS_DELEGATION_TOKEN, "127.0.0.1:8020", identifier, b"the-password-of-%d" % number)
    return StorageToken(root=root, namenodes="127.0.0.1:8020", token=token, security=HdfsSecurity(is_kerberos=True))

"""The authentication of RPC connections: simple only.  SASL (Kerberos, tokens) would be a second implementation."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass
from typing import Protocol

from bmq.storage.filesystem import StorageError

AUTH_SIMPLE = 0
AUTH_SASL = 0xDF  # -33 as a signed byte (SaslRpcServer.AuthMethod)


class Authenticator(Protocol):
    """The identity with which an RPC connection begins.

    A SASL implementation would have ``AUTH_SASL`` here and add the negotiation, which comes between the preamble and
    the connection context, and would wrap the stream if privacy is required.
    """

    @property
    def auth_byte(self) -> int:
        """The seventh byte of the connection (Hadoop's AuthProtocol)."""

    @property
    def user(self) -> str:
        """The effective user of every call on the connection."""


@dataclass(frozen=True, slots=True)
class SimpleAuthenticator:
    """Simple authentication: the server trusts the name."""

    user: str
    auth_byte: int = AUTH_SIMPLE

    @classmethod
    def for_user(cls, name: str = "") -> SimpleAuthenticator:
        """Return the identity ``name``, else HADOOP_USER_NAME, else the operating system's user: Hadoop's order.

        Raises StorageError if that user has no name, as in a container with a user id of its own.
        """
        name = name or os.environ.get("HADOOP_USER_NAME", "")
        if name:
            return cls(name)
        try:
            return cls(getpass.getuser())
        except (KeyError, OSError):  # KeyError before Python 3.13, OSError since
            raise StorageError(
                f"the user id {os.getuid()} has no name here: set HADOOP_USER_NAME to the HDFS user"
            ) from None

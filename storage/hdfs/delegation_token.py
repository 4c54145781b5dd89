"""Delegation tokens of HDFS: the NameNode gives them to a user of Kerberos, for processes without a ticket.

The identifier says who the user is, and the password proves it (DIGEST-MD5).  A token is valid until its renewal is
due, 24 hours by default.  Its renewer may ask for another 24 hours, up to the token's last date, 7 days by default
(``dfs.namenode.delegation.token.renew-interval``, ``.max-lifetime``).  The identifier's fields are those of
AbstractDelegationTokenIdentifier, in the encoding of Hadoop's Writables (``writables.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.security import HdfsSecurity
from bmq.storage.hdfs.umask import DEFAULT_UMASK
from bmq.storage.hdfs.writables import Malformed, WritableReader

HDFS_DELEGATION_TOKEN = "HDFS_DELEGATION_TOKEN"
"""The kind of the NameNode's delegation tokens (DelegationTokenIdentifier)."""
IDENTIFIER_BYTES_MAX = 16 << 10
LOGICAL = "ha-hdfs:"
"""The beginning of a token's service for all NameNodes of a name service (HAUtilClient)."""
_VERSION = 0
_NAME_BYTES_MAX = 4 << 10


@dataclass(frozen=True, slots=True)
class TokenIdentifier:
    """The content of a token's identifier.  Dates are milliseconds since 1970, of the NameNode's clock."""

    owner: str
    renewer: str
    real_user: str
    issued_ms: int
    ends_ms: int
    sequence_number: int
    master_key_id: int

    @classmethod
    def decode(cls, data: bytes) -> TokenIdentifier:
        """Return the content of an identifier of kind HDFS_DELEGATION_TOKEN.  Raises Malformed."""
        if len(data) > IDENTIFIER_BYTES_MAX:
            raise Malformed(f"an identifier of {len(data)} bytes")
        reader = WritableReader(data)
        if version := reader.byte():
            raise Malformed(f"an identifier of version {version}; this client reads version {_VERSION}")
        owner, renewer, real_user = (reader.text(_NAME_BYTES_MAX) for _ in range(3))
        issued_ms, ends_ms = reader.number(), reader.number()
        decoded = cls(owner, renewer, real_user, issued_ms, ends_ms, reader.int32(), reader.int32())
        reader.require_end()
        return decoded


@dataclass(frozen=True, slots=True)
class HadoopToken:
    """A token of any kind, as NameNodes give it and files of credentials hold it.

    ``service`` names the servers that take it: ``ip:port`` or ``host:port`` of a single NameNode, or
    ``ha-hdfs:nameservice`` for all NameNodes of a name service.
    """

    kind: str
    service: str
    identifier: bytes = field(repr=False)
    password: bytes = field(repr=False)

    def __str__(self) -> str:
        """Return a name for errors and logs, without secrets: as in "the delegation token 12 of alice"."""
        if self.kind != HDFS_DELEGATION_TOKEN:
            return f"a token of kind {self.kind[:100]}"
        try:
            content = TokenIdentifier.decode(self.identifier)
        except Malformed:
            return "a delegation token with an identifier that this client cannot read"
        real = f" by {content.real_user[:100]}" if content.real_user else ""
        return f"the delegation token {content.sequence_number} of {content.owner[:100]}{real}"

    @property
    def content(self) -> TokenIdentifier:
        """The identifier's content.  Raises Malformed."""
        return TokenIdentifier.decode(self.identifier)

    @property
    def ends_ms(self) -> int:
        """The date after which no renewal helps, 0 if this client cannot read the identifier."""
        try:
            return self.content.ends_ms
        except Malformed:
            return 0

    def to_message(self) -> pb.Token:
        """Return the token as calls have it."""
        return pb.Token(identifier=self.identifier, password=self.password, kind=self.kind, service=self.service)

    @classmethod
    def from_message(cls, token: pb.Token, service: str = "") -> HadoopToken:
        """Return the token of a response, whose ``service`` its receiver fills in."""
        return cls(token.kind, service or token.service, token.identifier, token.password)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageToken:
    """A delegation token, with all that its holder needs to reach the cluster: no ticket, and no configuration.

    It may be pickled, and is a secret then: whoever has it is its owner towards HDFS.  ``root`` is the URL for which it
    was fetched, and ``namenodes`` the addresses in it, as a URL has them.
    """

    root: str
    namenodes: str
    token: HadoopToken
    security: HdfsSecurity
    use_datanode_hostname: bool | None = None
    umask: int = DEFAULT_UMASK

    def __str__(self) -> str:
        return f"{self.token} for {self.namenodes}"


@dataclass(frozen=True, slots=True)
class TokenGrant:
    """A token, and the seconds from its issue until its renewal is due.

    ``life_s`` is None for a token out of a file: whoever wrote the file renews it.
    """

    token: StorageToken
    life_s: float | None

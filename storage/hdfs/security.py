"""The protection of a cluster, by the properties of Hadoop's configuration.  Pure.

A property with a protocol that is not built is refused by its name.  Without the refusal the client would fail later,
and its error would not name the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.storage.hdfs import digest_md5
from bmq.storage.hdfs.handshake import TRANSFER_PROTECTION
from bmq.storage.hdfs.principals import PRINCIPAL
from bmq.storage.hdfs.sasl import AUTHENTICATION as NO_LAYER
from bmq.storage.hdfs.sasl import FALLBACK, LEVELS, RPC_PROTECTION
from bmq.storage.hdfs.site_files import SiteConfig

AUTHENTICATION = "hadoop.security.authentication"
ENCRYPTION = "dfs.encrypt.data.transfer"
CIPHER_SUITES = "dfs.encrypt.data.transfer.cipher.suites"
_AES_CTR = "AES/CTR/NoPadding"
_TRUSTED_CHANNEL = "dfs.trustedchannel.resolver.class"
_TRUSTS_NOTHING = "org.apache.hadoop.hdfs.protocol.datatransfer.TrustedChannelResolver"
_QOP = {level: qop for qop, level in digest_md5.LEVELS.items()}
_NOT_BUILT = (
    "hadoop.security.saslproperties.resolver.class",
    "dfs.data.transfer.saslproperties.resolver.class",
)
_DIGEST = ("hadoop.security.sasl.mechanism", "DIGEST-MD5")


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSecurity:
    """The protection of one cluster, as the configuration ``source`` has it; without any it is an open cluster.

    ``rpc_levels`` has the levels of calls in Hadoop's names, best first.  ``transfer_levels`` has the levels of
    connections to datanodes in RFC 2831's names, best first; empty: without a handshake.  ``is_transfer_encrypted``:
    the NameNode must demand data encryption keys.
    """

    source: str = ""
    is_kerberos: bool = False
    namenode_principal: str = ""
    namenode_principal_pattern: str = ""
    is_fallback_allowed: bool = False
    rpc_levels: tuple[str, ...] = (NO_LAYER,)
    transfer_levels: tuple[str, ...] = ()
    is_transfer_encrypted: bool = False


def is_kerberos(config: SiteConfig) -> bool:
    """Return whether the configuration demands Kerberos."""
    return _authentication(config) == "kerberos"


def _authentication(config: SiteConfig) -> str:
    return config.get(AUTHENTICATION).lower() or "simple"


def read_security(config: SiteConfig) -> HdfsSecurity:
    """Return the protection that the configuration describes.  Raises ValueError if it is not built."""
    authentication = _authentication(config)
    is_encrypted = config.is_true(ENCRYPTION)
    if authentication == "simple":
        if is_encrypted:
            _check_encryption(config)
        return HdfsSecurity(source=config.source, is_transfer_encrypted=is_encrypted)
    if authentication != "kerberos":
        raise ValueError(f"{config.source}: {AUTHENTICATION}={authentication} is not built: simple and kerberos are")
    rpc_levels = _levels(config, RPC_PROTECTION) or (NO_LAYER,)
    transfer_levels = _levels(config, TRANSFER_PROTECTION)
    _check_encryption(config)
    for name in _NOT_BUILT:
        if config.get(name):
            raise ValueError(f"{config.source}: {name} names a Java class, which this client cannot run: leave it out")
    name, known = _DIGEST
    if (mechanism := config.get(name) or known) != known:
        raise ValueError(f"{config.source}: {name}={mechanism} is not built, only {known} is")
    return HdfsSecurity(
        source=config.source,
        is_kerberos=True,
        namenode_principal=config.get(PRINCIPAL),
        namenode_principal_pattern=config.get(f"{PRINCIPAL}.pattern"),
        is_fallback_allowed=config.is_true(FALLBACK),
        rpc_levels=rpc_levels,
        transfer_levels=tuple(_QOP[level] for level in transfer_levels),
        is_transfer_encrypted=is_encrypted,
    )


def _levels(config: SiteConfig, name: str) -> tuple[str, ...]:
    """Return the levels of the property ``name``, in its order.  Raises ValueError for an unknown level."""
    levels = tuple(level.lower() for level in config.list(name))
    if unknown := [level for level in levels if level not in LEVELS]:
        raise ValueError(f"{config.source}: {name}={','.join(unknown)} is none of {', '.join(LEVELS)}")
    return levels


def _check_encryption(config: SiteConfig) -> None:
    """Raise ValueError for a cipher suite, or trusted channels, that this client does not have."""
    if (suites := config.get(CIPHER_SUITES)) not in {"", _AES_CTR}:
        raise ValueError(f"{config.source}: {CIPHER_SUITES}={suites} is not built, only {_AES_CTR} is")
    if config.get(_TRUSTED_CHANNEL) not in {"", _TRUSTS_NOTHING}:
        raise ValueError(
            f"{config.source}: {_TRUSTED_CHANNEL} names a Java class, which this client cannot run: leave it out"
        )

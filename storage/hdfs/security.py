"""The protection of a cluster, by the properties of Hadoop's configuration.  Pure.

A property with a protocol that is not built is refused by its name.  Without the refusal the client would fail later,
and its error would not name the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.storage.hdfs.handshake import TRANSFER_PROTECTION
from bmq.storage.hdfs.principals import PRINCIPAL
from bmq.storage.hdfs.sasl import AUTHENTICATION as NO_LAYER
from bmq.storage.hdfs.sasl import FALLBACK, LEVELS, RPC_PROTECTION
from bmq.storage.hdfs.site_files import SiteConfig

AUTHENTICATION = "hadoop.security.authentication"
ENCRYPTION = "dfs.encrypt.data.transfer"
_NOT_BUILT = (
    "hadoop.security.saslproperties.resolver.class",
    "dfs.data.transfer.saslproperties.resolver.class",
    "dfs.trustedchannel.resolver.class",
)
_DIGEST = ("hadoop.security.sasl.mechanism", "DIGEST-MD5")


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSecurity:
    """The protection of one cluster, as the configuration ``source`` has it; without any it is an open cluster.

    ``rpc_levels``: the levels that calls may have, the best liked first.
    ``is_transfer_sasl``: connections to datanodes begin with a SASL handshake.
    """

    source: str = ""
    is_kerberos: bool = False
    namenode_principal: str = ""
    namenode_principal_pattern: str = ""
    is_fallback_allowed: bool = False
    rpc_levels: tuple[str, ...] = (NO_LAYER,)
    is_transfer_sasl: bool = False


def is_kerberos(config: SiteConfig) -> bool:
    """Return whether the configuration demands Kerberos."""
    return _authentication(config) == "kerberos"


def _authentication(config: SiteConfig) -> str:
    return config.get(AUTHENTICATION).lower() or "simple"


def read_security(config: SiteConfig) -> HdfsSecurity:
    """Return the protection that the configuration describes.  Raises ValueError if it is not built."""
    authentication = _authentication(config)
    if authentication == "simple":
        return HdfsSecurity(source=config.source)
    if authentication != "kerberos":
        raise ValueError(f"{config.source}: {AUTHENTICATION}={authentication} is not built: simple and kerberos are")
    rpc_levels = _levels(config, RPC_PROTECTION)
    transfer_levels = _levels(config, TRANSFER_PROTECTION)
    if NO_LAYER not in transfer_levels:
        name, levels = TRANSFER_PROTECTION, ",".join(transfer_levels)
        raise ValueError(f"{config.source}: {name}={levels} is not built yet, only {name}={NO_LAYER} is")
    if config.is_true(ENCRYPTION):
        raise ValueError(f"{config.source}: {ENCRYPTION}=true is not built yet, only false is")
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
        is_transfer_sasl=bool(config.list(TRANSFER_PROTECTION)),
    )


def _levels(config: SiteConfig, name: str) -> tuple[str, ...]:
    """Return the levels of the property ``name``, in its order.  Raises ValueError for another word."""
    levels = tuple(level.lower() for level in config.list(name)) or (NO_LAYER,)
    if unknown := [level for level in levels if level not in LEVELS]:
        raise ValueError(f"{config.source}: {name}={','.join(unknown)} is none of {', '.join(LEVELS)}")
    return levels

"""The way from a root's URL to NameNodes, by Hadoop's configuration if the URL does not name them itself.

=====================================  =========================================================================
URL                                    NameNodes
=====================================  =========================================================================
``hdfs://nn1:8020,nn2:8020/dir``       these; the configuration names none
``hdfs://host/dir``                    those of the name service ``host`` if ``dfs.nameservices`` has it, else host:8020
``hdfs:///dir``                        those of ``fs.defaultFS``
=====================================  =========================================================================

A name service has one NameNode (``dfs.namenode.rpc-address.NS``), or several (``dfs.ha.namenodes.NS``, and
``dfs.namenode.rpc-address.NS.NN`` of each).  The client's behaviour has settings of this project: of the configuration
only the properties that say how to reach HDFS, and how it is protected (``security``), are used.  The protection holds
for every root, however its URL spells the NameNodes (UserGroupInformation.isSecurityEnabled).  Names and defaults are
those of ``HdfsClientConfigKeys`` and ``DFSUtilClient``.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from bmq.core.urls import split_url
from bmq.storage.hdfs.address import DEFAULT_RPC_PORT, USE_DATANODE_HOSTNAME, HdfsAddress, canonical_host
from bmq.storage.hdfs.site_files import SiteConfig, SiteFileError, conf_folder, read_folder

_DEFAULT_FS = ("fs.defaultFS", "fs.default.name")  # the second was the first one's name before Hadoop 0.23
_EMPTY = SiteConfig({})


def resolve(url: str, config: SiteConfig = _EMPTY) -> HdfsAddress:
    """Return the NameNodes and the folder that ``url`` means.  Raises ValueError, which names URL and property."""
    parts = split_url(url)
    authority = parts.netloc
    if parts.scheme == "hdfs" and not authority:
        authority = _default_authority(url, config)
    if parts.scheme == "hdfs" and _is_name_service(authority, config):
        nodes = config.list(f"dfs.ha.namenodes.{authority}") or [""]
        named = ",".join(_rpc_address(authority, node, config) for node in nodes)
        try:
            address = HdfsAddress.parse(parts._replace(netloc=named).geturl())
        except ValueError as error:
            raise ValueError(f"{config.source}, name service {authority}: {error}") from None
    else:
        address = HdfsAddress.parse(url if parts.netloc else parts._replace(netloc=authority).geturl())
    if address.use_datanode_hostname is not None:
        return address
    return replace(address, use_datanode_hostname=config.is_true(USE_DATANODE_HOSTNAME))


def logical_names(address: HdfsAddress, config: SiteConfig) -> tuple[str, ...]:
    """Return the name services of the configuration that have a NameNode of ``address``."""
    prefix = "dfs.ha.namenodes."
    services = [*config.list("dfs.nameservices"), *(name.removeprefix(prefix) for name in config.names(prefix))]
    found = []
    for service in dict.fromkeys(services):
        with contextlib.suppress(ValueError):  # a service without addresses, or with names without meaning here
            nodes = config.list(f"{prefix}{service}") or [""]
            named = ",".join(_rpc_address(service, node, config) for node in nodes)
            if not _canonical(HdfsAddress.parse(f"hdfs://{named}")).isdisjoint(_canonical(address)):
                found.append(service)
    return tuple(found)


def rpc_authority(host: str, config: SiteConfig) -> str:
    """Return what an hdfs:// URL has for the configuration's NameNode on ``host``; empty if it has none there.

    The result is a name service, or ``host:port`` for a NameNode without a name service.
    """
    for found in sorted(_configured_namenodes(config)):
        if found[0] == canonical_host(host):
            address = HdfsAddress.parse(f"hdfs://{host}:{found[1]}")
            return next(iter(logical_names(address, config)), f"{host}:{found[1]}")
    return ""


def _configured_namenodes(config: SiteConfig) -> set[tuple[str, int]]:
    """Return canonical host and port of each NameNode in the configuration."""
    values = [config.get(name) for name in config.names("dfs.namenode.rpc-address")]
    values += [split_url(config.get(name)).netloc for name in _DEFAULT_FS if name in config]
    found = set()
    for value in values:
        with contextlib.suppress(ValueError):  # a name without any meaning here: not the root's NameNode
            found |= _canonical(HdfsAddress.parse(f"hdfs://{value}"))
    return found


def _canonical(address: HdfsAddress) -> set[tuple[str, int]]:
    """Return host and port of each NameNode in canonical spelling: equal names are equal texts."""
    return {(canonical_host(host), port) for host, port in address.namenodes}


def read_config(folder: str = "") -> SiteConfig:
    """Return the configuration in ``folder``, or in the environment's folder; an empty one if there is none.

    Raises SiteFileError if it cannot be read, whatever the root: the file may demand Kerberos or encryption.
    """
    found = conf_folder(folder)
    if found is None:
        return _EMPTY
    try:
        return read_folder(found)
    except SiteFileError as error:
        if folder:
            raise
        raise SiteFileError(f"{error} (the folder is that of HADOOP_CONF_DIR, or of HADOOP_HOME)") from None


def _default_authority(url: str, config: SiteConfig) -> str:
    name = next((name for name in _DEFAULT_FS if name in config), None)
    if name is None:
        lacks = f"{config.source} has no fs.defaultFS" if config.source else "no HADOOP_CONF_DIR is given"
        raise ValueError(f"{url!r} names no NameNode, and {lacks}: give hdfs://namenode:port/folder")
    default = config.get(name)
    parts = split_url(default)
    if parts.scheme != "hdfs" or not parts.netloc:
        raise ValueError(
            f"{url!r}: {name}={default!r} in {config.source} is not HDFS: give hdfs://namenode:port/folder"
        )
    return parts.netloc


def _is_name_service(authority: str, config: SiteConfig) -> bool:
    """Return whether ``authority`` is a name service and not a host, which, as in Hadoop, the configuration says.

    Raises ValueError for a name service with a port.
    """
    if authority in config.list("dfs.nameservices") or f"dfs.ha.namenodes.{authority}" in config:
        return True
    service, _, port = authority.rpartition(":")
    if port.isdigit() and f"dfs.ha.namenodes.{service}" in config:
        raise ValueError(
            f"hdfs://{authority}: {service} is a name service in {config.source}, and has no port: leave it out"
        )
    return False


def _rpc_address(service: str, node: str, config: SiteConfig) -> str:
    name = ".".join(filter(None, ("dfs.namenode.rpc-address", service, node)))
    address = config.get(name) or (config.get("dfs.namenode.rpc-address") if not node else "")
    if not address:
        raise ValueError(f"{config.source}: {name} is missing: the address of a NameNode of {service}")
    if "${" in address:
        raise ValueError(f"{config.source}: {name}={address} has a variable without a value")
    if address.endswith("]") or ":" not in address:
        address = f"{address}:{DEFAULT_RPC_PORT}"
    return address

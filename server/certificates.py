"""The TLS of a process's ports, and the watch of the files that it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bmq.core.config import HTTP_LISTENER, NodeConfig
from bmq.core.security.internal_tls import InternalTls
from bmq.core.security.tls import ServerTls
from bmq.meta.cluster.member import PROXY

RELOAD_S = 5.0
"""Time between two looks at the files of certificates."""


def open_certificates(config: NodeConfig) -> dict[str, ServerTls]:
    """Return the TLS of each port that has it, by its name: a proxy's listeners, and the HTTP port.

    Raises ConfigError, which names the setting, if one cannot be made.
    """
    wanted = dict(config.listener_security()) if PROXY in config.roles else {}
    wanted[HTTP_LISTENER] = config.http_security()
    return {name: ServerTls(each) for name, each in wanted.items() if each.has_tls}


def open_internal_tls(config: NodeConfig) -> InternalTls | None:
    """Return the TLS between processes; None without.  Raises ConfigError, which names the setting."""
    if not config.has_internal_tls:
        return None
    checks_name = config.internal_ssl_endpoint_identification_algorithm == "https"
    return InternalTls(
        config.internal_tls_settings(), config, checks_name=checks_name, is_required=config.internal_ssl_required
    )


async def watch_certificates(certificates: Mapping[str, ServerTls]) -> None:
    """Make new contexts of files that change, for ever; return at once if no listener has TLS.

    Log each certificate that has expired, at the start or later.

    Files are read in a thread: a network's file system may not respond.
    """
    while certificates:
        for each in certificates.values():
            each.warn_if_expired()
        await asyncio.sleep(RELOAD_S)
        for each in certificates.values():
            await asyncio.to_thread(each.reload)

"""The TLS context of a Kafka client, from its settings and the files that they name."""

from __future__ import annotations

import ssl

from bmq.core.security.client_settings import ClientSecuritySettings
from bmq.core.security.stores import (
    TLS_VERSIONS,
    authorities_of,
    identity_of,
    load_authorities,
    load_identity,
    set_ciphers,
)


def context_of_client(security: ClientSecuritySettings, where: str) -> ssl.SSLContext:
    """Return a new context.  Without a truststore it trusts the machine's authorities.

    Raises ConfigError, which begins with ``where``, if a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = security.checks_name
    versions = [TLS_VERSIONS[each] for each in security.listed("ssl.enabled.protocols") or TLS_VERSIONS]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    set_ciphers(context, security.listed("ssl.cipher.suites"), where)
    authorities = authorities_of(security.get, where)
    if authorities is None:
        context.load_default_certs()
    else:
        load_authorities(context, authorities, where)
    identity = identity_of(security.get, where)
    if identity is not None:
        load_identity(context, identity, where)
    return context

"""TLS between the processes of a cluster: a process shows the same certificate to its callers and its callees.

Both sides show a certificate of the cluster's own authorities.  By default its names are not checked: the addresses of
processes are often addresses of pods, and any process with a certificate of these authorities belongs to the cluster.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from bmq.core.security.listener_settings import ListenerSecurity
from bmq.core.security.settings import SecuritySettings
from bmq.core.security.tls import ServerTls, client_context

NAME = "internal"
"""The name of the port in logs and errors, as of a listener."""
_FIXED = {"ssl.client.auth": "required", "ssl.principal.mapping.rules": "DEFAULT"}


class InternalTls(ServerTls):
    """The contexts of both sides.  Both are replaced when a file has changed."""

    def __init__(
        self, own: Mapping[str, Any], common: SecuritySettings, *, checks_name: bool, is_required: bool = True
    ) -> None:
        """Make them of the settings ``own``, by their keys without ``internal.``; the others are as in ``common``.

        ``is_required`` False, while a cluster gets TLS process by process: a process without it is talked to without.
        Raises ConfigError, which names the setting.
        """
        security = ListenerSecurity(NAME, "SSL", {**own, **_FIXED}, common)
        super().__init__(security)
        self._own_security = security
        self._checks_name = checks_name
        self.is_required = is_required
        self.callers_context: ssl.SSLContext = client_context(security, checks_name=checks_name)
        """The context of connections that this process makes."""

    def reload(self) -> bool:
        if not super().reload():
            return False
        self.callers_context = client_context(self._own_security, checks_name=self._checks_name)
        return True

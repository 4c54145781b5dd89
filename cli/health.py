"""``bmq health``: the health of one ``bmq serve``, as an exit status.

For health checks that run a command: a container's, an orchestrator's, a script's.  It takes the address from the
settings of the server itself (the environment and the file), so the check of a container needs no settings of its own.
"""

from __future__ import annotations

import argparse
import http.client
import ssl
import urllib.error
import urllib.request

from bmq.cli.output import fail, printable
from bmq.cli.server_settings import load_settings
from bmq.core.config import ConfigError, parse_address

TEXT_BYTES_MAX = 64 << 10
"""Most bytes that are read of a response's text, which names the failed checks."""


def of_this_machine() -> ssl.SSLContext:
    """Return a context that takes any certificate: the server's has its public name, and nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address to use for a server that listens on every address."""
# Calls stay on this machine, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=of_this_machine())
)


def run(arguments: argparse.Namespace) -> int:
    """Print the server's response and return the exit status."""
    try:
        settings = load_settings(arguments.config, {"http": arguments.http})
        address = settings.http
    except ConfigError as error:
        return fail(str(error), status=2)
    host, port = parse_address(address, "http")
    host = LOCAL.get(host, host)
    host = f"[{host}]" if ":" in host else host
    url = f"{'https' if settings.http_tls else 'http'}://{host}:{port}/{'readyz' if arguments.ready else 'healthz'}"
    try:
        with _OPENER.open(url, timeout=arguments.timeout) as response:
            print(_text(response.read(TEXT_BYTES_MAX)))
            return 0
    except urllib.error.HTTPError as error:
        with error:
            return fail(f"{url}: {error.code} {_text(error.read(TEXT_BYTES_MAX))}")
    except (OSError, http.client.HTTPException) as error:
        return fail(f"{url} does not answer: {getattr(error, 'reason', error)}")


def _text(body: bytes) -> str:
    return printable(body.decode(errors="replace").strip())

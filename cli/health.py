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
from bmq.cli.serve import load_settings
from bmq.core.config import ConfigError, parse_address

TEXT_BYTES_MAX = 64 << 10
"""Most bytes that are read of a response's text, which names the failed checks."""


def _of_this_machine() -> ssl.SSLContext:
    """Return a context that takes any certificate: the server's has its public name, and nothing secret is sent."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


LOCAL = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address to use for a server that listens on every address."""
# Calls stay on this machine, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_of_this_machine())
)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "health",
        help="check the health of a server on this machine; for health checks that run a command",
        description="Ask the server with the same settings (BMQ_HTTP, --config) whether it is healthy, or with --ready"
        " whether it is ready for clients. Exit status 0: yes; 1: no, or no response; 2: wrong settings.",
    )
    parser.add_argument("--http", metavar="HOST:PORT", help="the server's HTTP address (BMQ_HTTP)")
    parser.add_argument("--config", metavar="FILE.toml", help="the server's settings (BMQ_CONFIG)")
    parser.add_argument("--ready", action="store_true", help="ask /readyz instead of /healthz")
    parser.add_argument("--timeout", type=float, default=3.0, metavar="S", help="seconds to wait [%(default)g]")
    parser.set_defaults(run=run)


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

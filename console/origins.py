"""Protection of changing requests against web pages of other sites (cross-site request forgery, DNS rebinding).

There is no authentication (see ``console.http``), but a page of another site must not change anything through the
browser of a user who can reach this address.  Two rules prevent that:

* A body must have ``Content-Type: application/json``.  Browsers send such a body, and the methods PUT and DELETE, to
  another site only after a preflight request, which this server does not grant.
* Browsers send ``Origin`` with every changing request.  It must be the address in ``Host``, and that must be an IP
  address, or a name known to be this process's.  So a request is refused, too, if another site lets its own name
  resolve to this machine: the browser takes both for one site, but the name is the other's.

Clients that are not browsers send no ``Origin``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from bmq.console.operations import NotPossible

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_READING = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?", re.ASCII)


def name_in(host: str) -> str | None:
    """Return the name or address in a ``Host`` header, in lower case; None if the header is malformed."""
    if not _HOST.fullmatch(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets around something that is not an address
        return None


def same_origin(is_own: Callable[[str], bool]) -> Middleware:
    """Return the middleware that refuses changing requests of other sites' pages.

    ``is_own`` returns True for a ``Host`` that is known to be this process's.
    """

    @web.middleware
    async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method not in _READING and "Origin" in request.headers:
            host, origin = request.headers.get("Host", ""), request.headers["Origin"]
            if not host or origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
                text = "a page of another site may not do this; use this server's own page, `bmq cluster`, or curl"
                raise NotPossible(403, "from_another_site", text)
            if not is_own(host):
                name = name_in(host) or host
                text = f"{name[:80]!r} is not known as a name of this server: add it to the setting http_hosts"
                raise NotPossible(403, "from_another_site", text)
        return await handler(request)

    return check_origin

"""The guard of acts against web pages of other sites (cross-site request forgery, DNS rebinding).

Nobody is asked who they are (see ``console.http``); but a page on another site must not be able to act through the
browser of somebody who can reach this address.  A body has to say ``Content-Type: application/json``, and DELETE is a
method, that a browser sends to another site only after asking us.  Browsers send ``Origin`` with every act: it must be
the address that the request names in ``Host``, and that must be an address or a name known to be this process's.  So an
act is refused too when another site has its own name mean this machine: the browser takes both for one site, but the
name is that of the other.  Clients that are no browsers send no ``Origin``.
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
    """Return the name or address in a ``Host`` header in lower case, None if it has none of the form."""
    if not _HOST.fullmatch(host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # brackets around what is not an address
        return None


def same_origin(is_own: Callable[[str], bool]) -> Middleware:
    """Return the middleware that refuses acts of other sites' pages; `is_own` tells whether a ``Host`` is ours."""

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

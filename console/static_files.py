"""The console's files in ``static/``: one page, its modules, its style and its icon.

They are read once at start, so only a fixed set of names is served and no path of a request reaches the file system.
Browsers cache them and check with each use whether they have changed (``ETag``), so that an upgrade shows at once.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import web

_PAGE = "index.html"
_TYPES = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class _File(NamedTuple):
    content_type: str
    body: bytes
    packed: bytes
    tag: str


class StaticFiles:
    """Handlers of the page and its files."""

    def __init__(self) -> None:
        self._files = {name: _file(name, body) for name, body in _walk(files("bmq.console").joinpath("static"), "")}

    def __repr__(self) -> str:
        return f"<StaticFiles {len(self._files)}>"

    async def page(self, request: web.Request) -> web.Response:
        """Serve the page."""
        return _response(request, self._files[_PAGE])

    async def file(self, request: web.Request) -> web.Response:
        """Serve a file by its path below ``static/``.  Raises HTTPNotFound."""
        found = self._files.get(request.match_info["file"])
        if found is None:
            raise web.HTTPNotFound
        return _response(request, found)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _walk(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in _TYPES:
            yield prefix + each.name, each.read_bytes()


def _file(name: str, body: bytes) -> _File:
    content_type = _TYPES[name.rpartition(".")[2]]
    return _File(content_type, body, gzip.compress(body, mtime=0), hashlib.sha256(body).hexdigest()[:32])


def _response(request: web.Request, file: _File) -> web.Response:
    headers = {"ETag": f'"{file.tag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if any(each.value == file.tag for each in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    is_packed = "gzip" in request.headers.get("Accept-Encoding", "")
    if is_packed:
        headers["Content-Encoding"] = "gzip"
    body = file.packed if is_packed else file.body
    return web.Response(body=body, headers=headers, content_type=file.content_type, charset="utf-8")

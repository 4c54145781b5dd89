"""The console's files over a real socket, and rules that each of its modules keeps."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest

from bmq.console.http import HttpServer
from tests.unit.console.states import state
from tests.unit.console.test_http import Reply, ask

STATIC = Path(str(files("bmq.console").joinpath("static")))
NAMES = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*") if path.is_file())
MODULES = [name for name in NAMES if name.endswith(".js")]
TYPES = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}


def get(path: str) -> Reply:
    (reply,) = ask(state(), path)
    return reply


def test_the_page_allows_its_own_files_only() -> None:
    page = get("/")
    assert (page.status, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    text = page.body.decode()
    assert "://" not in text
    assert not re.search(r"<script(?![^>]*src=)|<style| style=| on[a-z]+=", text), "nothing inline"
    for path in re.findall(r'(?:src|href)="(static/[^"]+)"', text):
        assert path.removeprefix("static/") in NAMES


def test_every_file_is_served_with_its_type() -> None:
    for name, reply in zip(NAMES, ask(state(), *(f"/static/{name}" for name in NAMES)), strict=True):
        assert reply.status == 200, name
        assert reply.headers["Content-Type"].partition(";")[0] == TYPES[name.rpartition(".")[2]]
        assert reply.headers["Cache-Control"] == "no-cache"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.body == (STATIC / name).read_bytes()


@pytest.mark.loops("asyncio")
async def test_browsers_keep_files_and_ask_whether_they_have_changed() -> None:
    async def go() -> list[tuple[int, str | None, bytes]]:
        server = HttpServer(state(), "127.0.0.1", 0)
        await server.start()
        try:
            async with aiohttp.ClientSession(server.url, auto_decompress=False) as session:
                found = []
                async with session.get("/static/app.js", headers={"Accept-Encoding": "identity"}) as plain:
                    found.append((plain.status, plain.headers.get("Content-Encoding"), await plain.read()))
                    tag = plain.headers["ETag"]
                async with session.get("/static/app.js", headers={"Accept-Encoding": "gzip"}) as packed:
                    assert packed.headers["ETag"] == tag
                    found.append((packed.status, packed.headers.get("Content-Encoding"), await packed.read()))
                for known in (tag, '"another"'):
                    async with session.get("/static/app.js", headers={"If-None-Match": known}) as again:
                        found.append((again.status, None, await again.read()))
                return found
        finally:
            await server.stop()

    plain, packed, known, other = await go()
    body = (STATIC / "app.js").read_bytes()
    assert plain == (200, None, body)
    assert packed[:2] == (200, "gzip")
    assert gzip.decompress(packed[2]) == body
    assert known[0] == 304
    assert known[2] == b""
    assert other[0] == 200


@pytest.mark.parametrize("path", ["/static/", "/static/pages", "/static/nothing.js", "/static/..%2fhttp.py"])
def test_nothing_else_is_served(path: str) -> None:
    reply = get(path)
    assert (reply.status, reply.json["error"]) == (404, "not_found")


@pytest.mark.parametrize("name", MODULES)
def test_no_module_makes_markup_of_text_or_loads_from_elsewhere(name: str) -> None:
    """Search for markup sinks: text of records and names may reach the page as text nodes only (see ``dom.js``)."""
    text = (STATIC / name).read_text()
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|javascript:|DOMParser"
    assert not re.search(banned, text)
    assert set(re.findall(r"https?://[^\"'` ]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("name", MODULES)
def test_every_import_is_there(name: str) -> None:
    for imported in re.findall(r'^(?:import|\} from).*?"([^"]+)";$', (STATIC / name).read_text(), re.MULTILINE):
        assert ((STATIC / name).parent / imported).resolve().is_file(), imported


def test_the_page_stays_small() -> None:
    """All files, before compression, load over a slow line."""
    assert sum((STATIC / name).stat().st_size for name in NAMES) < 200_000


@pytest.mark.parametrize("name", MODULES)
def test_every_exported_name_is_imported(name: str) -> None:
    """Look for exported names that no other module imports: they are dead or should be private."""
    text = (STATIC / name).read_text()
    exported = re.findall(r"^export (?:async )?(?:function|class|const) (\w+)", text, re.MULTILINE)
    others = "\n".join((STATIC / other).read_text() for other in MODULES if other != name)
    imports = re.findall(r"^import \{ ([^}]+) \} from", others, re.MULTILINE)
    imported = {each for names in imports for each in names.split(", ")}
    assert set(exported) <= imported


@pytest.mark.parametrize("name", MODULES)
def test_every_imported_name_is_exported_and_used(name: str) -> None:
    """Check imports as a linter would: a missing name would leave the page empty."""
    text = (STATIC / name).read_text()
    for names, source in re.findall(r'^import \{ ([^}]+) \} from "([^"]+)";$', text, re.MULTILINE):
        exporter = ((STATIC / name).parent / source).read_text()
        for imported in names.split(", "):
            assert re.search(rf"^export (?:async )?(?:function|class|const) {imported}\b", exporter, re.MULTILINE)
            assert len(re.findall(rf"\b{imported}\b", text)) > 1, f"{imported} is not used"

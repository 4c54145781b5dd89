"""One browser and one server with topics, records and groups for all tests of this folder that only look."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser

from tests.integration.console.pages import Console
from tests.services import browser as browsers
from tests.services.bmq import BmqServer

HTTP_TIMEOUT_S = 30.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Api:
    """Calls of the HTTP API, by which a test prepares the cluster."""

    def __init__(self, url: str, user: str = "") -> None:
        """`user` is ``name:password``, where clients log in."""
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if user:
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self._url}/api/v1/{path}",
            None if body is None else json.dumps(body).encode(),
            self._headers,
            method=method,
        )
        with _HTTP.open(request, timeout=HTTP_TIMEOUT_S) as response:
            return json.load(response)

    def create(self, name: str, partitions: int = 2, **configs: str) -> None:
        self("POST", "topics", {"name": name, "partitions": partitions, "configs": configs})

    def produce(self, topic: str, value: str | None, key: str | None = None, **more: Any) -> None:
        self("POST", f"topics/{topic}/records", {"key": key, "value": value, **more})

    def commit(self, group: str, topic: str, to: str = "earliest") -> None:
        """Make a group without members that has committed offsets of a topic."""
        body = {"topics": [{"topic": topic, "partitions": None}], "to": to, "dry_run": False}
        self("POST", f"group/reset?id={quote(group, safe='')}", body)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start one a module: Playwright's loop runs in this thread until it ends, and no other test could run its own."""
    with browsers.running() as browser:
        yield browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqServer]:
    root = tmp_path_factory.mktemp("root")
    settings = {"BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "4", "BMQ_AUTO_CREATE_TOPICS_ENABLE": "false"}
    with BmqServer(f"file://{root}", environment=settings) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: BmqServer) -> Api:
    return Api(server.http)


@pytest.fixture
def console(browser: Browser, server: BmqServer) -> Iterator[Console]:
    with Console.opened(browser, server.http) as console:
        yield console

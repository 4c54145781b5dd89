"""A cluster's consoles in memory, on real sockets: what ``bmq cluster`` asks over HTTP."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.unit.cli.fake_admin import parse

Answer = tuple[int, Mapping[str, Any]]


def member(incarnation: str, *roles: str, **facts: object) -> dict[str, Any]:
    return {
        "incarnation": incarnation,
        "roles": list(roles),
        "node_id": -1,
        "kafka": "",
        "internal": "",
        "http": "",
        "zone": "",
        "version": "0.1.0",
        "protocols": [1, 1],
        "formats": 1,
        "is_draining": False,
        "is_leader": False,
        "partitions": 0,
        "shards": 0,
        "load_share": 0.0,
        "bytes_per_s": 0,
        "requests_per_s": 0,
        "unreachable_for": 0,
        "rates": None,
        "storage_trouble": "",
        **facts,
    }


def ask_cluster(*words: str) -> int:
    """Run ``bmq cluster`` as the command line does, and return the exit status."""
    arguments = parse("cluster", *words)
    status = arguments.run(arguments)
    assert isinstance(status, int)
    return status


class FakeCluster:
    """``members`` may be changed; ``acts`` were asked for; ``drained_after`` says how many looks a drain takes."""

    def __init__(self, *members: dict[str, Any]) -> None:
        self.cluster_id = "abc"
        self.members = {each["incarnation"]: each for each in members}
        self.unassigned = 0
        self.unassigned_after: Iterator[int] | None = None
        self.unassigned_shards = 0
        self.store_trouble = ""
        self.not_loaded: list[dict[str, Any]] = []
        self.quarantined: list[dict[str, Any]] = []
        self.not_served: list[dict[str, Any]] = []
        self.silent: list[str] = []
        self.features: list[dict[str, Any]] | None = None
        """None: a server of a version before levels, whose response lacks them."""
        self.is_from_leader = True
        self.moves: list[dict[str, Any]] = []
        self.acts: list[tuple[str, Mapping[str, Any]]] = []
        self.refuses: Answer | None = None
        self.authorizations: list[str | None] = []
        self.drained_after = 2
        self.topics: dict[str, dict[str, Any]] = {}
        """Responses about topics, without a cut into pages, by name."""
        self.topic_pages: list[str] = []
        """Paths of the requests for them."""
        self._leaving: dict[str, int] = {}

    def status(self, asked: str) -> dict[str, Any]:
        for name in list(self._leaving):
            self._leaving[name] -= 1
            if self._leaving[name] < 0:
                self.members.pop(name, None)
        if self.unassigned_after is not None:
            self.unassigned = next(self.unassigned_after, self.unassigned)
        leader = [name for name, each in self.members.items() if each["is_leader"]]
        levels = {} if self.features is None else {"features": self.features, "features_epoch": 1}
        return levels | {
            "cluster": "bmq",
            "cluster_id": self.cluster_id,
            "asked": asked,
            "leader": leader[0] if leader else None,
            "is_from_leader": self.is_from_leader,
            "topics": 1,
            "partitions": 6,
            "unassigned": self.unassigned,
            "unassigned_shards": self.unassigned_shards,
            "store_trouble": self.store_trouble,
            "is_balancing": bool(self.moves),
            "members": list(self.members.values()),
            "shards": [],
            "shards_not_loaded": self.not_loaded,
            "quarantined": self.quarantined,
            "quarantined_total": len(self.quarantined),
            "partitions_not_served": self.not_served[:1],
            "partitions_not_served_total": len(self.not_served),
            "rates": None,
            "silent": self.silent,
            "moves_under_way": self.moves,
            "past_moves": [],
        }

    def act(self, name: str, body: Mapping[str, Any]) -> Answer:
        if self.refuses is not None:
            return self.refuses
        self.acts.append((name, body))
        if name == "drain":
            leaving = self.members[body["member"]]
            leaving["is_draining"] = True
            self._leaving[body["member"]] = self.drained_after
            return 202, {"member": body["member"], "partitions": leaving["partitions"], "shards": leaving["shards"]}
        return 200, {"moves": 4} if name == "balance" else dict(body)

    def log_levels(self, named: str) -> Answer:
        if self.refuses is not None:
            return self.refuses
        return 200, {
            "member": named,
            "loggers": [
                {"logger": "root", "level": "INFO", "is_set": True},
                {"logger": "bmq.broker", "level": "DEBUG", "is_set": True},
                {"logger": "bmq.broker.cleanup.janitor", "level": "DEBUG", "is_set": False},
                {"logger": "grpc", "level": "INFO", "is_set": False},
            ],
        }

    def topic(self, path: str) -> Answer:
        """Return the page of a topic that the path asks for."""
        self.topic_pages.append(path)
        url = urlsplit(path)
        name, query = unquote(url.path.rpartition("/")[2]), parse_qs(url.query)
        if name not in self.topics:
            return 404, {"error": "unknown_topic", "message": f"there is no topic {name!r}"}
        details = self.topics[name]
        start, partitions = int(query["after"][0]) + 1, details["partitions"]
        end = start + int(query["limit"][0])
        return 200, details | {"partitions": partitions[start:end], "next": end - 1 if end < len(partitions) else None}

    @contextmanager
    def console(self, incarnation: str = "", *, ends_with_drain: bool = False) -> Iterator[str]:
        """Serve a member's console and yield its URL, which the member's facts contain from then on."""
        server = _Server(self, incarnation, ends_with_drain=ends_with_drain)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        if incarnation in self.members:
            self.members[incarnation]["http"] = f"127.0.0.1:{server.server_port}"
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(ThreadingHTTPServer):
    def __init__(self, cluster: FakeCluster, incarnation: str, *, ends_with_drain: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cluster = cluster
        self.incarnation = incarnation
        self.ends_with_drain = ends_with_drain


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.path == "/api/v1/cluster/status":
            self._respond(200, self.server.cluster.status(self.server.incarnation))
        elif self.path.startswith("/api/v1/topics/"):
            self._respond(*self.server.cluster.topic(self.path))
        elif self.path.endswith("/log-level"):
            self._respond(*self.server.cluster.log_levels(self.path.split("/")[-2]))
        else:
            self._respond(404, {"error": "not_found", "message": f"GET {self.path}"})

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/json"
        assert self.path.endswith("/log-level")
        self._respond(*self.server.cluster.act(f"log-level {self.path.split('/')[-2]}", body))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.headers["Content-Type"] == "application/json"
        name = self.path.removeprefix("/api/v1/cluster/")
        self._respond(*self.server.cluster.act(name, body))
        if name == "drain" and self.server.ends_with_drain:
            self.server.socket.close()

    def _respond(self, status: int, facts: Mapping[str, Any]) -> None:
        self.server.cluster.authorizations.append(self.headers["Authorization"])
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(facts).encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing on standard error."""

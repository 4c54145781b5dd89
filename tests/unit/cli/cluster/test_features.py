"""``bmq cluster features``: the levels that are printed, and the request that sets them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import UpdateFeaturesResponse
from tests.unit.cli.fake_admin import FakeAdmin

Run = Callable[..., int]
Printed = pytest.CaptureFixture[str]


class FakeServer:
    """A server behind UpdateFeatures: it keeps the requests, and gives each of them ``error``."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.error: tuple[ErrorCode, str | None] = (ErrorCode.NONE, None)

    def run(self, send: Callable[..., Any], *arguments: Any) -> Any:
        return send(*arguments)

    def send(self, request: Any) -> Any:
        self.asked.append(request)
        code, message = self.error
        return UpdateFeaturesResponse(throttle_time_ms=0, error_code=code, error_message=message, results=[])

    def updates(self) -> list[tuple[str, int, int]]:
        (request,) = self.asked
        return [(each.feature, each.max_version_level, each.upgrade_type) for each in request.feature_updates]


@pytest.fixture
def server(admin: FakeAdmin) -> FakeServer:
    made = FakeServer()
    admin._manager = made
    return made


def test_levels_are_printed_with_what_the_server_supports(bmq: Run, admin: FakeAdmin, capsys: Printed) -> None:
    assert bmq("cluster", "features") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["FEATURE", "LEVEL", "LOWEST", "HIGHEST", "EPOCH"],
        ["compaction.version", "0", "0", "1", "-"],
        ["transaction.version", "2", "0", "2", "5"],
    ]
    assert bmq("cluster", "features", "--json") == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"feature": "compaction.version", "level": 0, "lowest": 0, "highest": 1, "epoch": None},
        {"feature": "transaction.version", "level": 2, "lowest": 0, "highest": 2, "epoch": 5},
    ]


def test_levels_are_raised_and_lowered_in_one_request(bmq: Run, server: FakeServer, capsys: Printed) -> None:
    levels = ("--upgrade", "compaction.version=1", "--downgrade", "transaction.version=1")
    assert bmq("cluster", "features", *levels) == 0
    assert server.updates() == [("compaction.version", 1, 1), ("transaction.version", 1, 2)]
    assert not server.asked[0].validate_only
    assert server.asked[0].timeout_ms == 8_000, "the server says that a change is not done before the client gives up"
    assert capsys.readouterr().out.splitlines() == [
        "compaction.version: raised to 1",
        "transaction.version: lowered to 1",
    ]


def test_a_dry_run_is_the_servers(bmq: Run, server: FakeServer, capsys: Printed) -> None:
    assert bmq("cluster", "features", "--downgrade", "transaction.version=1", "--dry-run") == 0
    assert server.asked[0].validate_only
    assert capsys.readouterr().out == "transaction.version: can be lowered to 1\n"
    assert bmq("cluster", "features", "--upgrade", "transaction.version=2", "--dry-run", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"feature": "transaction.version", "level": 2, "is_dry_run": True}


def test_a_refused_update_says_why(bmq: Run, server: FakeServer, capsys: Printed) -> None:
    server.error = (ErrorCode.INVALID_UPDATE_VERSION, "Invalid update version 3 for feature f. Too high.")
    assert bmq("cluster", "features", "--upgrade", "f=3") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    reason = "Invalid update version 3 for feature f. Too high (INVALID_UPDATE_VERSION)"
    assert f"no level is changed: {reason}" in printed.err
    server.error = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)
    assert bmq("cluster", "features", "--upgrade", "f=3") == 1
    assert "no level is changed: not authorised for Alter on the cluster" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--upgrade", "f"), "'f' is not NAME=LEVEL"),
        (("--upgrade", "=1"), "'=1' is not NAME=LEVEL"),
        (("--upgrade", "f=two"), "'two' is not a number from 0 up"),
        (("--downgrade", "f=-1"), "'-1' is not a number from 0 up"),
        (("--upgrade", "f=32768"), "32768 is more than 32767"),
        (("--upgrade", "f=1", "--downgrade", "f=0"), "feature f is given twice"),
        (("--dry-run",), "--dry-run is for --upgrade NAME=LEVEL or --downgrade NAME=LEVEL"),
    ],
)
def test_a_wrong_command_line_asks_no_server(
    bmq: Run, server: FakeServer, capsys: Printed, words: tuple[str, ...], error: str
) -> None:
    try:
        status = bmq("cluster", "features", *words)
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status == 2
    assert error in capsys.readouterr().err
    assert server.asked == []

"""`bmq cluster doctor` at a real etcd, with a server that is well and after it was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bmq.cli.main import main
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for

pytestmark = pytest.mark.etcd

Told = pytest.CaptureFixture[str]


def doctor(root: Path, meta: str, capsys: Told) -> list[dict[str, str]]:
    status = main(["cluster", "doctor", "--root", f"file://{root}", "--meta", meta, "--timeout", "10", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == bool(found)
    return [each for each in found if "are left" not in each["what"]]  # this machine's disk


def test_a_cluster_that_is_well_and_one_whose_process_was_killed(
    etcd: EtcdCluster, tmp_path: Path, capsys: Told
) -> None:
    folder, root = tmp_path / "server", tmp_path / "root"
    folder.mkdir()
    with BmqServer(f"file://{root}", etcd.url, folder=folder) as server:
        assert doctor(root, etcd.url, capsys) == []
        server.kill()
        notified: set[str] = set()

        def has_ended() -> bool:
            notified.update(each["what"] for each in doctor(root, etcd.url, capsys))
            return "no process is registered" in notified

        wait_for(has_ended, "the end of the membership", timeout_s=60)
        assert any("does not answer" in what for what in notified)
        assert any("it is not renewed" in what for what in notified)
        server.start()
        found = doctor(root, f"{etcd.url},127.0.0.1:1", capsys)
        assert [each["subject"] for each in found] == ["127.0.0.1:1"]

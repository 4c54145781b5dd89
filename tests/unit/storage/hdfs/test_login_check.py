"""The doctor's steps of the credentials, by the way of the log-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.hdfs.login_check import LoginCheck, LoginWay, way_of
from bmq.storage.health import FAILED, NOT_CHECKED
from tests.services.hdfs_config import write_conf

pytestmark = pytest.mark.loops("asyncio")


@pytest.mark.parametrize(
    ("login", "way"),
    [
        (HdfsLogin("/k", "bmq@R"), LoginWay.KEYTAB),
        (HdfsLogin("/k"), LoginWay.KEYTAB),
        (HdfsLogin(principal="bmq@R"), LoginWay.TICKET_CACHE),
        (HdfsLogin(), LoginWay.TICKET_CACHE),
    ],
)
def test_a_keytab_comes_before_the_cache(login: HdfsLogin, way: LoginWay) -> None:
    assert way_of(login) is way


@pytest.mark.parametrize("login", [HdfsLogin("/k", "bmq@R"), HdfsLogin()])
async def test_each_way_has_its_steps_and_nothing_is_checked_behind_a_failed_one(
    login: HdfsLogin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(tmp_path / "none"))
    root = "hdfs://127.0.0.1:1"
    write_conf(
        tmp_path,
        {
            "fs.defaultFS": root,
            "hadoop.security.authentication": "kerberos",
            "dfs.namenode.kerberos.principal": "nn/_HOST@R",
        },
    )
    steps = await LoginCheck(f"{root}/bmq", str(tmp_path), login, 1.0).run()
    assert [(step.name, step.result) for step in steps] == [
        ("krb5.conf", FAILED),
        ("keytab", NOT_CHECKED),
        ("ticket", NOT_CHECKED),
        ("NameNodes", NOT_CHECKED),
        ("rights", NOT_CHECKED),
        ("datanodes", NOT_CHECKED),
    ]

"""The doctor's steps of the credentials, by the way of the log-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import NoSuchFile, NotAllowed, StorageError, Unsupported
from bmq.storage.hdfs.delegation_token import HDFS_DELEGATION_TOKEN, HadoopToken
from bmq.storage.hdfs.login_check import LoginCheck, LoginWay, rights_remedy, way_of
from bmq.storage.health import FAILED, NOT_CHECKED
from tests.services.hdfs_config import write_conf
from tests.unit.storage.hdfs.token_files import IDENTIFIER, PASSWORD, WRITABLE

pytestmark = pytest.mark.loops("asyncio")

TOKEN = HadoopToken(HDFS_DELEGATION_TOKEN, "127.0.0.1:1", IDENTIFIER, PASSWORD)


@pytest.mark.parametrize(
    ("login", "token", "way"),
    [
        (HdfsLogin("/k", "bmq@R"), None, LoginWay.KEYTAB),
        (HdfsLogin("/k"), TOKEN, LoginWay.KEYTAB),
        (HdfsLogin(principal="bmq@R"), None, LoginWay.TICKET_CACHE),
        (HdfsLogin(principal="bmq@R"), TOKEN, LoginWay.TOKEN),
        (HdfsLogin(), None, LoginWay.TICKET_CACHE),
        (HdfsLogin(), TOKEN, LoginWay.TOKEN),
    ],
)
def test_a_keytab_comes_before_a_token_and_a_token_before_the_cache(
    login: HdfsLogin, token: HadoopToken | None, way: LoginWay
) -> None:
    assert way_of(login, token) is way


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


@pytest.mark.parametrize(
    ("variable", "detail"),
    [("file", "the delegation token 300 of alice by spark ended at 2026"), ("none", "does not exist")],
)
async def test_a_token_that_has_ended_or_a_file_that_is_missing_fails_the_step(
    variable: str, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(WRITABLE)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(tmp_path / variable))
    write_conf(
        tmp_path,
        {
            "hadoop.security.authentication": "kerberos",
            "dfs.namenode.kerberos.principal": "nn/_HOST@R",
            "dfs.nameservices": "nameservice",
            "dfs.ha.namenodes.nameservice": "a",
            "dfs.namenode.rpc-address.nameservice.a": "127.0.0.1:1",
        },
    )
    first, *_ = await LoginCheck("hdfs://nameservice/bmq", str(tmp_path), HdfsLogin(), 1.0).run()
    assert (first.name, first.result) == ("token", FAILED)
    assert detail in first.what


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (Unsupported("a zone"), "choose another root"),
        (NotAllowed("user=stranger, access=WRITE"), "hdfs dfs -chown USER ROOT"),
        (NoSuchFile("no such folder"), "hdfs dfs -mkdir -p ROOT"),
        (TimeoutError(), "hdfs dfs -chown USER ROOT"),
    ],
)
def test_a_missing_right_is_given_and_a_root_that_cannot_be_used_is_left(
    error: StorageError | TimeoutError, remedy: str
) -> None:
    assert remedy in rights_remedy(error)

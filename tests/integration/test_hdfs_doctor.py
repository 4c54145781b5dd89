"""`bmq cluster doctor` at a real secure HDFS: each step of the log-in, and which step fails for which cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bmq.cli.main import main
from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.health import FAILED, NOT_CHECKED, OK, LoginStep
from bmq.storage.open import login_steps
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_config import write_conf
from tests.services.hdfs_tools import hdfs_tool
from tests.services.kdc import REALM, Kdc

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

pytestmark = pytest.mark.loops("asyncio")
USER = f"bmq@{REALM}"


@pytest.fixture
def kdc(secure_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """Return the cluster's realm, which this process uses; it has no tickets."""
    assert secure_hdfs.security is not None
    realm = secure_hdfs.security.kdc
    monkeypatch.setenv("KRB5_CONFIG", realm.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{realm.folder}/none")
    return realm


@pytest.fixture
def login(kdc: Kdc) -> HdfsLogin:
    return HdfsLogin(str(kdc.keytab(USER) if kdc.keytab(USER).exists() else kdc.add_service(USER)), USER)


@pytest.fixture
def conf(secure_hdfs: HdfsCluster, tmp_path: Path) -> Callable[..., str]:
    """Return a maker of the clients' configuration, with some properties changed."""

    def write(**changed: str) -> str:
        names = {name.replace("_", "."): value for name, value in changed.items()}
        write_conf(tmp_path / "conf", {**secure_hdfs.client_settings, **names})
        return str(tmp_path / "conf")

    return write


def root(secure_hdfs: HdfsCluster) -> str:
    return f"{secure_hdfs.root}/doctor"


def results(steps: list[LoginStep]) -> dict[str, str]:
    """Return the results by step, of NameNodes and datanodes without their addresses."""
    return {step.name.partition(" ")[0]: step.result for step in steps}


async def failed_step(secure_hdfs: HdfsCluster, conf: str, login: HdfsLogin) -> LoginStep:
    """Return the first step that fails; the steps behind it are not checked."""
    steps = list(await login_steps(root(secure_hdfs), conf, 20.0, hdfs_login=login))
    (first, *_) = [number for number, step in enumerate(steps) if step.result == FAILED]
    assert steps[first].remedy
    assert {step.result for step in steps[first + 1 :]} <= {NOT_CHECKED, FAILED}
    return steps[first]


def test_each_step_is_a_row(
    secure_hdfs: HdfsCluster, login: HdfsLogin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("BMQ_HADOOP_CONF_DIR", str(secure_hdfs.conf_folder))
    monkeypatch.setenv("BMQ_HDFS_KEYTAB", login.keytab)
    monkeypatch.setenv("BMQ_HDFS_PRINCIPAL", login.principal)
    command = [
        "cluster", "doctor", "--root", root(secure_hdfs), "--meta", f"sqlite://{tmp_path}/meta.db",
        "--timeout", "20",
    ]  # fmt: skip
    main([*command, "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    steps = [row for row in rows if row["area"] == "log-in"]
    assert {row["result"] for row in steps} == {OK}, steps
    names = [row["subject"].partition(" ")[0] for row in steps]
    assert names == ["krb5.conf", "clock", "keytab", "ticket", "NameNode", "rights", *["datanode"] * 3]
    said = {row["subject"].partition(" ")[0]: row["what"] for row in steps}
    assert f"{USER}, key version number " in said["keytab"]
    assert said["NameNode"] == "hadoop.rpc.protection=authentication"
    assert said["datanode"] == "authentication"
    assert said["rights"].startswith("the HDFS user bmq may write to ")
    main(command)
    assert "log-in: ticket: ok: of bmq@BMQ.TEST, for another " in capsys.readouterr().out


async def test_a_keytab_that_is_away_of_another_principal_or_out_of_date(
    secure_hdfs: HdfsCluster, kdc: Kdc, login: HdfsLogin, conf: Callable[..., str], tmp_path: Path
) -> None:
    step = await failed_step(secure_hdfs, conf(), HdfsLogin("/no/such.keytab", USER))
    assert step[:3] == ("keytab", FAILED, "/no/such.keytab: No such file or directory")
    step = await failed_step(secure_hdfs, conf(), HdfsLogin(login.keytab, f"wrong@{REALM}"))
    assert step[:3] == ("keytab", FAILED, f"{login.keytab} has {USER}, and not wrong@{REALM}")
    stale, user = tmp_path / "stale.keytab", f"rotated@{REALM}"
    stale.write_bytes(kdc.add_service(user).read_bytes())
    kdc.change_key(user, kdc.keytab(user))
    step = await failed_step(secure_hdfs, conf(), HdfsLogin(str(stale), user))
    assert step.name == "ticket"
    assert "key version number" in step.remedy


async def test_a_ticket_that_is_not_there(
    secure_hdfs: HdfsCluster, kdc: Kdc, conf: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = await failed_step(secure_hdfs, conf(), HdfsLogin())
    assert step.name == "ticket"
    assert "run kinit as this process's user" in step.remedy
    monkeypatch.setenv("KRB5CCNAME", kdc.log_in(f"cached@{REALM}"))
    kdc.process.kill()
    try:
        steps = list(await login_steps(root(secure_hdfs), conf(), 20.0))
    finally:
        kdc.start()
    assert results(steps)["clock"] == FAILED
    assert "does not show its clock" in steps[1].what
    assert results(steps)["ticket"] == OK, "a cache needs no KDC"


@pytest.mark.parametrize(
    ("changed", "name", "said"),
    [
        ({"dfs_namenode_kerberos_principal": f"nn/elsewhere@{REALM}"}, "NameNode", "has the principal 'nn/localhost@"),
        ({"hadoop_rpc_protection": "privacy"}, "NameNode", "offers hadoop.rpc.protection=authentication; this client"),
        (
            {"dfs_data_transfer_protection": "privacy"},
            "datanode",
            "demands dfs.data.transfer.protection=authentication",
        ),
    ],
)
async def test_a_server_of_another_principal_or_level(
    secure_hdfs: HdfsCluster, login: HdfsLogin, conf: Callable[..., str], changed: dict[str, str], name: str, said: str
) -> None:
    step = await failed_step(secure_hdfs, conf(**changed), login)
    assert (step.name.partition(" ")[0], said in step.what) == (name, True), step
    assert "ask the Hadoop administrator for" in step.remedy


async def test_a_missing_right_names_path_user_and_right(
    secure_hdfs: HdfsCluster, kdc: Kdc, login: HdfsLogin, conf: Callable[..., str]
) -> None:
    hdfs_tool(secure_hdfs, "dfs", "-mkdir", "-p", "/doctor", tickets=kdc.ticket(USER))
    other = f"stranger@{REALM}"
    step = await failed_step(secure_hdfs, conf(), HdfsLogin(str(kdc.add_service(other)), other))
    assert step.name == "rights"
    assert "user=stranger, access=WRITE" in step.what
    assert 'inode="/doctor"' in step.what
    assert "hdfs dfs -chown USER ROOT" in step.remedy


async def test_the_datanodes_are_left_as_they_were(
    secure_hdfs: HdfsCluster, login: HdfsLogin, conf: Callable[..., str], kdc: Kdc
) -> None:
    assert results(list(await login_steps(root(secure_hdfs), conf(), 20.0, hdfs_login=login)))["datanode"] == OK
    assert hdfs_tool(secure_hdfs, "dfs", "-ls", "/doctor", tickets=kdc.ticket(USER)) == []


async def test_an_open_root_has_no_steps(tmp_path: Path) -> None:
    assert await login_steps(f"file://{tmp_path}", "", 1.0) == ()

"""Delegation tokens on a real secure HDFS: fetched by ticket, read from Java's files, used alone, renewed and ended."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.core.hdfs_login import NO_HDFS_LOGIN, HdfsLogin
from bmq.storage.filesystem import CannotLogIn, StorageError
from bmq.storage.hdfs.delegation_token import HDFS_DELEGATION_TOKEN, StorageToken
from bmq.storage.hdfs.token_file import read_token_files
from bmq.storage.open import (
    cancel_storage_token,
    fetch_storage_token,
    open_filesystem,
    renew_storage_token,
)
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool
from tests.services.kdc import REALM, Kdc

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

pytestmark = pytest.mark.loops("asyncio")

RENEWED_EVERY_S = 60.0
"""The cluster's ``dfs.namenode.delegation.token.renew-interval``."""
EXECUTOR = """
import asyncio, pickle, sys
from bmq.storage.open import open_filesystem

async def main() -> None:
    url, token = pickle.load(sys.stdin.buffer)
    print(repr(token), token)
    fs = await open_filesystem(url, holder="executor", token=token)
    print((await fs.read("/f", 0, 100)).decode())
    appender = await fs.create("/by-token")
    appender.write(b"written by token")
    await appender.flush()
    await appender.close()
    print((await fs.status("/by-token")).owner)
    await fs.close()

asyncio.run(main())
"""


@pytest.fixture
def kdc(secure_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> Kdc:
    """Return the cluster's realm, which this process uses too; it has no tickets."""
    assert secure_hdfs.security is not None
    realm = secure_hdfs.security.kdc
    monkeypatch.setenv("KRB5_CONFIG", realm.environment["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{realm.folder}/none")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(secure_hdfs.conf_folder))
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)
    return realm


@pytest.fixture
def login(kdc: Kdc) -> HdfsLogin:
    """Return the log-in of the user bmq by keytab."""
    user = f"bmq@{REALM}"
    return HdfsLogin(str(kdc.keytab(user) if kdc.keytab(user).exists() else kdc.add_service(user)))


async def fetched(root: str, login: HdfsLogin) -> StorageToken:
    token = await fetch_storage_token(root, "bmq", hdfs_login=login)
    assert token is not None
    return token


async def write_words(root: str, login: HdfsLogin) -> None:
    fs = await open_filesystem(root, holder="driver", hdfs_login=login)
    try:
        appender = await fs.create("/f")
        appender.write(b"twelve words")
        await appender.flush()
        await appender.close()
    finally:
        await fs.close()


async def can_open(root: str, token: StorageToken) -> None:
    fs = await open_filesystem(root, holder="try", token=token)
    await fs.close()


async def test_a_process_with_a_token_alone_reads_and_writes(secure_hdfs: HdfsCluster, login: HdfsLogin) -> None:
    """Run the process without a ticket, without krb5.conf and without Hadoop's configuration."""
    root = f"{secure_hdfs.root}/tokens-alone"
    await write_words(root, login)
    token = await fetched(root, login)
    content = token.token.content
    assert (content.owner, content.renewer, content.real_user) == (f"bmq@{REALM}", "bmq", "")
    assert content.issued_ms < content.ends_ms
    assert content.sequence_number > 0
    hidden = ("HADOOP", "KRB5", "BMQ_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", EXECUTOR],
        input=pickle.dumps((root, token)),
        capture_output=True,
        check=False,
        timeout=120,
        env={**environment, "KRB5_CONFIG": os.devnull, "KRB5CCNAME": f"FILE:{os.devnull}/none"},
    )
    shown, *said = done.stdout.decode().splitlines()
    assert said == ["twelve words", "bmq"], done.stderr.decode()
    for secret in (token.token.password, token.token.identifier):
        assert repr(secret)[2:12] not in shown


async def test_a_token_is_renewed_and_cancelled(secure_hdfs: HdfsCluster, login: HdfsLogin) -> None:
    root = f"{secure_hdfs.root}/tokens-ended"
    token = await fetched(root, login)
    assert await renew_storage_token(token, hdfs_login=login) > token.token.content.issued_ms
    await can_open(root, token)
    await cancel_storage_token(token, hdfs_login=login)
    with pytest.raises(CannotLogIn, match=r"token \d+ of bmq@.*: InvalidToken: .*\(the delegation token has"):
        await can_open(root, token)
    for call in (renew_storage_token, cancel_storage_token):
        with pytest.raises(CannotLogIn, match=r"InvalidToken"):
            await call(token, hdfs_login=login)


async def test_a_stranger_neither_renews_nor_cancels(secure_hdfs: HdfsCluster, kdc: Kdc, login: HdfsLogin) -> None:
    token = await fetched(f"{secure_hdfs.root}/tokens-others", login)
    stranger = HdfsLogin(str(kdc.add_service(f"stranger@{REALM}")))
    for call in (renew_storage_token, cancel_storage_token):
        with pytest.raises(StorageError, match="stranger"):
            await call(token, hdfs_login=stranger)


async def test_javas_files_of_both_formats_log_in(
    secure_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = kdc.log_in(f"java@{REALM}")
    root = f"{secure_hdfs.root}/tokens-of-java"
    hdfs_tool(secure_hdfs, "dfs", "-mkdir", root, tickets=tickets)
    by_fetchdt, by_dtutil = tmp_path / "fetchdt", tmp_path / "dtutil"
    calls = {
        by_fetchdt: ["fetchdt", "--renewer", "java", str(by_fetchdt)],
        by_dtutil: ["dtutil", "get", secure_hdfs.root, "-format", "protobuf", "-renewer", "java", str(by_dtutil)],
    }
    for path, arguments in calls.items():
        monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION", raising=False)
        hdfs_tool(secure_hdfs, *arguments, tickets=tickets)
        assert path.read_bytes()[:5] == (b"HDTS\x00" if path == by_fetchdt else b"HDTS\x01")
        (token,) = read_token_files((str(path),)).values()
        assert token.kind == HDFS_DELEGATION_TOKEN
        assert (token.content.owner, token.content.renewer) == (f"java@{REALM}", "java")
        monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))
        fs = await open_filesystem(root, holder="file")
        await fs.make_folder(f"/{path.name}")
        assert (await fs.status(f"/{path.name}")).owner == "java"
        await fs.close()
        passed_on = await fetch_storage_token(root)
        assert passed_on is not None
        assert passed_on.token == token, "a NameNode gives no token to the owner of a token"


@pytest.mark.loops("asyncio", limit_s=400)
async def test_an_expired_token_is_an_error_and_kerberos_beside_it_goes_on(
    secure_hdfs: HdfsCluster, kdc: Kdc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = kdc.log_in(f"late@{REALM}")
    path, root = tmp_path / "tokens", f"{secure_hdfs.root}/"
    hdfs_tool(secure_hdfs, "fetchdt", "--renewer", "late", str(path), tickets=tickets)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))

    async def refusal() -> str:
        try:
            fs = await open_filesystem(root, holder="late")
        except CannotLogIn as error:
            return str(error)
        await fs.close()
        return ""

    async with asyncio.timeout(3 * RENEWED_EVERY_S):
        while not (said := await refusal()):  # noqa: ASYNC110 - no event: the NameNode compares its clock at a log-in
            await asyncio.sleep(1)
    assert "the delegation token " in said
    assert f" in {path}, and cannot log in to Kerberos as the principal of the ticket cache" in said
    with pytest.raises(CannotLogIn, match=r"InvalidToken|refuses the delegation token"):
        await fetch_storage_token(root, "late")
    monkeypatch.setenv("KRB5CCNAME", tickets)
    assert await refusal() == ""
    another = await fetched(root, NO_HDFS_LOGIN)
    assert another.token not in read_token_files((str(path),)).values()
    await can_open(root, another)
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.folder}/none")
    monkeypatch.delenv("HADOOP_TOKEN_FILE_LOCATION")
    hdfs_tool(secure_hdfs, "fetchdt", "--renewer", "late", f"{path}.new", tickets=tickets)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", f"{path}.new")
    assert await refusal() == ""

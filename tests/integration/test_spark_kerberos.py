"""Spark on a real HDFS with Kerberos: the driver logs in, and Python workers have a token alone."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import FileSystem
from bmq.storage.hdfs.delegation_token import HadoopToken
from bmq.storage.hdfs.token_file import read_token_files
from bmq.storage.open import fetch_storage_token, open_filesystem, renew_storage_token
from tests.integration.secure_spark import bare_python
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_tools import hdfs_tool
from tests.services.kdc import REALM, Kdc
from tests.unit.spark.storing import Store, series

pytest.importorskip("gssapi", reason="python-gssapi is not installed: install libkrb5-dev, then bmq[kerberos]")

pytestmark = pytest.mark.loops("asyncio", limit_s=600)

TOKEN_LIFE_S = 60.0
"""The cluster's ``dfs.namenode.delegation.token.renew-interval``."""
STREAMED_S = TOKEN_LIFE_S * 1.4
EVERY_S = 6.0
TIMEOUT_S = 360


@dataclass
class Secure:
    """A secure cluster, and what a process needs to log in to it."""

    hdfs: HdfsCluster
    kdc: Kdc

    def keytab(self, user: str) -> str:
        path = self.kdc.keytab(f"{user}@{REALM}")
        return str(path if path.exists() else self.kdc.add_service(f"{user}@{REALM}"))

    async def store(self, name: str) -> tuple[FileSystem, Store]:
        """Return a new topic of the user bmq, under the root's folder ``name``."""
        os.environ["KRB5_CONFIG"] = self.kdc.environment["KRB5_CONFIG"]
        fs = await open_filesystem(
            f"{self.hdfs.root}/{name}",
            holder="writer",
            hadoop_conf_dir=str(self.hdfs.conf_folder),
            hdfs_login=HdfsLogin(self.keytab("bmq")),
        )
        return fs, await Store(fs).create()

    @contextlib.asynccontextmanager
    async def renewed(self, token: HadoopToken, renewer: str) -> AsyncIterator[None]:
        """Renew a token four times in its life while the context is open, as YARN does for a job that runs.

        Raises what a renewal has raised.
        """
        conf, login = str(self.hdfs.conf_folder), HdfsLogin(self.keytab(renewer))
        own = await fetch_storage_token(self.hdfs.root, hadoop_conf_dir=conf, hdfs_login=login)
        assert own is not None

        async def renew() -> None:
            while True:
                await renew_storage_token(replace(own, token=token), hadoop_conf_dir=conf, hdfs_login=login)
                await asyncio.sleep(TOKEN_LIFE_S / 4)

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a driver: this process's, with no log-in but that of ``variables``."""
        hidden = ("HADOOP_", "KRB5", "BMQ_HDFS", "BMQ_HADOOP")
        own = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return {
            **own,
            **self.kdc.environment,
            "KRB5CCNAME": f"FILE:{self.kdc.folder}/none",
            "PYTHONWARNINGS": "ignore",
            **variables,
        }


@pytest.fixture
def secure(secure_hdfs: HdfsCluster, monkeypatch: pytest.MonkeyPatch) -> Secure:
    assert secure_hdfs.security is not None
    monkeypatch.setenv("KRB5_CONFIG", "")  # put back afterwards
    return Secure(secure_hdfs, secure_hdfs.security.kdc)


class Driver:
    """A process of ``secure_spark``; ``output`` is all that it has written, and ``facts`` what it says."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = b""
        self.facts: dict[str, Any] = {}

    @classmethod
    async def start(cls, kind: str, root: str, folder: Path, count: int, environment: dict[str, str]) -> Driver:
        arguments = [sys.executable, "-m", "tests.integration.secure_spark", kind, root, str(folder), str(count)]
        process = await asyncio.create_subprocess_exec(
            *arguments, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        return cls(process)

    async def until(self, fact: str) -> Any:
        """Read on until the driver has said ``fact``, and return it."""
        assert self._process.stdout is not None
        while fact not in self.facts:
            line = await self._process.stdout.readline()
            assert line, self.output.decode(errors="replace")[-8000:]
            self.output += line
            if line.startswith(b"{"):
                self.facts |= json.loads(line)
        return self.facts[fact]

    async def end(self) -> None:
        assert self._process.stdout is not None
        self.output += await self._process.stdout.read()
        assert await self._process.wait() == 0, self.output.decode(errors="replace")[-8000:]

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def without_log_in(environment: dict[str, str]) -> bool:
    """Return whether a worker's environment names no ticket, no configuration, no keytab and no token."""
    return environment == {"KRB5_CONFIG": "/dev/null", "KRB5CCNAME": "FILE:/dev/null/none"}


@pytest.mark.parametrize("log_in", ["ticket", "keytab", "file"])
async def test_a_batch_reads_with_a_token_alone(secure: Secure, log_in: str, tmp_path: Path) -> None:
    name = f"spark-batch-{log_in}-{uuid.uuid4().hex[:8]}"
    fs, store = await secure.store(name)
    await store.segment(series(0, 500))
    await store.segment(series(500, 500), n=1)
    await fs.close()
    conf, secrets = {"HADOOP_CONF_DIR": str(secure.hdfs.conf_folder)}, []
    renewal: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
    match log_in:
        case "ticket":
            options = " ".join(secure.hdfs.security.java_options if secure.hdfs.security else ())
            tickets = await asyncio.to_thread(secure.kdc.log_in, f"{log_in}@{REALM}")
            conf |= {"KRB5CCNAME": tickets, "JAVA_TOOL_OPTIONS": options}
        case "keytab":
            conf = {"BMQ_HADOOP_CONF_DIR": str(secure.hdfs.conf_folder), "BMQ_HDFS_KEYTAB": secure.keytab("bmq")}
        case _:
            path = tmp_path / "tokens"
            tickets = await asyncio.to_thread(secure.kdc.log_in, f"{log_in}@{REALM}")
            await asyncio.to_thread(hdfs_tool, secure.hdfs, "fetchdt", "--renewer", "bmq", str(path), tickets=tickets)
            (token,) = read_token_files((str(path),)).values()
            renewal = secure.renewed(token, "bmq")  # Spark's start may outlast a token
            secrets = [token.password, token.identifier]
            conf = {"BMQ_HADOOP_CONF_DIR": str(secure.hdfs.conf_folder), "HADOOP_TOKEN_FILE_LOCATION": str(path)}
    root = f"{secure.hdfs.root}/{name}"
    async with renewal:
        driver = await Driver.start("batch", root, tmp_path, 1000, secure.environment(**conf))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                assert await driver.until("offsets") == list(range(1000))
                await driver.end()
        finally:
            await driver.kill()
    assert without_log_in(driver.facts["environment"])
    assert b"Physical Plan" in driver.output
    events = b"".join(file.read_bytes() for file in (tmp_path / "events").rglob("*") if file.is_file())
    assert b"SparkListenerTaskEnd" in events
    for secret in secrets:
        shown = (secret, base64.b64encode(secret)[:-4], secret.hex().encode(), repr(secret)[2:-1].encode())
        assert not [form for form in shown if form in driver.output or form in events]


@pytest.mark.needs_spark("stream reader")
async def test_a_stream_outlives_its_tokens(secure: Secure, tmp_path: Path) -> None:
    """Read what is written for longer than a token lives; each task logs in, so a token that has ended fails it."""
    name, count = f"spark-stream-{uuid.uuid4().hex[:8]}", 20
    batches = int(STREAMED_S / EVERY_S) + 1
    fs, store = await secure.store(name)
    await store.segment(series(0, count))
    conf = {"BMQ_HADOOP_CONF_DIR": str(secure.hdfs.conf_folder), "BMQ_HDFS_KEYTAB": secure.keytab("bmq")}
    root = f"{secure.hdfs.root}/{name}"
    driver = await Driver.start("stream", root, tmp_path, batches * count, secure.environment(**conf))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await driver.until("started")
            began = time.monotonic()
            for n in range(1, batches):
                await asyncio.sleep(EVERY_S)  # a token's life is the NameNode's, and passes on its clock alone
                await store.segment(series(n * count, count), n=n)
            assert time.monotonic() - began > TOKEN_LIFE_S
            assert await driver.until("offsets") == list(range(batches * count))
            await driver.end()
    finally:
        await driver.kill()
        await fs.close()
    assert without_log_in(driver.facts["environment"])


async def test_a_job_keeps_a_table(secure: Secure, tmp_path: Path) -> None:
    """Run the jobs with a keytab: their own reads log in as a server, and their tasks by token."""
    name = f"spark-job-{uuid.uuid4().hex[:8]}"
    fs, store = await secure.store(name)
    await store.segment(series(0, 300))
    await fs.close()
    environment = secure.environment(
        BMQ_HADOOP_CONF_DIR=str(secure.hdfs.conf_folder),
        BMQ_HDFS_KEYTAB=secure.keytab("bmq"),
        BMQ_ROOT=f"{secure.hdfs.root}/{name}",
        PYSPARK_PYTHON=str(bare_python(tmp_path)),
    )
    table = tmp_path / "table"
    for job, wanted in (["to_parquet", "--table", table.as_uri()], "300 records in"), (["audit"], "300"):
        command = [
            sys.executable,
            "-m",
            f"bmq.spark.jobs.{job[0]}",
            "--topic",
            "orders",
            "--master",
            "local[2]",
            *job[1:],
        ]
        process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, output.decode(errors="replace")[-8000:]
        assert wanted in output.decode()
    assert sorted(table.rglob("*.parquet"))

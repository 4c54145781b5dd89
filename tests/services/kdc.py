"""A real Kerberos key distribution centre on this machine, for tests: Debian's krb5-kdc, in a folder of its own.

It listens on a free port of 127.0.0.1.  `environment` makes the programs and the library of a process use it; nothing
of the machine's own Kerberos is read or written.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.services.processes import NotReady, ServiceProcess, free_ports, wait_for

HOST, REALM = "127.0.0.1", "BMQ.TEST"
PROGRAMS = {"krb5kdc": "krb5-kdc", "kdb5_util": "krb5-kdc", "kadmin.local": "krb5-admin-server", "kinit": "krb5-user"}
"""The programs that are needed, each with its Debian package."""
START_S, COMMAND_S = 30.0, 30.0
_KRB5 = """\
[libdefaults]
    default_realm = {realm}
    dns_lookup_kdc = false
    dns_lookup_realm = false
    dns_canonicalize_hostname = false
    rdns = false
    udp_preference_limit = 1
[realms]
    {realm} = {{
        kdc = {host}:{port}
    }}
"""
_KDC = """\
[kdcdefaults]
    kdc_listen = {host}:{port}
    kdc_tcp_listen = {host}:{port}
[realms]
    {realm} = {{
        database_name = {folder}/principals
        key_stash_file = {folder}/stash
        acl_file = {folder}/acl
        max_life = {max_life}
    }}
"""


def missing() -> str:
    """Return the Debian packages that this machine lacks, separated by spaces; empty if it has all."""
    return " ".join(sorted({package for name, package in PROGRAMS.items() if _program(name) is None}))


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Kdc:
    """One realm.  A context manager: it starts, and stops and removes its folder.

    ``folder`` and ``port`` are chosen if they are not given; ``max_life`` is a krb5 duration, the longest life of a
    ticket.  A detached one outlives this process, and ``start`` in its folder finds the principals again.
    """

    def __init__(
        self, *, folder: Path | None = None, port: int | None = None, max_life: str = "10h", is_detached: bool = False
    ) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="bmq-kdc-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_ports(1)[0]
        about = {"realm": REALM, "host": HOST, "port": self.port, "folder": self.folder, "max_life": max_life}
        (self.folder / "krb5.conf").write_text(_KRB5.format(**about))
        (self.folder / "kdc.conf").write_text(_KDC.format(**about))
        self.environment: Mapping[str, str] = {
            "KRB5_CONFIG": str(self.folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5RCACHEDIR": str(self.folder),
        }
        command = [_program("krb5kdc") or "krb5kdc", "-n", "-r", REALM]
        self.process = ServiceProcess(
            "krb5kdc", command, log=self.folder / "kdc.log", environment=self.environment, is_detached=is_detached
        )

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Make the realm unless its folder has it, and start the KDC unless it runs; return when it listens."""
        if not (self.folder / "principals").exists():
            self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        if not self.process.is_running:
            self.process.start()
        wait_for(self._listens, "the KDC listens", timeout_s=START_S)

    def close(self) -> None:
        """Stop the KDC, and remove its folder.  Idempotent."""
        self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add_service(self, principal: str) -> Path:
        """Return a new keytab with a random key of `principal`."""
        keytab = self.keytab(principal)
        self._run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
        self.change_key(principal, keytab)
        return keytab

    def keytab(self, principal: str) -> Path:
        """Return the file that `add_service` or `log_in` of this principal has written."""
        return self.folder / f"{principal.replace('/', '-')}.keytab"

    def change_key(self, principal: str, keytab: Path) -> None:
        """Give `principal` a new random key, and add that to the keytab."""
        self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(keytab), principal)

    def log_in(self, principal: str, *, life: str = "10h") -> str:
        """Add a user, and return the name of a credentials cache with its ticket."""
        self.add_service(principal)
        return self.ticket(principal, life=life)

    def ticket(self, principal: str, *, life: str = "10h") -> str:
        """Return the name of a credentials cache with a new ticket of a principal that has its keytab here."""
        cache = f"FILE:{self.folder}/{principal.replace('/', '-')}.cache"
        self._run("kinit", "-l", life, "-c", cache, "-k", "-t", str(self.keytab(principal)), principal)
        return cache

    def _listens(self) -> bool:
        if not self.process.is_running:
            raise NotReady(f"the KDC ended: {(self.folder / 'kdc.log').read_text()[-2000:]}")
        try:
            socket.create_connection((HOST, self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [_program(name) or name, *arguments], env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=COMMAND_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NotReady(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")

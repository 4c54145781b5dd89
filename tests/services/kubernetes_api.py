"""A Kubernetes API server on loopback, over an etcd of its own: objects are checked and kept, and nothing runs.

There are no nodes, no scheduler and no controllers: a Deployment stays what it was applied as.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.services.etcd import EtcdCluster
from tests.services.kubernetes import apiserver_folder, operator_crds
from tests.services.processes import ServiceProcess, free_ports, wait_for

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 120
TOKEN = "bmq-tests"


class KubectlFailed(Exception):
    """kubectl refused; the text is what it said."""


class ApiServer:
    """API server that has the definitions of prometheus-operator's resources."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bmq-kubernetes-"))
        (self.port,) = free_ports(1)
        self._etcd = EtcdCluster()
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        account_key = self.folder / "account.key"
        account_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f"{TOKEN},admin,admin,system:masters\n")
        self._process = ServiceProcess(
            "kube-apiserver",
            [
                str(apiserver_folder() / "kube-apiserver"),
                f"--etcd-servers={','.join(f'http://{each}' for each in self._etcd.endpoints)}",
                f"--bind-address={HOST}",
                f"--advertise-address={HOST}",
                f"--secure-port={self.port}",
                f"--cert-dir={self.folder / 'certs'}",
                f"--token-auth-file={tokens}",
                "--authorization-mode=RBAC",
                "--disable-admission-plugins=ServiceAccount",  # it wants the account of a pod, which a dry run lacks
                "--service-cluster-ip-range=10.96.0.0/16",
                f"--service-account-issuer=https://{HOST}:{self.port}",
                f"--service-account-key-file={account_key}",
                f"--service-account-signing-key-file={account_key}",
                "--endpoint-reconciler-type=none",  # the service `kubernetes` would have to be on no loopback address
                "--feature-gates=WatchList=false",  # an etcd of one member without --experimental flags is slow at it
            ],
            log=self.folder / "apiserver.log",
        )

    def __enter__(self) -> Self:
        try:
            self._etcd.start()
            self._process.start()
            self._write_kubeconfig()
            wait_for(self._is_ready, f"{self._process!r}, log {self._process.log}", timeout_s=START_TIMEOUT_S)
            for path in operator_crds():
                self.kubectl("apply", "--server-side", "-f", str(path))
            self.kubectl(
                "wait", "--for=condition=Established", "--timeout=60s", "crd",
                "servicemonitors.monitoring.coreos.com", "prometheusrules.monitoring.coreos.com",
            )  # fmt: skip
        except BaseException:
            self._stop(keep=True)
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._stop(keep=kind is not None)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of programs that use this API server; nothing of the user's is in it."""
        return {"KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": str(self.folder), "PATH": "/usr/bin:/bin"}

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Return what kubectl wrote to standard output; `text` is its standard input.  Raises KubectlFailed."""
        done = subprocess.run(
            [str(apiserver_folder() / "kubectl"), *arguments], input=text, capture_output=True, text=True, check=False,
            timeout=CALL_TIMEOUT_S, env=self.environment,
        )  # fmt: skip
        if done.returncode:
            raise KubectlFailed(done.stdout + done.stderr)
        return done.stdout

    def objects(self, namespace: str, kinds: str, selector: str) -> list[Mapping[str, Any]]:
        """Return what is there now."""
        found = json.loads(self.kubectl("get", kinds, "-n", namespace, "-l", selector, "-o", "json"))
        return list(found["items"])

    def _is_ready(self) -> bool:
        self._process.require_running()
        try:
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        except (KubectlFailed, subprocess.TimeoutExpired):
            return False

    def _write_kubeconfig(self) -> None:
        server = {"server": f"https://{HOST}:{self.port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
            "current-context": "tests",
        }
        (self.folder / "kubeconfig").write_text(json.dumps(config))

    def _stop(self, *, keep: bool) -> None:
        self._process.kill()
        self._etcd.stop()
        if keep:
            print(f"logs of the API server kept in {self.folder}", flush=True)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

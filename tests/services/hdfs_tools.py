"""Hadoop's own command-line tools, run as the Java classes that its shell scripts start.

`hdfs_tool(cluster, "dfs", "-ls", "/")` is `hdfs dfs -ls /` on a machine that has the cluster's configuration.  One Java
start is a second or two of one core.
"""

import os
import shlex
import subprocess
from pathlib import Path

from tests.services.hdfs import JAVA_OPTIONS, HdfsCluster
from tests.services.hdfs_security import NAMENODE_PRINCIPAL

TOOL_TIMEOUT_S = 120.0
HEAP_MB = 256
CLASSES = {
    "dfs": "org.apache.hadoop.fs.FsShell",
    "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
    "haadmin": "org.apache.hadoop.hdfs.tools.DFSHAAdmin",
    "fetchdt": "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher",
    "dtutil": "org.apache.hadoop.security.token.DtUtilShell",
    "crypto": "org.apache.hadoop.hdfs.tools.CryptoAdmin",
    "ec": "org.apache.hadoop.hdfs.tools.ECAdmin",
    "key": "org.apache.hadoop.crypto.key.KeyShell",
}


class ToolFailed(Exception):
    """A tool ended with another code than 0, or not in time; the text holds all that it wrote."""


def hdfs_program(cluster: HdfsCluster, folder: Path) -> Path:
    """Write a program `hdfs` into the folder that runs these tools on the cluster, for scripts."""
    cases = "".join(f'{name}) class="{java_class}";;\n' for name, java_class in CLASSES.items())
    java = shlex.join(_java(cluster))
    path = folder / "hdfs"
    path.write_text(f'#!/bin/sh\ncase "$1" in\n{cases}*) exit 2;;\nesac\nshift\nexec {java} "$class" "$@"\n')
    path.chmod(0o755)
    return path


def hdfs_tool(
    cluster: HdfsCluster, tool: str, *arguments: str, tickets: str = "", timeout_s: float = TOOL_TIMEOUT_S
) -> list[str]:
    """Run `hdfs TOOL ARGUMENTS` to its end; return its standard output by lines.  Raises ToolFailed.

    `tickets` is the credentials cache for a cluster with Kerberos.
    """
    command = [*_java(cluster), CLASSES[tool], *arguments]
    what = f"hdfs {tool} {' '.join(arguments)}"
    try:
        environment = {**os.environ, "KRB5CCNAME": tickets} if tickets else None
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, env=environment)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{what}: not within {timeout_s:.0f} s; {error.stdout!r} {error.stderr!r}") from None
    if done.returncode:
        raise ToolFailed(f"{what}: code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.splitlines()


def open_root(cluster: HdfsCluster) -> None:
    """Let each user of a secure cluster make folders in ``/``, as each user of an open test cluster may."""
    assert cluster.security is not None
    tickets = cluster.security.kdc.ticket(NAMENODE_PRINCIPAL)
    hdfs_tool(cluster, "dfs", "-chmod", "777", "/", tickets=tickets)


def _java(cluster: HdfsCluster) -> list[str]:
    """Return `java` with everything before the main class."""
    class_path = f"{cluster.conf_folder}:{cluster.class_path}"
    options = [*JAVA_OPTIONS, *(cluster.security.java_options if cluster.security else ())]
    return ["java", f"-Xmx{HEAP_MB}m", *options, "-Dlog4j.configuration=", "-cp", class_path]

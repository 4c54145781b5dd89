"""Hadoop's own command-line tools, run as the Java classes that its shell scripts start.

`hdfs_tool(cluster, "dfs", "-ls", "/")` is `hdfs dfs -ls /` on a machine that has the cluster's configuration.  One Java
start is a second or two of one core.
"""

import subprocess

from tests.services.hdfs import JAVA_OPTIONS, HdfsCluster

TOOL_TIMEOUT_S = 120.0
HEAP_MB = 256
_CLASSES = {
    "dfs": "org.apache.hadoop.fs.FsShell",
    "dfsadmin": "org.apache.hadoop.hdfs.tools.DFSAdmin",
}


class ToolFailed(Exception):
    """A tool ended with another code than 0, or not in time; the text holds all that it wrote."""


def hdfs_tool(cluster: HdfsCluster, tool: str, *arguments: str, timeout_s: float = TOOL_TIMEOUT_S) -> list[str]:
    """Run `hdfs TOOL ARGUMENTS` to its end; return its standard output by lines.  Raises ToolFailed."""
    command = [
        "java", f"-Xmx{HEAP_MB}m", *JAVA_OPTIONS, "-Dlog4j.configuration=", "-cp",
        f"{cluster.conf_folder}:{cluster.class_path}", _CLASSES[tool], *arguments,
    ]  # fmt: skip
    what = f"hdfs {tool} {' '.join(arguments)}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ToolFailed(f"{what}: not within {timeout_s:.0f} s; {error.stdout!r} {error.stderr!r}") from None
    if done.returncode:
        raise ToolFailed(f"{what}: code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.splitlines()

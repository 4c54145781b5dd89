"""The class path of the development HDFS: fetched once per user by Maven, from then on only looked at.

The cache is complete exactly when its marker file exists: the marker is renamed into place after the last jar, so a
download that was interrupted is done again rather than believed. A file lock keeps two runs from filling it at once.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

HADOOP_VERSION = "3.5.0"
JAVA_VERSION_MIN = 17
POM = Path(__file__).with_name("hdfs-pom.xml")
# Hadoop refuses to start a web server whose page folder is not on the class path; the jars hold none; empty will do.
WEB_FOLDERS = ("hdfs", "datanode", "journal")
DOWNLOAD_TIMEOUT_S = 1200
APT_TIMEOUT_S = 900


class ServiceUnavailable(Exception):
    """Something this service needs is missing from the machine; the text says what to install."""


def cache_folder() -> Path:
    """Where the jars live: `BMQ_CACHE_DIR`, else the user's cache folder, so that clones share one download."""
    base = os.environ.get("BMQ_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bmq"
    return Path(base) / f"hadoop-{HADOOP_VERSION}"


def class_path() -> str:
    """The Java class path of Hadoop, after a download if this is the first time."""
    folder = cache_folder()
    done = folder / "done"
    if not done.exists():
        require_tools()
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not done.exists():
                _download(folder)
    require_java()
    return f"{folder / 'web'}:{folder / 'jars'}/*"


def _download(folder: Path) -> None:
    jars = folder / "jars"
    shutil.rmtree(jars, ignore_errors=True)
    for name in WEB_FOLDERS:
        (folder / "web" / "webapps" / name).mkdir(parents=True, exist_ok=True)
    print(f"fetching Hadoop {HADOOP_VERSION} into {folder} (about 70 MB, once)", flush=True)
    # The pom is copied: Maven may leave files beside it, and the source tree may be read-only.
    pom = Path(shutil.copy(POM, folder / "pom.xml"))
    command = [
        "mvn", "-q", "-B", "-f", str(pom), f"-Dhadoop.version={HADOOP_VERSION}",
        "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
    ]  # fmt: skip
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S
    )
    if result.returncode != 0:
        raise ServiceUnavailable(f"Maven could not fetch Hadoop {HADOOP_VERSION}:\n{result.stdout[-4000:]}")
    count = sum(1 for _ in jars.glob("*.jar"))
    assert (jars / f"hadoop-hdfs-{HADOOP_VERSION}.jar").exists(), f"{count} jars in {jars}, none of them hadoop-hdfs"
    partial = folder / "done.tmp"
    partial.write_text(f"{count} jars\n")
    partial.replace(folder / "done")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go by the kernel when this process ends, however it ends
        yield


def java_version() -> int:
    """The major version of the `java` on the path, 0 if there is none."""
    if shutil.which("java") is None:
        return 0
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def require_java() -> None:
    """Make sure of a new enough Java, by apt if we may."""
    _require(["openjdk-17-jre-headless"] if java_version() < JAVA_VERSION_MIN else [])


def require_tools() -> None:
    """Make sure of what the download needs: Java and Maven."""
    missing = ["openjdk-17-jre-headless"] if java_version() < JAVA_VERSION_MIN else []
    if shutil.which("mvn") is None:
        missing.append("maven")
    _require(missing)


def _require(packages: list[str]) -> None:
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable(
            f"the development HDFS needs Java {JAVA_VERSION_MIN} or later and Maven: install {names}"
        )
    print(f"installing {names}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "-q", "update"],
        ["apt-get", "-q", "install", "-y", "--no-install-recommends", *packages],
    ):
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=APT_TIMEOUT_S
        )
        if result.returncode != 0:
            raise ServiceUnavailable(f"install {names} by hand: {' '.join(command)} failed:\n{result.stderr[-2000:]}")

"""Jars of the services that run on Java: fetched once per user by Maven, from then on only looked at.

A cache folder is complete exactly when its marker file exists: the marker is renamed into place after the last jar, so
a download that was interrupted is done again rather than believed. A file lock keeps two runs from filling it at once.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
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


def cache_base() -> Path:
    """Return the folder of downloads: `BMQ_CACHE_DIR`, else one in the user's cache folder, so that clones share it."""
    base = os.environ.get("BMQ_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bmq"
    return Path(base)


def cache_folder(version: str = HADOOP_VERSION) -> Path:
    """Return the folder of Hadoop's jars."""
    return cache_base() / f"hadoop-{version}"


def class_path(version: str = HADOOP_VERSION) -> str:
    """Return the Java class path of Hadoop, after a download if this is the first time."""
    folder = cache_folder(version)
    fetch(folder, POM, {"hadoop.version": version}, witness=f"hadoop-hdfs-{version}.jar")
    for name in WEB_FOLDERS:
        (folder / "web" / "webapps" / name).mkdir(parents=True, exist_ok=True)
    require_java()
    return f"{folder / 'web'}:{folder / 'jars'}/*"


def fetch(folder: Path, pom: Path, properties: Mapping[str, str], *, witness: str) -> None:
    """Fill `folder/jars` with what `pom` names, unless it is filled; `witness` is the jar that must be among them."""

    def download() -> None:
        require_tools()
        _download(folder / "jars", pom, properties, witness)

    once(folder, download)


def once(folder: Path, fill: Callable[[], None]) -> None:
    """Call `fill` unless it has succeeded for this folder before; others that need the folder wait meanwhile."""
    done = folder / "done"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not done.exists():
            fill()
            partial = folder / "done.tmp"
            partial.touch()
            partial.replace(done)


def _download(jars: Path, pom: Path, properties: Mapping[str, str], witness: str) -> None:
    shutil.rmtree(jars, ignore_errors=True)
    print(f"fetching the jars of {pom.name} into {jars} (50 to 90 MB, once)", flush=True)
    # The pom is copied: Maven may leave files beside it, and the source tree may be read-only.
    copy = Path(shutil.copy(pom, jars.parent / "pom.xml"))
    command = [
        "mvn", "-q", "-B", "-f", str(copy), *(f"-D{name}={value}" for name, value in properties.items()),
        "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}",
    ]  # fmt: skip
    result = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S
    )
    if result.returncode != 0:
        raise ServiceUnavailable(f"Maven could not fetch {witness}:\n{result.stdout[-4000:]}")
    assert (jars / witness).exists(), f"no {witness} in {jars}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released by the kernel when this process ends, however it ends
        yield


def java_version() -> int:
    """Return the major version of the `java` on the path, 0 if there is none."""
    if shutil.which("java") is None:
        return 0
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', text)
    return int(found.group(1)) if found else 0


def require_java() -> None:
    """Make sure of a new enough Java, by apt if we may."""
    require_packages(["openjdk-17-jre-headless"] if java_version() < JAVA_VERSION_MIN else [])


def require_tools() -> None:
    """Make sure of what the download needs: Java and Maven."""
    missing = ["openjdk-17-jre-headless"] if java_version() < JAVA_VERSION_MIN else []
    if shutil.which("mvn") is None:
        missing.append("maven")
    require_packages(missing)


def require_packages(packages: list[str]) -> None:
    """Install these Debian packages if we may, else say so in ServiceUnavailable."""
    if not packages:
        return
    names = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceUnavailable(
            f"the tests' services need what Debian calls {names} (Java: {JAVA_VERSION_MIN} or later)"
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

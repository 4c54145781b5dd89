"""The Java that Spark needs: found, or installed where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable

from bmq.spark.jobs.session import JAVA_MIN, java_version

PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless")
"""Packages of Debian and Ubuntu; a release has one or two of them."""
_INSTALL_TIMEOUT_S = 600


class JavaMissing(Exception):
    """There is no Java that Spark runs on; ``str`` says what to do."""


def ensure_java(say: Callable[[str], None]) -> None:
    """Install Java if it is missing and this is root on a machine with apt-get, as ``.ci/run`` does.

    Raises JavaMissing if it is missing then.
    """
    found = java_version()
    if found is not None and found >= JAVA_MIN:
        return
    there = "there is none" if found is None else f"there is Java {found}"
    if "JAVA_HOME" in os.environ or os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise JavaMissing(
            f"Spark needs Java {JAVA_MIN} or later, {there}: install it (Debian, Ubuntu: apt-get install"
            f" {PACKAGES[0]}), or set JAVA_HOME; --no-spark leaves Spark out"
        )
    _install(say)
    if (java_version() or 0) < JAVA_MIN:
        raise JavaMissing(f"Java was installed, but `java` is not {JAVA_MIN} or later: set JAVA_HOME to the new one")


def _install(say: Callable[[str], None]) -> None:
    _apt_get("update")
    for package in PACKAGES:
        if subprocess.run(["apt-cache", "show", package], capture_output=True, check=False).returncode == 0:
            say(f"Spark needs Java: installing {package}")
            _apt_get("install", "-y", "--no-install-recommends", package)
            return
    raise JavaMissing(f"apt-get knows none of {', '.join(PACKAGES)}: install Java {JAVA_MIN} or later")


def _apt_get(*arguments: str) -> None:
    try:
        subprocess.run(
            ["apt-get", "-q", *arguments],
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_INSTALL_TIMEOUT_S,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    except subprocess.TimeoutExpired:
        raise JavaMissing(f"apt-get {arguments[0]} took more than {_INSTALL_TIMEOUT_S} s") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        raise JavaMissing(f"apt-get {arguments[0]} failed: {lines[-1] if lines else error}") from None

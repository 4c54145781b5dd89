"""Other versions of PySpark than the environment's, each in a folder of the user's cache: fetched once by pip."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.services import jars

DOWNLOAD_TIMEOUT_S = 1800


def packages(version: str) -> Path:
    """Return the folder with this version of PySpark and the py4j that it needs, after a download the first time."""
    folder = jars.cache_base() / f"pyspark-{version}"
    found = folder / "packages"

    def download() -> None:
        shutil.rmtree(found, ignore_errors=True)
        print(f"fetching PySpark {version} into {found} (460 MB, once)", flush=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        result = subprocess.run(
            [*command, "--target", str(found), f"pyspark=={version}"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S,
        )  # fmt: skip
        if result.returncode != 0:
            raise jars.ServiceUnavailable(f"pip could not fetch PySpark {version}:\n{result.stdout[-4000:]}")

    jars.once(folder, download)
    return found


def environment(version: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with this version of PySpark before the environment's own, for Python and for its JVM.

    Raises AssertionError if a new process finds another version.
    """
    path = os.pathsep.join([str(packages(version)), *filter(None, [base.get("PYTHONPATH")])])
    found = {name: value for name, value in base.items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    found["PYTHONPATH"] = path
    code = "import pyspark; print(pyspark.__version__)"
    seen = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == version, f"wanted PySpark {version}, found {seen.stdout}"
    return found

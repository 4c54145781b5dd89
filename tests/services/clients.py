"""Kafka clients in other languages: built once into the user's cache, found there from then on.

    python -m tests.services.clients

builds all of them. What is built lies under a digest of its sources, so a change of them builds anew.
"""

import hashlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.services import jars
from tests.services.kafka import class_path, java_command

SOURCES = Path(__file__).parents[1] / "clients"
BUILD_TIMEOUT_S = 600
JAVA_HEAP_MB = 256


def kcat() -> str:
    """Return the command `kcat`; install it and its plugin for Kerberos by apt, where that is permitted."""
    has_plugin = any(Path("/usr/lib").glob("*/sasl2/libgssapiv2.so*"))
    packages = {"kcat": shutil.which("kcat") is not None, "libsasl2-modules-gssapi-mit": has_plugin}
    jars.require_packages([name for name, is_installed in packages.items() if not is_installed])
    return "kcat"


def go_program(name: str) -> Path:
    """Return the driver program of a Go client (`sarama` or `franz`), built if this is the first time."""
    source = SOURCES / "go"

    def build(folder: Path) -> None:
        if shutil.which("go") is None:
            raise jars.ServiceUnavailable("the Go clients need Go 1.21 or later (it fetches what go.mod names itself)")
        _run(["go", "build", "-trimpath", "-o", f"{folder}/", "./sarama", "./franz"], cwd=source)

    return _built("go", source, build) / name


def node_program() -> list[str]:
    """Return the command of the kafkajs driver, installed if this is the first time."""
    source = SOURCES / "node"

    def build(folder: Path) -> None:
        if shutil.which("npm") is None:
            jars.require_packages(["nodejs", "npm"])
        for path in source.iterdir():
            if path.is_file():
                shutil.copy(path, folder)
        _run(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder)

    return ["node", str(_built("node", source, build) / "driver.js")]


def java_program(name: str = "Driver") -> list[str]:
    """Return the command of a Java program, `Driver` or `Application`, compiled if this is the first time."""
    source = SOURCES / "java"
    libraries = class_path()

    folder = java_classes("java", source, libraries)
    return [*java_command(heap_mb=JAVA_HEAP_MB, log_level="WARN", libraries=f"{folder}:{libraries}"), name]


def java_classes(name: str, source: Path, libraries: str) -> Path:
    """Return the folder with the compiled classes of the Java files in `source`; `libraries` is their class path."""

    def build(folder: Path) -> None:
        if shutil.which("javac") is None:
            jars.require_packages(["openjdk-17-jdk-headless"])
        _run(["javac", "-cp", libraries, "-d", str(folder), *map(str, source.glob("*.java"))], cwd=folder)

    return _built(name, source, build)


def _built(name: str, source: Path, build: Callable[[Path], None]) -> Path:
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(source)}\0".encode() + path.read_bytes())
    folder = jars.cache_base() / f"clients-{name}-{digest.hexdigest()[:12]}"

    def fill() -> None:
        print(f"building the {name} clients into {folder}, once", flush=True)
        build(folder)

    jars.once(folder, fill)
    return folder


def _run(command: list[str], *, cwd: Path) -> None:
    result = subprocess.run(
        command, cwd=cwd, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if result.returncode != 0:
        raise jars.ServiceUnavailable(f"{' '.join(command)} failed:\n{result.stdout[-4000:]}")


def main() -> None:
    print(kcat())
    for name in ("sarama", "franz"):
        print(go_program(name))
    print(*node_program())
    print(*java_program())


if __name__ == "__main__":
    main()

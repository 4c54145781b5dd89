"""Packages and image work where nothing of the repository is: every role, started from the wheel by another user.

The image is built by the Dockerfile's own lines (`tests.services.image`), its processes run as the image's user, in the
image's working directory and with the image's environment.
"""

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.services.etcd import EtcdCluster
from tests.services.image import ROOT, Image, build, context
from tests.services.processes import ServiceProcess, free_ports, wait_for

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
TOPS = [folder.removeprefix("bmq.") for folder in PROJECT["tool"]["setuptools"]["package-dir"]]
READY_S = 60.0


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """Yield the image, built in a folder that its user can enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="bmq-image-"))
    folder.chmod(0o755)
    yield build(folder)
    shutil.rmtree(folder)


def product_files() -> set[str]:
    """Return every file of the product as git has it, by its name in the wheel."""
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *TOPS], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout  # fmt: skip
    return {f"bmq/{name}" for name in listed.splitlines() if (ROOT / name).is_file()}


def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    """The wheel, built from the sdist, has every file of the product, and installs on any machine of any Python."""
    source = tmp_path / "source"
    for name in [*map(str, context()), "MANIFEST.in", "CHANGELOG.md"]:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, source / name)
    dist = tmp_path / "dist"
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(dist), str(source)], check=True, capture_output=True)
    assert sorted(file.name for file in dist.iterdir()) == [f"bmq-{VERSION}-py3-none-any.whl", f"bmq-{VERSION}.tar.gz"]
    with zipfile.ZipFile(dist / f"bmq-{VERSION}-py3-none-any.whl") as wheel:
        packed = {name for name in wheel.namelist() if name.startswith("bmq/")}
    assert packed == product_files()
    with tarfile.open(dist / f"bmq-{VERSION}.tar.gz") as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names


def test_the_image_has_the_wheel_and_what_it_needs(image: Image) -> None:
    there = image.site_packages
    files = {f"bmq/{path.relative_to(there / 'bmq')}" for path in (there / "bmq").rglob("*") if path.is_file()}
    assert {name for name in files if "__pycache__" not in name} == product_files()
    assert not list(there.glob("pip*")), "nothing is installed into a running image"
    assert image.run("bmq", "--version").stdout == f"bmq {VERSION}\n"
    assert image.run("sh", "-c", "echo x > /opt/bmq/x".replace("/opt/bmq", image.here("/opt/bmq"))).returncode != 0


class Container:
    """A process of the image on ports of its own."""

    def __init__(self, image: Image, folder: Path, name: str, settings: dict[str, str]) -> None:
        kafka, http, internal = free_ports(3)
        self.bootstrap = f"127.0.0.1:{kafka}"
        self.environment = {
            "BMQ_LISTEN": self.bootstrap,
            "BMQ_HTTP": f"0.0.0.0:{http}",
            "BMQ_INTERNAL": f"127.0.0.1:{internal}",
            "BMQ_INSECURE": "true",
            **settings,
        }
        self.log = folder / f"{name}.log"
        self._image = image
        self.process: ServiceProcess = image.process(name, image.command, log=self.log, environment=self.environment)

    def wait_ready(self) -> None:
        wait_for(self._is_ready, f"ready line in {self.log}", timeout_s=READY_S)

    def _is_ready(self) -> bool:
        self.process.require_running()
        return "\nready " in "\n" + self.log.read_text()

    def health(self, *arguments: str) -> int:
        """Return the exit status of the image's own health check."""
        return self._image.run(*self._image.health, *arguments, environment=self.environment).returncode


def round_trip(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    producer.send("orders", b"one").get(timeout=60)
    producer.close()
    consumer = KafkaConsumer("orders", bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id="readers")
    assert next(iter(consumer)).value == b"one"
    consumer.close()


def test_one_process_of_the_image(image: Image, tmp_path: Path) -> None:
    """A process without settings keeps its data in the image's folder; the health check follows its life."""
    container = Container(image, tmp_path, "alone", {})
    assert container.health() == 1
    container.process.start()
    try:
        container.wait_ready()
        assert (container.health(), container.health("--ready")) == (0, 0)
        round_trip(container.bootstrap)
        assert (Path(image.here("/var/lib/bmq")) / "bmq-data" / "meta.db").exists()
        assert container.process.terminate(timeout_s=READY_S) == 0
    finally:
        container.process.kill()


def test_every_role_from_the_image(image: Image, tmp_path: Path, hdfs_root: str, etcd: EtcdCluster) -> None:
    """A cluster over HDFS and etcd writes nothing on its own machine: its working directory is not its to write."""
    data = Path(image.here("/var/lib/bmq"))
    before = {path for path in data.rglob("*") if ".cache" not in path.parts}
    settings = {"BMQ_META": etcd.url, "BMQ_ROOT": hdfs_root, "HADOOP_USER_NAME": getpass.getuser()}
    containers = {
        role: Container(image, tmp_path, role, {**settings, "BMQ_ROLES": role})
        for role in ("controller", "broker", "coordinator", "proxy")
    }
    try:
        for container in containers.values():
            container.process.start()
        for container in containers.values():
            container.wait_ready()
            assert container.health() == 0
        round_trip(containers["proxy"].bootstrap)
        for role in ("proxy", "coordinator", "broker", "controller"):
            assert containers[role].process.terminate(timeout_s=READY_S) == 0
        assert {path for path in data.rglob("*") if ".cache" not in path.parts} == before
    finally:
        for container in containers.values():
            container.process.kill()

"""The etcd program: one on the path, or fetched once per user, from then on only looked at.

Sources in the order of their cost: the project's release archive, a build by Go from its module proxy (sums are
checked against Go's checksum database), the Debian package where it is new enough.
"""

import platform
import re
import shutil
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from tests.services import jars
from tests.services.go_programs import BuildFailed, GoModule, build

VERSION = "3.6.16"
VERSION_MIN = (3, 5, 8)
MODULE = "go.etcd.io/etcd/server/v3"
RELEASES = "https://github.com/etcd-io/etcd/releases/download"
MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
CONNECT_TIMEOUT_S = 10


class _NotHere(Exception):
    """Failure of one source of the program on this machine; the text says why."""


def binary() -> Path:
    """Return the `etcd` on the path if it is new enough, else one that is downloaded or built once into the cache."""
    found = shutil.which("etcd")
    if found is not None and version(found) >= VERSION_MIN:
        return Path(found)
    folder = jars.cache_base() / f"etcd-{VERSION}"
    jars.once(folder, lambda: _fetch(folder))
    return folder / "etcd"


def version(program: str | Path) -> tuple[int, ...]:
    """Return the version that the program reports; () if it is not etcd."""
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, found.groups())) if found else ()


def _fetch(folder: Path) -> None:
    sources: tuple[Callable[[Path], None], ...] = (_download, _build, _install)
    reasons = []
    for source in sources:
        try:
            source(folder)
        except _NotHere as reason:
            reasons.append(str(reason))
        else:
            got = version(folder / "etcd")
            assert got >= VERSION_MIN, f"{folder / 'etcd'} is {got}"
            return
    needed = ".".join(map(str, VERSION_MIN))
    raise jars.ServiceUnavailable(f"put etcd {needed} or later on the path; tried: " + "; ".join(reasons))


def _download(folder: Path) -> None:
    """Download the etcd project's release archive and unpack the program.  Raises _NotHere if that is not possible."""
    machine = MACHINES.get(platform.machine())
    if platform.system() != "Linux" or machine is None:
        raise _NotHere(f"no release archive for {platform.system()} {platform.machine()} is known")
    name = f"etcd-v{VERSION}-linux-{machine}"
    url = f"{RELEASES}/v{VERSION}/{name}.tar.gz"
    archive = folder / "etcd.tar.gz"
    try:
        with urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S) as response, archive.open("wb") as file:
            print(f"fetching etcd {VERSION} into {folder} (24 MB, once)", flush=True)
            shutil.copyfileobj(response, file)
        unpack(archive, f"{name}/etcd", folder)
    except (OSError, urllib.error.URLError, tarfile.TarError, KeyError) as error:
        raise _NotHere(f"{url}: {error}") from error
    finally:
        archive.unlink(missing_ok=True)


def unpack(archive: Path, member: str, folder: Path) -> None:
    """Write this one file of the archive to `folder/etcd`, as a program."""
    with tarfile.open(archive) as files:
        content = files.extractfile(member)
        assert content is not None, f"{member} is no file"
        with (folder / "etcd").open("wb") as program:
            shutil.copyfileobj(content, program)
    (folder / "etcd").chmod(0o755)


def _build(folder: Path) -> None:
    """Build the program from source, which takes 80 s on two cores.  Raises _NotHere if that fails."""
    try:
        build(GoModule(MODULE, f"v{VERSION}", {"etcd": MODULE}), folder)
    except BuildFailed as error:
        raise _NotHere(str(error)) from error


def _install(folder: Path) -> None:
    """Install Debian's package, which is new enough from release 13 on.  Raises _NotHere if that is not possible."""
    try:
        jars.require_packages(["etcd-server"])
    except jars.ServiceUnavailable as error:
        raise _NotHere(str(error)) from error
    program = shutil.which("etcd")
    if program is None or version(program) < VERSION_MIN:
        raise _NotHere("the package etcd-server is too old")
    (folder / "etcd").unlink(missing_ok=True)
    (folder / "etcd").symlink_to(program)

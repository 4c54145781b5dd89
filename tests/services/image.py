"""The image of `deploy/Dockerfile`, built by its own steps without a container engine.

The image's folders become folders below one of the test's, and its RUN lines run there.  An instruction that is not
known here is an error, so the image cannot do what is not tried.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.processes import ServiceProcess

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
FOLDERS = ("/src", "/dist", "/opt/bmq", "/var/lib/bmq")
"""Folders in which the image has files of its own."""
_FOLDER = re.compile(rf"(?<![\w.])(?:{'|'.join(FOLDERS)})(?![\w-])")
_IS_RIGHT = "import ensurepip, pip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))"
_PLAIN = {"FROM", "ARG", "LABEL", "EXPOSE"}
"""Instructions that change nothing on the image's file system."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a Dockerfile, continuation lines joined."""

    keyword: str
    text: str

    @property
    def words(self) -> list[str]:
        """Arguments in the JSON form: `CMD ["bmq", "health"]`."""
        words: list[str] = json.loads(self.text)
        return words


def parse(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in joined.splitlines() if line.strip()]


@dataclass(slots=True)
class Image:
    """Files and settings of a built image; `folder` stands for its `/`."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def here(self, text: str) -> str:
        """Return `text` with the image's folders as they are called here."""
        return _FOLDER.sub(lambda found: f"{self.folder}{found.group()}", text)

    @property
    def site_packages(self) -> Path:
        """Folder of the image's Python packages."""
        (found,) = (self.folder / "opt/bmq/lib").glob("python3*/site-packages")
        return found

    def words(self, words: Sequence[str]) -> list[str]:
        """Return a command of the image as the image's user runs it here, in the image's working directory."""
        environment = [f"{name}={self.here(value)}" for name, value in self.environment.items()]
        return [*_as_user(*self.user.split(":")), "env", "-C", self.here(self.workdir), *environment, *words]

    def process(
        self, name: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> ServiceProcess:
        """Return a container's process, not started yet; `environment` is given to the container."""
        given = [f"{key}={value}" for key, value in (environment or {}).items()]
        return ServiceProcess(name, self.words(["env", *given, *self.entrypoint, *arguments]), log=log)

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of the image to its end, as `docker exec` does."""
        given = [f"{key}={value}" for key, value in (environment or {}).items()]
        return subprocess.run(self.words(["env", *given, *words]), capture_output=True, text=True, timeout=60)


def build(folder: Path) -> Image:
    """Carry out the Dockerfile below `folder`, which other users must be able to enter."""
    image = Image(folder)
    for step in parse(DOCKERFILE.read_text()):
        _STEPS[step.keyword](image, step) if step.keyword in _STEPS else _require_plain(step)
    return image


def context() -> list[Path]:
    """Return the top-level files and folders that `.dockerignore` lets into the build, relative to the repository."""
    allowed = []
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*", "everything is left out at first"
    for line in lines[1:]:
        if line.startswith("!"):
            allowed.append(Path(line[1:]))
        else:
            assert line == "**/__pycache__", f".dockerignore: {line} is not understood here"
    return allowed


def _require_plain(step: Instruction) -> None:
    assert step.keyword in _PLAIN, f"{DOCKERFILE.name}: {step.keyword} is not understood here"


def _copy(image: Image, step: Instruction) -> None:
    if step.text == ". .":
        target = Path(image.here(image.workdir))
        for each in context():
            source = ROOT / each
            (target / each).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target / each, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target / each)
        return
    if step.text in (f"{each} ." for each in context()):
        shutil.copy2(ROOT / step.text.split()[0], Path(image.here(image.workdir)))
        return
    stage, there, here = step.text.split()
    assert stage == "--from=build", step
    assert there == here, "stages share their folders here"


def _run(image: Image, step: Instruction) -> None:
    environment = {
        **os.environ,
        "PATH": f"{_python(image)}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",
    }
    for name in ("VIRTUAL_ENV", "PYTHONPATH"):
        environment.pop(name, None)
    subprocess.run(
        ["/bin/sh", "-ec", image.here(step.text)], cwd=image.here(image.workdir), env=environment, check=True,
        umask=0o022,
    )  # fmt: skip


def _python(image: Image) -> Path:
    """Return a folder with the image's `python`: the first on this machine that the image's user can run.

    One below the home folder of root, as pyenv installs it, is not.
    """
    folder = image.folder / "python"
    if not folder.exists():
        who = _as_user("65532", "65532")
        candidates = [sys._base_executable, "/usr/bin/python3", "/usr/local/bin/python3"]  # type: ignore[attr-defined]
        for candidate in candidates:
            if not _is_open(Path(candidate)):
                continue
            if subprocess.run([*who, candidate, "-c", _IS_RIGHT], capture_output=True, cwd="/").returncode == 0:
                folder.mkdir()
                (folder / "python").symlink_to(candidate)
                break
        else:
            raise AssertionError(
                f"none of {candidates} can be run by other users with venv and pip: install python3-venv"
            )
    return folder


def _is_open(program: Path) -> bool:
    """Return whether others may enter each folder on the program's path."""
    return os.getuid() != 0 or all(parent.stat().st_mode & 0o005 == 0o005 for parent in program.resolve().parents)


def _as_user(user: str, group: str) -> list[str]:
    """Return the beginning of a command that runs as another user, where this one may do that.

    Linux forgets PR_SET_PDEATHSIG when the user changes, so it is set again.
    """
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups", "--pdeathsig=KILL"]


def _env(image: Image, step: Instruction) -> None:
    for pair in step.text.split():
        name, _, value = pair.partition("=")
        image.environment[name] = value


def _workdir(image: Image, step: Instruction) -> None:
    image.workdir = step.text
    Path(image.here(step.text)).mkdir(parents=True, exist_ok=True)


def _user(image: Image, step: Instruction) -> None:
    image.user = step.text


def _health(image: Image, step: Instruction) -> None:
    image.health = Instruction("CMD", step.text.partition("CMD")[2]).words


def _entrypoint(image: Image, step: Instruction) -> None:
    image.entrypoint = step.words


def _command(image: Image, step: Instruction) -> None:
    image.command = step.words


_STEPS = {
    "COPY": _copy,
    "RUN": _run,
    "ENV": _env,
    "WORKDIR": _workdir,
    "USER": _user,
    "HEALTHCHECK": _health,
    "ENTRYPOINT": _entrypoint,
    "CMD": _command,
}

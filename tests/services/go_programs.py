"""Programs that the Go module proxy has and no other registry here: built once per user, from then on only looked at.

Sums of all modules are checked against Go's checksum database, as `go` does by itself.  `GOMAXPROCS` and `nice` apply
as usual: a build of Kubernetes takes minutes of every core it may have.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.services import jars

BUILD_TIMEOUT_S = 3 * 3600
_STAGED = re.compile(r"^\s*(?:require\s+)?(k8s\.io/\S+) v0\.0\.0$", re.MULTILINE)


class BuildFailed(Exception):
    """A program could not be built; the text ends with what `go` said."""


@dataclass(frozen=True, slots=True)
class GoModule:
    """One module of the proxy, and the packages of it that are wanted as programs."""

    path: str
    version: str
    packages: Mapping[str, str]
    """The program's name: its package."""
    stamps: Mapping[str, str] = field(default_factory=dict)
    """String variables that the linker sets: what a release build does for the version that a program reports."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Modules and the versions that stand in for what `path` requires."""
    tags: Sequence[str] = ()
    """Build tags: what a program is built with, or without."""


def build(module: GoModule, folder: Path) -> None:
    """Build the module's programs into `folder`.  Raises BuildFailed."""
    if shutil.which("go") is None:
        names = ", ".join(module.packages)
        raise BuildFailed(f"put {names} or Go on the path (https://go.dev/dl): there is no go to build {names} with")
    print(f"building {', '.join(module.packages)} {module.version} into {folder}, once", flush=True)
    source = folder / "build"
    source.mkdir(exist_ok=True)
    # Of Go 1.17 or later, so that only what is needed of the dependencies' dependencies is looked at.
    lines = [f"module build\n\ngo {_go_version(module)}\n\nrequire {module.path} {module.version}\n"]
    lines += [f"replace {path} => {path} {version}\n" for path, version in module.replaced.items()]
    (source / "go.mod").write_text("".join(lines))
    stamps = " ".join(f"-X {name}={value}" for name, value in module.stamps.items())
    for name, package in module.packages.items():
        program = str(folder / name)
        options = ["-mod=mod", "-trimpath", f"-tags={','.join(module.tags)}", f"-ldflags=-s -w {stamps}"]
        run(["go", "build", *options, "-o", program, package], source)
    shutil.rmtree(source)


def _go_version(module: GoModule) -> str:
    found = re.search(r"^go (\S+)$", _go_mod(module.path, module.version), re.MULTILINE)
    return found[1] if found else "1.17"


def _go_mod(module: str, version: str) -> str:
    output = run(["go", "mod", "download", "-json", f"{module}@{version}"], Path.cwd())
    return Path(json.loads(output)["GoMod"]).read_text()


def staged_modules(module: str, version: str, staged_version: str) -> dict[str, str]:
    """Return the modules that Kubernetes' own go.mod requires as v0.0.0, with the version that they have outside."""
    found = dict.fromkeys(_STAGED.findall(_go_mod(module, version)), staged_version)
    if not found:
        raise BuildFailed(
            f"the go.mod of {module} {version} requires nothing as v0.0.0: is it laid out in another way?"
        )
    return found


def folder_of(module: str, version: str) -> Path:
    """Return the folder of a module's source, downloaded if this is the first time."""
    return Path(json.loads(run(["go", "mod", "download", "-json", f"{module}@{version}"], Path.cwd()))["Dir"])


def run(command: Sequence[str], folder: Path) -> str:
    """Run to its end and return what it wrote to standard output.  Raises BuildFailed."""
    result = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=BUILD_TIMEOUT_S,
    )  # fmt: skip
    if result.returncode != 0:
        raise BuildFailed(f"{' '.join(command)}: {(result.stdout + result.stderr)[-2000:]}")
    return result.stdout


def cached(name: str, version: str) -> Path:
    """Return the folder of a program's builds."""
    return jars.cache_base() / f"{name}-{version}"

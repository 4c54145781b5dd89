"""The origin of figures: the commit, the command, the machine, the versions and the servers that a run measured."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from bench.results import Results
from tests.services.processes import ServiceProcess

REPOSITORY = Path(__file__).resolve().parents[1]
UNKNOWN = "unknown"
"""The commit of a tree without a history, as in a source archive."""
CODE = (".", ":!docs", ":!*.md")
"""What a commit or a change must touch to count: pages, into which results are written, change no figure."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of this checkout, and whether its files were changed since."""

    name: str
    is_dirty: bool


def current_commit(repository: Path = REPOSITORY) -> Commit:
    """Return the commit of the code that is checked out: later ones that change pages alone do not count."""
    name = _git(repository, "log", "-1", "--format=%H", "--", *CODE)
    if not name:
        return Commit(UNKNOWN, is_dirty=False)
    changed = _git(repository, "status", "--porcelain", "--untracked-files=no", "--", *CODE)
    return Commit(name, is_dirty=bool(changed))


def commits_since(commit: str, repository: Path = REPOSITORY) -> int | None:
    """Return how many commits of code this checkout has after ``commit``; None if that is not in its history."""
    if _git(repository, "merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    count = _git(repository, "rev-list", "--count", f"{commit}..HEAD", "--", *CODE)
    return None if count is None else int(count)


def begin(module: str, arguments: Sequence[str], plan: Mapping[str, Any], folder: Path | None) -> Results:
    """Return the results of a run that begins now: without a sample, and with all that is known of its origin."""
    commit = current_commit()
    return Results(
        command=shlex.join(["python", "-m", module, *arguments]),
        machine=machine.describe(folder),
        plan=dict(plan),
        started=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=commit.name,
        is_dirty=commit.is_dirty,
        versions=machine.versions(),
    )


def note_servers(results: Results, processes: Sequence[ServiceProcess], deployment: str = "") -> None:
    """Record the command lines of a deployment's server processes, and the versions of their software."""
    prefix = f"{deployment}/" if deployment else ""
    for process in processes:
        name, number = process.name, 1
        while f"{prefix}{name}" in results.servers:
            name, number = f"{process.name}-{number}", number + 1
        results.servers[f"{prefix}{name}"] = machine.command_line(process.command, process.environment)
    results.versions |= machine.server_versions({process.name.partition("-")[0] for process in processes})


def _git(repository: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it fails, as without a history, or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=False, timeout=60
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None

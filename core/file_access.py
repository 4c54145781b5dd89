"""Owner, group and mode of files and folders on storage, as an operator asks for them.  Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

OWNER_BITS = 0o700
"""Bits that every mode has: the owner writes the files."""
_MODE = re.compile(r"0?[0-7]{3}", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,253}\$?", re.ASCII)
_NOT_EXECUTABLE = 0o666
GROUP, MODE, OWNER = "storage.group", "storage.mode", "storage.owner"
CONFIGS = (GROUP, MODE, OWNER)
"""The topic configs; a process's setting of that name, after ``log.``, is their default."""


@dataclass(frozen=True, slots=True)
class Access:
    """Rights on a topic's files: empty, or None for the mode, leaves to storage what a new file gets.

    ``mode`` is a folder's: its files have it without x.  On HDFS a new file or folder has its parent's group, so there
    ``group`` is given to folders, and to files with another group.  On a local root every file gets it.
    """

    owner: str = ""
    group: str = ""
    mode: int | None = None

    @property
    def is_given(self) -> bool:
        """True if anything is asked for."""
        return self != NO_ACCESS

    def of_file(self) -> Access:
        """Return the same for a file: its mode has no x."""
        return self if self.mode is None else replace(self, mode=self.mode & _NOT_EXECUTABLE)

    def readable(self) -> Access:
        """Return the same for a folder whose names and files may be read by all who may pass through it."""
        return self if self.mode is None else replace(self, mode=self.mode | (self.mode & 0o011) << 2)

    def missing(self, owner: str, group: str, mode: int) -> Access:
        """Return that part of it which an entry of the namespace lacks: storage may refuse the rest for no reason."""
        return Access(
            owner="" if self.owner == owner else self.owner,
            group="" if self.group == group else self.group,
            mode=None if self.mode == mode else self.mode,
        )

    def __str__(self) -> str:
        mode = "" if self.mode is None else f"{self.mode:o}"
        given = (("owner", self.owner), ("group", self.group), ("mode", mode))
        return ", ".join(f"{name} {value}" for name, value in given if value) or "as storage has it"


NO_ACCESS = Access()


def access_of(values: Mapping[str, str]) -> Access:
    """Return what the topic configs in force ask for.  Raises ValueError if one is wrong."""
    for name, check in ((GROUP, check_name), (MODE, check_mode), (OWNER, check_name)):
        if wrong := check(values.get(name, "")):
            raise ValueError(f"{name}={values[name]!r} {wrong}")
    return Access(values.get(OWNER, ""), values.get(GROUP, ""), parse_mode(values.get(MODE, "")))


def parse_mode(text: str) -> int | None:
    """Return a mode that ``check_mode`` has found right; None for an empty text."""
    return int(text, 8) if text else None


def check_mode(text: str) -> str:
    """Return what is wrong with a mode, or ""."""
    if not text:
        return ""
    if not _MODE.fullmatch(text):
        return "must be empty or a folder's mode in octal, as 750"
    if int(text, 8) & OWNER_BITS != OWNER_BITS:
        return "must begin with 7: the owner writes the files"
    return ""


def check_name(text: str) -> str:
    """Return what is wrong with a user's or group's name, or ""."""
    if not text or _NAME.fullmatch(text):
        return ""
    return "must be empty or a name of letters, digits and _ . @ -, which begins with a letter, digit or _"

"""The umask of Hadoop's configuration: rights that a new file or folder does not get by itself.

``fs.permissions.umask-mode`` holds for whoever creates something on HDFS, BMQ too: a site with 027 or 077 expects no
file that all users may read.  A folder with a default ACL decides in the umask's place, if the NameNode is told both
modes (HDFS-6962).  A mode that a topic or the cluster asks for has no umask.  Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.site_files import SiteConfig, SiteFileError

UMASK = "fs.permissions.umask-mode"
"""Hadoop's name of the property (``FsPermission.UMASK_LABEL``)."""
DEFAULT_UMASK = 0o022
_OWNER_BITS = 0o700
_FILE_MODE = 0o666
_FOLDER_MODE = 0o777
_OCTAL = re.compile(r"\+?0*([0-7]{3})", re.ASCII)
_SYMBOLS = re.compile(r"([ugoa]*)([+=-]+)([rwx]*)", re.ASCII)
_CLASSES = {"u": 6, "g": 3, "o": 0}
"""The place of a class's three bits in a mode."""
_BITS = {"r": 4, "w": 2, "x": 1}


@dataclass(frozen=True, slots=True)
class CreateMode:
    """The modes of a new file or folder: ``masked`` under a plain folder, ``unmasked`` under one with a default ACL.

    ``unmasked`` None: a default ACL takes away from ``masked``.
    """

    masked: int
    unmasked: int | None = None

    @property
    def unmasked_permission(self) -> pb.Permission | None:
        """The unmasked mode as a request has it."""
        return None if self.unmasked is None else pb.Permission(mode=self.unmasked)


def file_mode(mode: int | None, umask: int) -> CreateMode:
    """Return the modes of a new file; ``mode`` None: nobody asked for one."""
    return _create_mode(mode, _FILE_MODE, umask)


def folder_mode(mode: int | None, umask: int) -> CreateMode:
    """Return the modes of a new folder; ``mode`` None: nobody asked for one."""
    return _create_mode(mode, _FOLDER_MODE, umask)


def _create_mode(mode: int | None, widest: int, umask: int) -> CreateMode:
    return CreateMode(widest & ~umask, widest) if mode is None else CreateMode(mode)


def read_umask(config: SiteConfig) -> int:
    """Return the umask of a configuration.

    Raises SiteFileError if the value has no meaning, or takes rights from the owner, who has to read the files.
    """
    text = config.get(UMASK)
    if not text:
        return DEFAULT_UMASK
    umask = _parse(text)
    if umask is None:
        raise SiteFileError(
            f"{config.source}: {UMASK}={text!r} is no umask: give it in octal, as 027, or as the rights that stay,"
            " u=rwx,g=rx,o="
        )
    if umask & _OWNER_BITS:
        raise SiteFileError(
            f"{config.source}: {UMASK}={text!r} takes rights from the owner of new files, who writes and reads them:"
            f" give an umask that begins with 0, as 0{umask & ~_OWNER_BITS:02o}"
        )
    return umask


def _parse(text: str) -> int | None:
    """Return the bits that are taken away, or None for a text without meaning (``UmaskParser``)."""
    if octal := _OCTAL.fullmatch(text):
        return int(octal[1], 8)
    left = 0
    for part in text.split(","):
        found = _SYMBOLS.fullmatch(part.strip())
        if found is None:
            return None
        classes, operators, rights = found.groups()
        bits = 0 if operators.endswith("-") else sum(_BITS[each] for each in set(rights))
        for name in set(classes) - {"a"} or set(_CLASSES):
            left = left & ~(7 << _CLASSES[name]) | bits << _CLASSES[name]
    return ~left & 0o777

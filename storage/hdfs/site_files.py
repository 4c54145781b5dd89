"""Hadoop's configuration files: ``core-site.xml`` and ``hdfs-site.xml`` as a dictionary, with their variables.

They are read as ``org.apache.hadoop.conf.Configuration`` does: later properties win, in the same file too, except over
properties that were called final before; ``${name}`` in a value is another property, ``${env.NAME}`` a variable of the
environment, ``${user.name}`` and ``${user.home}`` the user's; an ``xi:include`` is read in its place.  A document type,
and with it entities, is refused.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

SITE_FILES = ("core-site.xml", "hdfs-site.xml")
"""The files' names, in the order in which Hadoop's clients of HDFS read them."""
FILE_BYTES_MAX = 16 << 20
INCLUDE_DEPTH_MAX = 10
EXPANSIONS_MAX = 20
"""Variables replaced in one value, at most: ``Configuration.MAX_SUBST``."""
_INCLUDE = "http://www.w3.org/2001/XInclude"
_VARIABLE = re.compile(r"\$\{([^}$\s]+)\}")
_ENVIRONMENT = re.compile(r"env\.([^:-]+)(?:(:?-)(.*))?", re.DOTALL)


class SiteFileError(ValueError):
    """A file cannot be read as Hadoop's configuration.  The message names the file, and what would be right."""


def conf_folder(named: str = "", environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of the files: ``named``, else HADOOP_CONF_DIR, else etc/hadoop in HADOOP_HOME; else None.

    The first two were chosen, and must have files (``read_folder``).  An installed Hadoop may have none.
    """
    if named:
        return Path(named)
    if folder := environment.get("HADOOP_CONF_DIR"):
        return Path(folder)
    if home := environment.get("HADOOP_HOME"):
        folder_of_home = Path(home, "etc", "hadoop")
        return folder_of_home if _site_files(folder_of_home) else None
    return None


def read_folder(folder: Path) -> SiteConfig:
    """Return the configuration of the files in ``folder``, of which one may be missing.

    Raises SiteFileError if ``folder`` is not a folder, if it has no file, as an empty mount has none, or if a file
    cannot be read.  Without the error the cluster would be taken for one without Kerberos and encryption.
    """
    if not folder.is_dir():
        raise SiteFileError(f"{folder} is not a folder: name the one with core-site.xml and hdfs-site.xml")
    if not (files := _site_files(folder)):
        raise SiteFileError(
            f"{folder} has neither core-site.xml nor hdfs-site.xml: is it mounted? Put the cluster's files there, or"
            " name no folder for a cluster without Kerberos and encryption"
        )
    for file in files:
        if not os.path.exists(file):  # Path.exists raises if a folder on the way is closed
            raise SiteFileError(
                f"{file} is a link to {os.path.realpath(file)}, which cannot be found: put the file there, or remove"
                " the link"
            )
    return read_files(files, str(folder))


def _site_files(folder: Path) -> list[Path]:
    """Return the site files of ``folder``, with links to files that are not there."""
    return [folder / name for name in SITE_FILES if os.path.lexists(folder / name)]


def read_files(files: Sequence[Path], source: str) -> SiteConfig:
    """Return the configuration of these files together: later ones win over earlier ones.

    ``source`` names them in errors.  Raises SiteFileError if one cannot be read.
    """
    properties = _Properties()
    for file in files:
        _File(file, 0, properties)
    return SiteConfig(properties.values, source)


class SiteConfig:
    """Properties by name, with their variables replaced.  ``source`` names their files in errors."""

    def __init__(self, raw: Mapping[str, str], source: str = "", environment: Mapping[str, str] = os.environ) -> None:
        self.source = source
        self._raw = dict(raw)
        self._environment = environment

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def names(self, prefix: str) -> Sequence[str]:
        """Return the names of the properties that begin with ``prefix``."""
        return [name for name in self._raw if name.startswith(prefix)]

    def get(self, name: str, default: str = "") -> str:
        """Return the value without spaces around it, ``default`` if it is missing.

        A variable without a value is left as it is written.  Raises SiteFileError if there are too many variables, or
        one that refers to itself.
        """
        value = self._raw.get(name)
        if value is None:
            return default
        for _ in range(EXPANSIONS_MAX):
            for match in _VARIABLE.finditer(value):
                text = self._value_of(match[1])
                if text is not None:
                    value = value[: match.start()] + text + value[match.end() :]
                    break
            else:
                return value.strip()
        raise SiteFileError(f"{self.source}: {name} refers to itself, or to more than {EXPANSIONS_MAX} variables")

    def list(self, name: str) -> list[str]:
        """Return the words of a comma-separated value."""
        return [word for part in self.get(name).split(",") if (word := part.strip())]

    def is_true(self, name: str) -> bool:
        """Return whether the value is ``true``; false if it is missing.  Raises SiteFileError if it is neither."""
        value = self.get(name, "false").lower()
        if value not in ("true", "false"):
            raise SiteFileError(f"{self.source}: {name}={value!r} is neither true nor false")
        return value == "true"

    def _value_of(self, variable: str) -> str | None:
        if match := _ENVIRONMENT.fullmatch(variable):
            name, form, default = match.groups()
            value = self._environment.get(name)
            if value is None or (form == ":-" and not value):
                return default
            return value
        if variable == "user.name":
            return self._environment.get("HADOOP_USER_NAME") or _user_name()
        if variable == "user.home":
            return os.path.expanduser("~")
        return self._raw.get(variable)


def _user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user id has no name
        return None


class _Properties:
    """The values of all files by name.  A name that was called final keeps its value (Configuration.loadProperty)."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self._final: set[str] = set()

    def add(self, name: str, value: str | None, *, is_final: bool) -> None:
        """Take a property in the order of the files; a value of None changes no value."""
        if value is not None and name not in self._final:
            self.values[name] = value
        if is_final:
            self._final.add(name)


class _File:
    """One file and the files that it includes, read by events into ``properties``.

    Raises SiteFileError if a file cannot be read.
    """

    def __init__(self, path: Path, depth: int, properties: _Properties) -> None:
        self._properties = properties
        self._path = path
        self._depth = depth
        self._property: dict[str, str] | None = None
        self._text: list[str] | None = None
        self._skips = 0
        """Depth of elements inside a fallback that is not needed."""
        self._missing: list[str | None] = []
        """For each open include: the error of a file that could not be read, until a fallback is found; else None."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(self._read(), True)
        except expat.ExpatError as error:
            raise SiteFileError(f"{path} is not XML: {error}") from None

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SiteFileError(f"cannot read {self._path}: {error.strerror}") from None
        if len(data) > FILE_BYTES_MAX:
            raise SiteFileError(f"{self._path} has more than {FILE_BYTES_MAX} bytes: it is not a configuration")
        return data

    def _doctype(self, *_: Any) -> None:
        raise SiteFileError(f"{self._path} declares a document type, which may hold entities: remove the DOCTYPE")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if self._skips:
            self._skips += 1
        elif tag == f"{_INCLUDE} include":
            self._missing.append(self._include(attributes))
        elif tag == f"{_INCLUDE} fallback":
            if self._missing and self._missing[-1] is not None:
                self._missing[-1] = None
            else:
                self._skips = 1
        elif tag == "property":
            self._property = dict(attributes)
        elif tag in ("name", "value", "final") and self._property is not None:
            self._text = []

    def _characters(self, text: str) -> None:
        if self._text is not None:
            self._text.append(text)

    def _end(self, tag: str) -> None:
        if self._skips:
            self._skips -= 1
        elif tag == f"{_INCLUDE} include":
            if (missing := self._missing.pop()) is not None:
                raise SiteFileError(missing)
        elif tag in ("name", "value", "final") and self._property is not None and self._text is not None:
            self._property[tag] = "".join(self._text)
            self._text = None
        elif tag == "property" and self._property is not None:
            found, self._property = self._property, None
            name = found.get("name", "").strip()
            if name:
                self._properties.add(name, found.get("value"), is_final=found.get("final", "").strip() == "true")

    def _include(self, attributes: Mapping[str, str]) -> str | None:
        """Add the properties of another file; return an error's text if it is not there, for a fallback may follow."""
        href = attributes.get("href", "")
        if not href or attributes.get("parse", "xml") != "xml" or "://" in href:
            raise SiteFileError(f"{self._path}: an xi:include names a file by href, not {href!r}")
        if self._depth >= INCLUDE_DEPTH_MAX:
            raise SiteFileError(f"{self._path}: more than {INCLUDE_DEPTH_MAX} files include one another")
        path = self._path.parent / href
        if not path.is_file():
            return f"{self._path} includes {path}, which is not there"
        _File(path, self._depth + 1, self._properties)
        return None

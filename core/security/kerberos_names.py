r"""Kerberos principals, and the rules by which they become users' names (``KerberosShortNamer``).  Pure.

``sasl.kerberos.principal.to.local.rules`` is a list; the first rule that applies gives the name::

    DEFAULT                                 alice@REALM -> alice, of the default realm alone
    RULE:[1:$1@$0](.*@OTHER)s/@.*//         [components:format](pattern)s/pattern/replacement/g/L
    RULE:[2:$1](kafka)                      a principal with two components, as kafka/host@REALM

In a format ``$0`` is the realm, ``$1`` and ``$2`` are the components.  ``g`` replaces every match, ``/L`` and ``/U``
change the case.  A principal that no rule applies to does not authenticate, nor one whose name then has a slash or an
at sign.

Departures: a principal with an escaped character, an empty name, and a name with white space at an end are refused.
As in Java, ``\w``, ``\d``, ``\s`` and ``(?i)`` of a pattern mean ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bmq.core.security.principal import has_outer_space

_NAME = re.compile(r"([^/@\\]+)(?:/([^/@\\]+))?@([^/@\\]+)")
_RULE = re.compile(
    r"RULE:\[(?P<components>\d+):(?P<format>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?:s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<all>g)?)?/?(?P<case>[LU])?",
    re.ASCII,
)
_PARAMETER = re.compile(r"\$(\d*)", re.ASCII)
_JAVA_REPLACEMENT = re.compile(r"\\(.)|\$(\d+)|([\\$])", re.DOTALL | re.ASCII)
DEFAULT = "DEFAULT"


class KerberosNameError(ValueError):
    """A rule or a principal that is refused; ``str`` says why."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """One rule; without a format it is DEFAULT."""

    text: str
    components: int = 0
    format: str | None = None
    match: re.Pattern[str] | None = None
    replace: re.Pattern[str] | None = None
    by: str = ""
    is_for_all: bool = False
    case: str = ""

    def apply(self, realm: str, components: Sequence[str], default_realm: str) -> str | None:
        """Return the name; None if the rule does not apply."""
        if self.format is None:
            return components[0] if realm == default_realm else None
        if len(components) != self.components:
            return None
        parameters = (realm, *components)
        name = _PARAMETER.sub(lambda found: parameters[int(found[1])], self.format)
        if self.match is not None and not self.match.fullmatch(name):
            return None
        if self.replace is not None:
            name = self.replace.sub(self.by, name, count=0 if self.is_for_all else 1)
        if self.case:
            name = name.lower() if self.case == "L" else name.upper()
        return name


class ShortNamer:
    """The rules of one listener."""

    def __init__(self, rules: Sequence[str], default_realm: str) -> None:
        """Parse the rules.  Raises KerberosNameError if one is wrong."""
        self._rules = tuple(map(_parse_rule, rules))
        self._default_realm = default_realm

    def __repr__(self) -> str:
        return f"<ShortNamer {[rule.text for rule in self._rules]}>"

    def short_name(self, principal: str) -> str:
        """Return the user's name of ``name@REALM`` or ``name/host@REALM``.

        Raises KerberosNameError if there is none.
        """
        parts = _NAME.fullmatch(principal)
        if parts is None:
            raise KerberosNameError(f"the Kerberos principal {principal[:200]!r} is not name@REALM or name/host@REALM")
        components = [part for part in parts.group(1, 2) if part is not None]
        for rule in self._rules:
            name = rule.apply(parts[3], components, self._default_realm)
            if name is not None:
                if not name or "/" in name or "@" in name or has_outer_space(name):
                    raise KerberosNameError(f"rule {rule.text} makes {name[:200]!r} of {principal[:200]!r}: not a name")
                return name
        raise KerberosNameError(f"no rule applies to the Kerberos principal {principal[:200]!r}")


def _parse_rule(text: str) -> _Rule:
    if text == DEFAULT:
        return _Rule(text)
    found = _RULE.fullmatch(text)
    if found is None:
        raise KerberosNameError(f"{text[:200]!r} is not DEFAULT or RULE:[1:$1](pattern)s/pattern/replacement/")
    components = int(found["components"])
    if not 1 <= components <= 2:
        raise KerberosNameError(f"{text[:200]!r}: principals have one component or two, not {components}")
    for parameter in _PARAMETER.finditer(found["format"]):
        if not parameter[1] or int(parameter[1]) > components:
            raise KerberosNameError(f"{text[:200]!r}: ${parameter[1]} is none of $0 to ${components}")
    try:
        match = None if found["match"] is None else re.compile(found["match"], re.ASCII)
        replace = None if found["from"] is None else re.compile(found["from"], re.ASCII)
        by = "" if replace is None else _in_python(found["to"], replace.groups)
    except re.error as error:
        raise KerberosNameError(f"{text[:200]!r}: {error}") from None
    return _Rule(text, components, found["format"], match, replace, by, found["all"] is not None, found["case"] or "")


def _in_python(replacement: str, groups: int) -> str:
    """Return Java's replacement text in the form of ``re``.  Raises re.error if it names a group that is not there."""

    def convert(found: re.Match[str]) -> str:
        escaped, digits, wrong = found.groups()
        if wrong:
            raise re.error(f"the replacement has a {wrong} that is neither a group nor escapes anything")
        if escaped:
            return "\\\\" if escaped == "\\" else escaped
        group = digits[0]
        rest = digits[1:]
        while rest and int(group + rest[0]) <= groups:  # as Java: as many digits as make a group that there is
            group, rest = group + rest[0], rest[1:]
        if int(group) > groups:
            raise re.error(f"the replacement has ${group}, the pattern has {groups} groups")
        return f"\\g<{group}>{rest}"

    return _JAVA_REPLACEMENT.sub(convert, replacement)

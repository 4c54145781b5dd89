"""JAAS texts, as in Kafka's ``sasl.jaas.config``: login modules with options (``JaasConfig``).  Pure.

::

    org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" user_alice="se cret";

Words and quoted texts are separated by the characters up to U+0020, as by Java's StreamTokenizer: a no-break space is a
part of a name.  A quoted text has Java's escapes; ``//`` and ``/* */`` begin comments.  Errors name the position and
the option, and never quote a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

FLAGS = ("required", "requisite", "sufficient", "optional")
TEXT_MAX = 1 << 20
"""Characters of one text at most: some ten thousand users."""
_TOKEN = re.compile(
    r"""(?P<skip>[\x00-\x20]+|//[^\r\n]*|/\*.*?\*/)
      | (?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<sign>[=;])
      | (?P<word>[^\x00-\x20\x7f-\x9f"'=;\#]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class JaasError(ValueError):
    """A text that is not a JAAS configuration; ``str`` says where it is wrong, and shows no value of it."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One entry of a JAAS text."""

    name: str
    """Name of a Java class, of which the last part says the mechanism."""
    flag: str
    options: Mapping[str, str] = field(repr=False)
    """Options by name.  Their values are secrets."""


class _Token(NamedTuple):
    kind: str
    text: str
    position: int


def parse_jaas(text: str) -> tuple[LoginModule, ...]:
    """Return the login modules of ``text``, at least one.

    Raises JaasError if it is not of JAAS's form.
    """
    if len(text) > TEXT_MAX:
        raise JaasError(f"a JAAS text of {len(text)} characters, more than {TEXT_MAX}")
    tokens = list(_tokens(text))
    modules = []
    at = 0
    while at < len(tokens):
        module, at = _module(tokens, at)
        modules.append(module)
    if not modules:
        raise JaasError('the JAAS text is empty; expected: LoginModuleClass required name="value";')
    return tuple(modules)


def parse_single_jaas(text: str, module_class: str) -> LoginModule:
    """Return the one login module of a ``sasl.jaas.config``, which must be of the class ``module_class``.

    Kafka accepts one module a mechanism of a listener (``JaasContext``).  Raises JaasError if there are more, or if it
    is another.
    """
    modules = parse_jaas(text)
    if len(modules) > 1:
        raise JaasError(f"one login module is expected, not {len(modules)}")
    if modules[0].name != module_class:
        raise JaasError(f"the login module is {modules[0].name[:200]!r}, expected {module_class}")
    return modules[0]


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            what = "a quoted text without its end" if text[position] in "\"'" else "an unexpected character"
            raise JaasError(f"{what} at character {position + 1}")
        kind = found.lastgroup or ""
        if kind != "skip":
            given = found[0]
            yield _Token(kind, _unquoted(given[1:-1]) if kind == "quoted" else given, position + 1)
        position = found.end()


def _unquoted(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        what = found[1]
        return chr(int(what, 8)) if what[0] in "01234567" else _ESCAPES.get(what, what)

    return _ESCAPE.sub(replace, text)


def _module(tokens: list[_Token], at: int) -> tuple[LoginModule, int]:
    """Return the module whose class is the token ``at``, and the position after its semicolon."""
    name = tokens[at]
    if name.kind != "word":
        raise JaasError(f"expected the class of a login module at character {name.position}")
    flag = tokens[at + 1] if at + 1 < len(tokens) else None
    if flag is None or flag.kind != "word" or flag.text.lower() not in FLAGS:
        raise JaasError(f"expected one of {', '.join(FLAGS)} after the class of the login module")
    options: dict[str, str] = {}
    at += 2
    while at < len(tokens) and tokens[at][:2] != ("sign", ";"):
        key, *rest = tokens[at : at + 3]
        if key.kind == "sign" or len(rest) < 2 or rest[0][:2] != ("sign", "=") or rest[1].kind == "sign":
            raise JaasError(f'expected name="value" or a semicolon at character {key.position}')
        if key.text in options:
            raise JaasError(f"an option is given twice, again at character {key.position}")
        options[key.text] = rest[1].text
        at += 3
    if at >= len(tokens):
        raise JaasError("the semicolon at the end of the login module is missing")
    return LoginModule(name.text, flag.text.lower(), options), at + 1

"""One name, one meaning: the class names of authentication, and of authentication alone, stand for one thing each."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache

import pytest

from tests.voice import ROOT, files
from tests.voice_sentences import ROOMS

AUTHENTICATION = ("core/security/", "endpoint/authentication/", "console/access/")
"""Rooms whose words docs/design/security.md has in a table."""


@cache
def modules_of_classes() -> dict[str, list[str]]:
    """Return the public classes of the product, each with the modules that define it."""
    found = defaultdict(list)
    for path in files(list(ROOMS)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


@pytest.mark.slow
def test_a_class_of_authentication_has_its_name_alone() -> None:
    twice = {
        name: modules
        for name, modules in modules_of_classes().items()
        if len(modules) > 1 and any(module.startswith(AUTHENTICATION) for module in modules)
    }
    assert twice == {}, "choose another word, and add it to the table in docs/design/security.md"


@pytest.mark.slow
def test_the_rooms_of_authentication_have_classes() -> None:
    modules = {module for each in modules_of_classes().values() for module in each}
    assert all(any(module.startswith(room) for module in modules) for room in AUTHENTICATION)

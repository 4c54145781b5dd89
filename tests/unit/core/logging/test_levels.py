"""Levels of loggers at run time: what holds, what is refused, and the way back."""

from __future__ import annotations

import logging

import pytest

from bmq.core.logging.levels import LoggerLevel, LogLevelError, LogLevels


@pytest.fixture
def root() -> logging.Logger:
    """Return a tree of loggers apart from the process's."""
    root = logging.RootLogger(logging.INFO)
    manager = logging.Manager(root)
    root.manager = manager
    for name in ("bmq.broker", "bmq.broker.cleanup.janitor", "bmq.meta.etcd.watching", "grpc"):
        manager.getLogger(name)
    return root


def test_a_level_holds_below_until_it_is_taken_back(root: logging.Logger) -> None:
    levels = LogLevels(root)
    assert levels.get("bmq.broker.cleanup.janitor") == ("bmq.broker.cleanup.janitor", "INFO", False)
    assert levels.set_level("bmq.broker", "debug") == ("bmq.broker", "DEBUG", True)
    assert levels.get("bmq.broker.cleanup.janitor") == LoggerLevel("bmq.broker.cleanup.janitor", "DEBUG", is_set=False)
    assert root.manager.getLogger("bmq.broker.cleanup.janitor").isEnabledFor(logging.DEBUG)
    assert levels.get("grpc").level == "INFO"
    assert levels.set_level("bmq.broker", "default") == ("bmq.broker", "INFO", False)
    assert not root.manager.getLogger("bmq.broker.cleanup.janitor").isEnabledFor(logging.DEBUG)


def test_the_root_goes_back_to_the_level_of_the_settings(root: logging.Logger) -> None:
    levels = LogLevels(root)
    assert levels.set_level("root", "ERROR").level == "ERROR"
    assert levels.get("grpc").level == "ERROR"
    assert levels.set_level("root", "DEFAULT") == ("root", "INFO", True)


def test_a_name_that_is_only_above_others_can_be_set(root: logging.Logger) -> None:
    levels = LogLevels(root)
    levels.set_level("bmq.meta", "DEBUG")
    assert levels.get("bmq.meta.etcd.watching").level == "DEBUG"


def test_all_are_listed_with_the_root_first(root: logging.Logger) -> None:
    names = [each.logger for each in LogLevels(root).levels()]
    assert names[0] == "root"
    assert names[1:] == sorted(names[1:])
    assert {"bmq", "bmq.broker", "bmq.meta.etcd", "grpc"} <= set(names)


@pytest.mark.parametrize("name", ["bmq.brokr", "", "Root", "bmq.broker.", "x" * 10_000])
def test_an_unknown_logger_is_refused_with_those_there_are(root: logging.Logger, name: str) -> None:
    levels = LogLevels(root)
    with pytest.raises(LogLevelError, match=r"there is no logger '.*'; there are root, bmq, bmq.broker, bmq.meta"):
        levels.set_level(name, "DEBUG")
    with pytest.raises(LogLevelError):
        levels.get(name)
    assert name not in root.manager.loggerDict


@pytest.mark.parametrize("level", ["LOUD", "", "10", "NOTSET", "debug "])
def test_a_mistyped_level_is_refused_and_changes_nothing(root: logging.Logger, level: str) -> None:
    levels = LogLevels(root)
    with pytest.raises(LogLevelError, match="choose from DEBUG, INFO, WARNING, ERROR, DEFAULT"):
        levels.set_level("bmq.broker", level)
    assert levels.get("bmq.broker") == ("bmq.broker", "INFO", False)


@pytest.mark.parametrize(
    ("level", "means"), [("WARN", "WARNING"), ("fatal", "ERROR"), ("TRACE", "DEBUG"), ("CRITICAL", "ERROR")]
)
def test_other_names_of_levels(root: logging.Logger, level: str, means: str) -> None:
    assert LogLevels(root).set_level("grpc", level).level == means


def test_a_librarys_own_level_is_told_as_the_next_below(root: logging.Logger) -> None:
    root.manager.getLogger("grpc").setLevel(25)
    assert LogLevels(root).get("grpc") == ("grpc", "INFO", True)
    root.manager.getLogger("grpc").setLevel(5)
    assert LogLevels(root).get("grpc").level == "DEBUG"

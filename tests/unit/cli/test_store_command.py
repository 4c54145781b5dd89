"""The places that a command without a server works on: which roots and stores it takes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bmq.cli.store_command import check_root, check_store_file, settings
from bmq.cli.usage import UsageError


def given(**values: str) -> argparse.Namespace:
    return argparse.Namespace(**{"root": None, "meta": None, "cluster": None, "config": None, **values})


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BMQ_ROOT", "BMQ_META", "BMQ_CLUSTER", "BMQ_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_settings_come_from_flags_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BMQ_ROOT", tmp_path.as_uri())
    monkeypatch.setenv("BMQ_META", "sqlite:///environment.db")
    config = settings(given(meta="sqlite:///flag.db", cluster="c"), root="the root", meta="the store")
    assert (config.root, config.meta, config.cluster) == (tmp_path.as_uri(), "sqlite:///flag.db", "c")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"meta": "sqlite:///m.db"}, "give --root, the root"),
        ({"root": "hdfs://n:1/r"}, "give --meta, the store"),
        ({"root": "hdfs://n:1/r", "meta": "memory:"}, "a store in memory ends with its process"),
        ({"root": "webhdfs://u:secret@n:1/r", "meta": "sqlite:///m.db"}, "can be read but not written"),
        ({"root": "file:///nowhere/at/all", "meta": "sqlite:///m.db"}, "there is no such folder"),
    ],
)
def test_a_place_that_is_missing_or_cannot_be_written_is_refused(values: dict[str, str], why: str) -> None:
    with pytest.raises(UsageError) as raised:
        settings(given(**values), root="the root", meta="the store")
    assert why in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_local_root_is_a_folder_that_exists(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    with pytest.raises(UsageError):
        check_root(folder.as_uri())
    folder.mkdir()
    check_root(folder.as_uri())


def test_a_store_in_a_file_must_exist(tmp_path: Path) -> None:
    file = tmp_path / "a b.db"
    url = file.as_uri().replace("file:", "sqlite:")
    with pytest.raises(UsageError, match="there is no such file; a server with this store makes it at its first start"):
        check_store_file(url)
    file.touch()
    check_store_file(url)
    check_store_file("etcd://nowhere:1")

"""Paths within a root: split, joined, and checked for a concat."""

from __future__ import annotations

import pytest

from bmq.storage.filesystem import StorageError, Unsupported
from bmq.storage.paths import check_concat, join, split


@pytest.mark.parametrize(("path", "names"), [("/", ()), ("/a", ("a",)), ("/a/b.c/..d", ("a", "b.c", "..d"))])
def test_a_path_is_split_into_its_names_and_joined_from_them(path: str, names: tuple[str, ...]) -> None:
    assert split(path) == names
    joined = "/"
    for name in names:
        joined = join(joined, name)
    assert joined == path


@pytest.mark.parametrize("path", ["", "a", "a/b", "//", "/a/", "/a//b", "/.", "/a/..", "/../a", "/a/./b", "/a\0b"])
def test_a_path_that_could_leave_the_root_or_mean_two_files_is_refused(path: str) -> None:
    with pytest.raises(Unsupported):
        split(path)


def test_a_concat_takes_different_files_of_one_folder() -> None:
    check_concat("/a/1", ["/a/2", "/a/3"])
    check_concat("/1", [])


@pytest.mark.parametrize("sources", [["/a/2", "/b/3"], ["/a/b/2"], ["/2"], ["/a/1"], ["/a/2", "/a/2"]])
def test_a_concat_over_folders_or_of_one_file_twice_is_refused(sources: list[str]) -> None:
    with pytest.raises(StorageError, match="concat"):
        check_concat("/a/1", sources)

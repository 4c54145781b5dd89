"""The choice of small files to merge."""

from __future__ import annotations

from bmq.spark.jobs.merging import FOLDERS_MAX, Merging, choose


def test_many_small_files_of_a_folder_become_few() -> None:
    files = {"date=1/a": 10, "date=1/b": 60, "date=1/c": 60, "date=1/full": 75, "date=2/a": 1, "date=2/b": 1}
    assert choose(files, files_min=3, file_bytes=100) == [
        Merging("date=1", ("date=1/a", "date=1/b", "date=1/c"), 2),
    ]
    assert [each.folder for each in choose(files, files_min=2, file_bytes=100)] == ["date=1", "date=2"]


def test_one_file_is_left_alone() -> None:
    assert choose({"date=1/a": 0}, files_min=1, file_bytes=100) == []


def test_a_run_merges_the_most_crowded_folders_first() -> None:
    files = {f"date={day:02}/{n}": 1 for day in range(40) for n in range(day)}
    chosen = choose(files, files_min=2, file_bytes=100)
    assert [each.folder for each in chosen] == [f"date={day:02}" for day in range(39, 39 - FOLDERS_MAX, -1)]


def test_merging_ends() -> None:
    """Merge again and again: files grow until they are not small, so bytes are written a bounded number of times."""
    files: dict[str, int] = {}
    rewritten = 0
    for number in range(2000):
        files[f"d/{number}"] = 1
        for each in choose(files, files_min=8, file_bytes=1000):
            size = sum(files.pop(path) for path in each.paths)
            rewritten += size
            files |= {f"d/m{number}-{i}": size // each.count for i in range(each.count)}
    assert len(files) < 20
    assert rewritten < 2000 * 1000 / 8

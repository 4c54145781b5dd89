"""The commit of a run: found in a real repository, with and without changes; and what a page says of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bench.provenance import UNKNOWN, commits_since, current_commit
from bench.results import Results, Sample
from bench.stale import age, main, page_fault

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def results(commit: str = COMMIT, *, is_dirty: bool = False, names: str = "") -> Results:
    samples = [Sample(adapter=name, bench="produce", case="", round=1, metrics={"seconds": 1.0}) for name in names]
    return Results(
        command="python -m bench.x", machine={}, plan={}, started="2026-11-22", commit=commit, is_dirty=is_dirty,
        samples=samples,
    )  # fmt: skip


def git(folder: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=n", "-c", "user.email=n@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *settings, *arguments], check=True, capture_output=True, timeout=60)


def commit(folder: Path, file: str, text: str) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text(f"{text}\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", f"{file}: {text}")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "docs").mkdir()
    for name in ("code.py", "docs/page.md"):
        (tmp_path / name).write_text("first\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_changed_file_makes_the_commit_dirty_and_a_changed_page_does_not(repository: Path) -> None:
    found = current_commit(repository)
    assert len(found.name) == 40
    assert not found.is_dirty
    (repository / "docs/page.md").write_text("second\n")
    assert current_commit(repository) == found
    (repository / "code.py").write_text("second\n")
    assert current_commit(repository).is_dirty


@pytest.mark.slow
def test_commits_since_are_counted_in_this_history_only(repository: Path) -> None:
    first = current_commit(repository).name
    assert commits_since(first, repository) == 0
    commit(repository, "code.py", "second")
    assert commits_since(first, repository) == 1
    assert commits_since(COMMIT, repository) is None


@pytest.mark.slow
def test_a_commit_of_pages_alone_is_no_other_code(repository: Path) -> None:
    first = current_commit(repository)
    for page in ("docs/page.md", "README.md", "bench/notes.md"):
        commit(repository, page, "second")
    assert current_commit(repository) == first
    assert commits_since(first.name, repository) == 0
    commit(repository, "code.py", "second")
    assert current_commit(repository).name != first.name


def test_a_tree_without_a_history_has_an_unknown_commit(tmp_path: Path) -> None:
    assert current_commit(tmp_path).name == UNKNOWN


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (results(), "Measured at commit `0123456789ab` (2026-11-22)."),
        (
            results(is_dirty=True),
            "Measured at commit `0123456789ab`, with changes that were not committed (2026-11-22).",
        ),
        (results(""), "Measured before commits were recorded (2026-11-22)."),
        (results(UNKNOWN), "Measured at commit `unknown` (2026-11-22)."),
    ],
)
def test_a_page_says_which_code_it_is_of(found: Results, line: str) -> None:
    assert found.measured_at == line
    assert page_fault(f"# Title\n\n{line}\n\nText.\n", found) == ""


@pytest.mark.parametrize(
    "page",
    [
        "Text\n",
        "# Title\n\nText.\n",
        "# Title\n\nMeasured at commit `0123456789aa` (2026-11-22).\n",
        "# Title\n\nText.\n\nMeasured at commit `0123456789ab` (2026-11-22).\n",
    ],
)
def test_a_page_that_does_not_say_it_at_its_top_is_wrong(page: str) -> None:
    assert page_fault(page, results())


def test_a_correction_stands_at_the_top_of_the_page() -> None:
    found = results()
    found.corrections.append("a figure is withdrawn.")
    assert page_fault(f"# Title\n\n{found.measured_at}\n\nText.\n", found)
    assert page_fault(f"# Title\n\n{found.measured_at}\n\n**Corrected:** a figure is withdrawn.\n", found) == ""


def test_a_remark_about_the_run_stands_at_the_top_of_the_page() -> None:
    found = results()
    found.remarks.append("something else ran.")
    assert page_fault(f"# Title\n\n{found.measured_at}\n\nText.\n", found)
    assert page_fault(f"# Title\n\n{found.measured_at}\n\n**Remark:** something else ran.\n", found) == ""


def test_the_age_of_what_this_history_does_not_hold_is_not_known() -> None:
    assert age(results("")) == "its age is not known"
    assert age(results()) == age(results(UNKNOWN)) == "that commit is not in this history"


def test_results_of_one_commit_are_joined_and_new_samples_replace_old_ones() -> None:
    now = results(names="ab")
    now.add_earlier(results(names="bc"), lambda sample: sample.adapter)
    assert [sample.adapter for sample in now.samples] == ["c", "a", "b"]
    assert now.command == "python -m bench.x\n    python -m bench.x"


@pytest.mark.parametrize("earlier", [results("fedc"), results(is_dirty=True), results("")])
def test_results_of_another_commit_are_not_joined(earlier: Results) -> None:
    with pytest.raises(ValueError, match="not of commit 0123"):
        results().add_earlier(earlier, lambda sample: sample.adapter)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = results(names="a")
    written.warm_up = [Sample(adapter="w", bench="produce", case="", round=0, metrics={})]
    written.servers = {"kafka-1": "java kafka.Kafka"}
    written.save(tmp_path / "results.json")
    assert Results.load_from(tmp_path / "results.json") == written


def test_a_page_that_was_not_measured_yet_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = results()
    found.save(tmp_path / "benchmarks" / "kafka.json")
    (tmp_path / "benchmarks-kafka.md").write_text(f"# Title\n\n{found.measured_at}\n")
    assert main(["--docs", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "benchmarks-kafka.md: Measured at commit" in printed
    assert "benchmarks-latency.md: not measured yet" in printed

"""The tables in docs/design/ are what the code draws, and the drawing sees what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bmq.storage import recovery
from tests import docs_tables, machine_tables
from tests.chart import drawn as chart


@pytest.mark.slow
def test_the_committed_pages_are_what_the_code_draws() -> None:
    for path, written, drawn in docs_tables.pages():
        assert written == drawn, f"{path.name} differs from the code: run `make docs-tables`"


def test_the_tests_that_the_rules_name_exist() -> None:
    tests = Path(docs_tables.__file__).parent
    existing = set(re.findall(r"def (test_\w+)", "\n".join(path.read_text() for path in tests.rglob("test_*.py"))))
    rules = (docs_tables.DOCS / "design" / "rules.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", rules))
    assert named <= existing, f"docs/design/rules.md names {named - existing}"
    sections = rules.split("\n## ")[1:]
    numbers = [section.split(".")[0] for section in sections]
    assert numbers == [str(number) for number in range(1, 15)]
    assert all(f"test_rule_{number}_" in section for number, section in zip(numbers, sections, strict=True))


MACHINES = [
    machine_tables.PARTITION,
    machine_tables.ASSIGNED,
    machine_tables.MEMBER,
    machine_tables.ROUTE,
    machine_tables.TRANSACTION,
    machine_tables.AUTHENTICATION,
]


@pytest.mark.parametrize("machine", MACHINES)
def test_every_pair_is_drawn(machine: machine_tables.Machine) -> None:
    columns = len(machine.living) + bool(machine.terminal)
    cells = sum(line.count(" | ") for line in machine_tables.pairs(machine).splitlines()[2:])
    assert cells == len(machine.table) // len(machine.states) * columns


def test_every_combination_is_drawn() -> None:
    assert len(docs_tables.recovery_combinations().splitlines()) == 2 + len(list(recovery.combinations()))
    assert len(docs_tables.recovery_rows().splitlines()) == 2 + len(recovery.TABLE)


@pytest.mark.slow
def test_changes_of_state_are_read_from_the_handlers() -> None:
    assert "RECOVER --> WRITE: LogRecovered, CheckpointWritten" in machine_tables.diagram(machine_tables.PARTITION)
    assert "WAITING --> AWAITED: HandedOver, MemberGone, TimerExpired" in machine_tables.diagram(
        machine_tables.ASSIGNED
    )
    for machine in (machine_tables.PARTITION, machine_tables.ASSIGNED):
        drawn = machine_tables.diagram(machine)
        assert all(f" {state.name}" in drawn for state in machine.states), "a state that nothing leads to"
        assert not any(f"{end.name} --> {other.name}" in drawn for end in machine.terminal for other in machine.states)


@pytest.mark.slow
def test_check_says_which_page_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, written, _ in docs_tables.pages():
        copy = tmp_path / path.relative_to(docs_tables.DOCS)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(written.replace("START", "BEGIN", 3))
    monkeypatch.setattr(docs_tables, "DOCS", tmp_path)
    monkeypatch.setattr(chart, "files", list)
    assert docs_tables.main(["--check"]) == 1
    assert "partition-states.md differs" in capsys.readouterr().err
    assert docs_tables.main([]) == 0
    assert docs_tables.main(["--check"]) == 0
    assert docs_tables.main(["--unknown"]) == 2


def test_a_page_without_its_markers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in docs_tables.PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("nothing here\n")
    monkeypatch.setattr(docs_tables, "DOCS", tmp_path)
    with pytest.raises(ValueError, match=r"has no lines .*states"):
        docs_tables.main([])

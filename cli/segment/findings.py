"""The findings of ``bmq segment verify``, each about a place in a file, and their output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bmq.cli.output import print_json, printable
from bmq.core.aio.subscribers import no_op


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault, or (``is_fault`` False) a note: something that looks odd and is correct."""

    file: str
    what: str
    meaning: str
    is_fault: bool = True
    position: int | None = None
    offset: int | None = None

    def print(self, *, as_json: bool) -> None:
        """Print the finding: two lines for people, or one JSON object."""
        kind = "fault" if self.is_fault else "note"
        if as_json:
            print_json(
                {
                    "kind": kind,
                    "file": self.file,
                    "position": self.position,
                    "offset": self.offset,
                    "what": self.what,
                    "meaning": self.meaning,
                }
            )
            return
        places = [f"position {self.position}"] if self.position is not None else []
        places += [f"offset {self.offset}"] if self.offset is not None else []
        place = f", {', '.join(places)}" if places else ""
        print(f"{printable(f'{kind.upper()} {self.file}{place}: {self.what}')}\n      {printable(self.meaning)}")


class FindingsPrinter:
    """A printer of findings, which also counts them."""

    def __init__(self, *, as_json: bool, before_line: Callable[[], None] = no_op) -> None:
        """Take ``before_line``, which is called before each line, to clear progress from the terminal."""
        self._before_line = before_line
        self.as_json = as_json
        self.files = 0
        self.faults = 0
        self.notes = 0

    def add(self, finding: Finding) -> None:
        """Count a finding and print it."""
        self.faults += finding.is_fault
        self.notes += not finding.is_fault
        self._before_line()
        finding.print(as_json=self.as_json)

    def file_done(self, fields: dict[str, object], text: str) -> None:
        """Print one line for a file that was read to its end."""
        self.files += 1
        self._before_line()
        if self.as_json:
            print_json(fields)
        else:
            print(text)

    def finish(self) -> None:
        """Print the counts of files, faults and notes."""
        if self.as_json:
            print_json({"kind": "summary", "files": self.files, "faults": self.faults, "notes": self.notes})
        else:
            print(f"{_count(self.files, 'file')}, {_count(self.faults, 'fault')}, {_count(self.notes, 'note')}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

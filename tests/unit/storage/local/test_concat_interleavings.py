"""Every interleaving of two concats of the same files, in processes of their own, and their settlement by an owner."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bmq.storage.filesystem import LeaseLost
from bmq.storage.local.filesystem import LocalFileSystem
from tests.unit.storage.local.stepped_calls import SteppedCall, stop_at_system_calls
from tests.unit.storage.local.test_concats import ALL, PARTS, log_of, put_parts

pytestmark = pytest.mark.slow

SOURCES = ["S1", "S2"]
JOINED_BYTES = sum(len(PARTS[name]) for name in ("T", *SOURCES))
CLEANED = "C"
"""The name of the cleaned segment, which hides the target."""


class Settlement:
    """The steps of ``broker.cleanup.former_owners`` on a local root, and what its owner does then: merge or clean."""

    def __init__(self, root: Path, does: str) -> None:
        self._root, self._does = root, does
        self._fs = LocalFileSystem(root, "owner")
        self.known: dict[str, int] = {}
        """The lengths of the files that were listed, by name."""
        self.is_settled = self.is_listing = False

    def run(self) -> None:
        self._list()
        if not self._is_joined and sum(self.known.values()) != JOINED_BYTES:
            self._list()
        sources = [name for name in self.known if name != "T"]
        if sources:
            self._settle(sources)
        self.is_settled = True
        if self._does == "merges":
            if os.path.getsize(self._root / "T") == JOINED_BYTES:
                self._fs._concat("/T", ["/S3"], JOINED_BYTES)
            return
        (self._root / ".clean").write_bytes((self._root / "T").read_bytes()[:JOINED_BYTES])
        os.replace(self._root / ".clean", self._root / CLEANED)
        os.unlink(self._root / "T")

    @property
    def _is_joined(self) -> bool:
        return self.known["T"] >= JOINED_BYTES

    def _settle(self, sources: list[str]) -> None:
        paths = [f"/{name}" for name in sources]
        if self._is_joined:
            self._fs._delete_joined("/T", paths, self.known["T"])
        elif sum(self.known.values()) == JOINED_BYTES:
            self._fs._concat("/T", paths, self.known["T"])

    def _list(self) -> None:
        self.known.clear()
        self.is_listing = True
        for name in ("T", *SOURCES):
            try:
                self.known[name] = os.lstat(self._root / name).st_size
            except FileNotFoundError:
                continue
        self.is_listing = False

    def stops(self, call: str, name: str) -> bool:
        return self.is_listing or stops(call, name)


def stops(call: str, name: str) -> bool:
    """Leave the calls out beside which no other call can change a thing: those that a lock follows, or precedes."""
    return call != "lstat" and (call, name) != ("open", ".concat") and (call != "flock" or name == "T")


class Story:
    """One run: an owner's settlement beside two concats.  ``choices`` are the steps so far, each the number of a call.

    Choice ``KILL`` ends the process of the first concat behind the change of the target: before, it leaves nothing.
    """

    KILL = 3

    def __init__(self, root: Path, does: str, late: Sequence[str]) -> None:
        self.root = root
        put_parts(root)
        self.owner = Settlement(root, does)
        self.calls = [self._concat(SOURCES), self._concat(late), SteppedCall(self.owner.run, self.owner.stops)]

    def _concat(self, sources: Sequence[str]) -> SteppedCall:
        fs = LocalFileSystem(self.root, "process")
        return SteppedCall(lambda: fs._concat("/T", [f"/{name}" for name in sources], len(PARTS["T"])), stops)

    @property
    def choices(self) -> list[int]:
        """The steps that are possible now."""
        possible = [at for at, call in enumerate(self.calls) if not call.is_over]
        is_half_done = self.calls[0].before in [("unlink", name) for name in SOURCES]
        return [*possible, self.KILL] if is_half_done else possible

    def go(self, choice: int) -> None:
        if choice == self.KILL:
            self.calls[0].kill()
        else:
            self.calls[choice].step()
        assert self.log == ALL
        target = self.root / "T"
        assert not target.exists() or ALL.startswith(target.read_bytes()), "no byte is there twice"

    @property
    def log(self) -> bytes:
        """The log's bytes as a reader finds them."""
        cleaned = self.root / CLEANED
        if not cleaned.exists():
            return log_of(self.root)
        left = [name for name in PARTS if name != "T" and (self.root / name).exists()]
        end = ALL.index(PARTS[left[0]]) if left else len(ALL)
        return cleaned.read_bytes()[:end] + b"".join((self.root / name).read_bytes() for name in left)

    @property
    def state(self) -> object:
        """All that later steps depend on: where the calls stand, which files they hold, and which files there are."""
        files = {name: os.stat(self.root / name) for name in os.listdir(self.root) if not name.startswith(".")}
        return (
            tuple((call.before, call.held) for call in self.calls),
            tuple(sorted((name, status.st_size) for name, status in files.items())),
            tuple(self.owner.known.items()),
            self.owner.is_settled,
        )

    def end(self) -> None:
        """Settle what is left, as the next owner does."""
        if CLEANED not in os.listdir(self.root):
            Settlement(self.root, "merges").run()
        assert self.log == ALL
        assert not {*SOURCES} & {*os.listdir(self.root)}


def explore(new: Callable[[], Story]) -> None:
    """Play every interleaving, but go on from each state once."""
    seen: set[object] = set()
    waiting: list[list[int]] = [[]]
    while waiting:
        played = waiting.pop()
        story = new()
        for choice in played:
            story.go(choice)
        while (state := story.state) not in seen and story.choices:
            seen.add(state)
            first, *others = story.choices
            waiting += [[*played, other] for other in others]
            played = [*played, first]
            story.go(first)
        is_over = not story.choices
        for call in story.calls:
            call.kill()
        if is_over:
            story.end()


@pytest.mark.parametrize(
    ("does", "late"), [("merges", SOURCES), ("merges", [*SOURCES, "S3"]), ("cleans", SOURCES)], ids=str
)
def test_no_interleaving_of_two_concats_and_a_settlement_loses_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, late: list[str]
) -> None:
    stop_at_system_calls(monkeypatch)
    stories = list[Story]()

    def new() -> Story:
        root = tmp_path / str(len(stories))
        root.mkdir()
        stories.append(Story(root, does, late))
        return stories[-1]

    explore(new)
    refusals = {str(call.error) for story in stories for call in story.calls if isinstance(call.error, LeaseLost)}
    assert refusals >= {"/T has a writer", "/T was replaced or deleted meanwhile"}
    assert {story.owner.is_settled for story in stories} == {True, False}

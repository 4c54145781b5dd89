"""Stacks that a profiler sampled, counted and drawn as a flame graph.  Pure: no process, no file.

A *folded* stack is one line: its frames from the outermost to the innermost, ``;`` between them, and how often it was
seen.  In the graph a frame is as wide as the samples in which it was on the stack, and stands on its caller.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape

Stacks = Mapping[tuple[str, ...], int]
WIDTH, ROW, MARGIN = 1200, 17, 8
LEAST_SHARE = 0.003
"""Frames narrower than this share of the samples are not drawn."""
CHARACTER = 6.4
"""Width of a character of the graph's text, at most."""
COLOURS = {
    "core": "#56b4e9", "endpoint": "#7fc8a9", "proxy": "#e8c76a", "broker": "#e69f00", "storage": "#cc79a7",
    "meta": "#9fb8d8", "coordinator": "#9fb8d8", "controller": "#9fb8d8", "server": "#bbbbbb",
}  # fmt: skip
"""Colours by the package that a frame lies in: of Okabe and Ito, lightened, so that dark text stays readable."""
OTHER = "#d9d9d9"
_FRAME = re.compile(r"^(?P<function>.*) \((?P<file>[^()]*?)(?::\d+)?\)$")
_NAMELESS = "?"


def parse_folded(lines: Iterable[str], *, without: str = "") -> Counter[tuple[str, ...]]:
    """Count folded stacks, with frames as ``function (package/file.py)``: lines of one function are one frame.

    ``without`` is what file names begin with and is left out.  py-spy has no name for a stack that ended while it read:
    its time is that of the frame ``?``.  Raises ValueError if a line is no folded stack.
    """
    stacks: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        text, space, count = line.rstrip().rpartition(" ")
        if not space or not count.isdigit():
            raise ValueError(f"not a folded stack: {line!r}")
        if not text.strip():
            stacks[(_NAMELESS,)] += int(count)
            continue
        stacks[tuple(_frame(frame, without) for frame in text.split(";"))] += int(count)
    return stacks


def folded(stacks: Stacks) -> str:
    """Return the stacks as folded lines, sorted, which `parse_folded` reads."""
    return "".join(f"{';'.join(frames)} {count}\n" for frames, count in sorted(stacks.items()))


def above(stacks: Stacks, caller: str) -> Counter[tuple[str, ...]]:
    """Return the stacks from the innermost frame of function ``caller`` on, without it: what every stack has below.

    Stacks without that function are kept whole.
    """
    cut: Counter[tuple[str, ...]] = Counter()
    for frames, count in stacks.items():
        found = [place for place, frame in enumerate(frames) if frame.partition(" (")[0] == caller]
        rest = frames[found[-1] + 1 :] if found else frames
        cut[rest or ("the event loop and its system calls",)] += count
    return cut


def pruned(stacks: Stacks, least_share: float) -> Counter[tuple[str, ...]]:
    """Return the stacks, cut above the last frame that has ``least_share`` of all samples: single samples say nothing.

    What was cut counts as work of the frame that called it.
    """
    least = sum(stacks.values()) * least_share
    seen: Counter[tuple[str, ...]] = Counter()
    for frames, count in stacks.items():
        for end in range(1, len(frames) + 1):
            seen[frames[:end]] += count
    cut: Counter[tuple[str, ...]] = Counter()
    for frames, count in stacks.items():
        end = len(frames)
        while end > 1 and seen[frames[:end]] < least:
            end -= 1
        cut[frames[:end]] += count
    return cut


def self_shares(stacks: Stacks) -> dict[str, float]:
    """Return the share of samples in which each function itself was at work, the largest first."""
    total = sum(stacks.values())
    own: Counter[str] = Counter()
    for frames, count in stacks.items():
        own[frames[-1]] += count
    return {frame: count / total for frame, count in own.most_common()}


def package_of(frame: str) -> str:
    """Return the package that a frame lies in, "" if it is none of ours."""
    found = _FRAME.match(frame)
    package = found["file"].partition("/")[0] if found and "/" in found["file"] else ""
    return package if package in COLOURS else ""


def draw(stacks: Stacks, title: str) -> str:
    """Return the flame graph as SVG: the outermost frames at the bottom, the widest first."""
    root = _Node(title)
    for frames, count in stacks.items():
        root.add(frames, count)
    if not root.count:
        root = _Node(f"{title}, no samples", 1)  # a process at rest may have used no processor time
    total = root.count
    depth = root.depth(total * LEAST_SHARE)
    height = (depth + 1) * ROW + 2 * MARGIN
    parts: list[str] = []
    _draw(root, 0.0, 0, total, height, parts)
    box = f"0 0 {WIDTH} {height}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="monospace" font-size="10">'
    background = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join((head, background, *parts, "</svg>\n"))


@dataclass(slots=True)
class _Node:
    """A frame in one place of the graph."""

    frame: str
    count: int = 0
    callees: dict[str, _Node] = field(default_factory=dict)

    def add(self, frames: tuple[str, ...], count: int) -> None:
        node = self
        node.count += count
        for frame in frames:
            node = node.callees.setdefault(frame, _Node(frame))
            node.count += count

    def depth(self, least: float) -> int:
        return 1 + max((each.depth(least) for each in self.callees.values() if each.count >= least), default=0)


def _draw(node: _Node, before: float, level: int, total: int, height: int, parts: list[str]) -> None:
    """Draw a frame and those that it called.  ``before``: samples to its left; ``level``: its row from the bottom."""
    scale = (WIDTH - 2 * MARGIN) / total
    x, width = MARGIN + before * scale, node.count * scale
    y = height - MARGIN - (level + 1) * ROW
    label = f"{node.frame}: {node.count / total:.1%}"
    room = int((width - 4) / CHARACTER)
    shown = label if len(label) <= room else node.frame[: room - 1] + "…" if room > 3 else ""
    colour = COLOURS.get(package_of(node.frame), OTHER)
    parts.append(
        f"<g><title>{escape(label)}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.5):.1f}" height="{ROW - 1}" fill="{colour}"/>'
        f'<text x="{x + 3:.1f}" y="{y + 12}" fill="#111111">{escape(shown)}</text></g>'
    )
    for callee in sorted(node.callees.values(), key=lambda each: (-each.count, each.frame)):
        if callee.count >= total * LEAST_SHARE:
            _draw(callee, before, level + 1, total, height, parts)
        before += callee.count


def _frame(text: str, without: str) -> str:
    found = _FRAME.match(text)
    if found is None:
        return text
    file = found["file"].removeprefix(without)
    if file.startswith("/") or "site-packages" in file:
        file = file.rpartition("/")[2]  # of another package: its place on this machine says nothing
    return f"{found['function']} ({file})"

"""Sampled stacks: parsed, cut, counted and drawn."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.flame_graph import LEAST_SHARE, WIDTH, above, draw, folded, package_of, parse_folded, pruned, self_shares

RUN = "main (/src/bmq:3);run (/src/cli/main.py:10)"
LINES = [
    f"{RUN};append (/src/broker/owner.py:5);check (/src/core/records/check.py:7) 30",
    f"{RUN};append (/src/broker/owner.py:9);check (/src/core/records/check.py:8) 10",
    f"{RUN};append (/src/broker/owner.py:5) 40",
    f"{RUN} 20",
]
APPEND, CHECK = "append (broker/owner.py)", "check (core/records/check.py)"
NAMESPACE = "{http://www.w3.org/2000/svg}"


def stacks() -> dict[tuple[str, ...], int]:
    return dict(parse_folded(LINES, without="/src/"))


def test_lines_of_a_function_are_one_frame() -> None:
    head = ("main (bmq)", "run (cli/main.py)")
    assert stacks() == {(*head, APPEND, CHECK): 40, (*head, APPEND): 40, head: 20}


def test_a_file_elsewhere_has_its_name_alone() -> None:
    line = "wait (/usr/lib/python3/selectors.py:1);call (/src/.venv/lib/site-packages/grpc/aio.py:3);<native> 1"
    assert list(parse_folded([line], without="/src/")) == [("wait (selectors.py)", "call (aio.py)", "<native>")]


@pytest.mark.parametrize("line", ["", "main (a.py:1)", "main (a.py:1) many"])
def test_what_is_no_folded_stack_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="not a folded stack"):
        parse_folded([line])


def test_a_stack_without_a_name_keeps_its_time() -> None:
    assert parse_folded(["main (a.py:1) 2", " 1"]) == {("main (a.py)",): 2, ("?",): 1}


def test_folded_lines_are_read_again() -> None:
    assert parse_folded(folded(stacks()).splitlines()) == stacks()


def test_what_every_stack_has_below_is_left_out() -> None:
    cut = above(stacks(), "run")
    assert cut == {(APPEND, CHECK): 40, (APPEND,): 40, ("the event loop and its system calls",): 20}
    assert above({("a", "b"): 1}, "run") == {("a", "b"): 1}, "a thread that does not run the loop"


def test_rare_frames_count_as_their_callers() -> None:
    found = {("a", "b", "c"): 1, ("a", "b", "d"): 1, ("a", "b"): 97, ("e",): 1}
    assert pruned(found, 0.02) == {("a", "b"): 99, ("e",): 1}, "a stack keeps its outermost frame"
    assert pruned(found, 0.01) == found


def test_time_belongs_to_the_innermost_function() -> None:
    assert self_shares(above(stacks(), "run")) == {
        CHECK: 0.4, APPEND: 0.4, "the event loop and its system calls": 0.2,
    }  # fmt: skip


def test_packages_are_those_of_this_project() -> None:
    assert package_of(CHECK) == "core"
    assert package_of("wait (selectors.py)") == package_of("run (asyncio/runners.py)") == package_of("<native>") == ""


def test_frames_stand_on_their_callers_and_are_as_wide_as_their_samples() -> None:
    found = {(APPEND, CHECK): 50, (APPEND,): 49, ("a <rare> one",): 1, ("too rare",): 0}
    image = ElementTree.fromstring(draw(found, "a load"))
    frames = {
        group.findtext(f"{NAMESPACE}title"): group.find(f"{NAMESPACE}rect") for group in image.iter(f"{NAMESPACE}g")
    }
    sizes = {}
    for title, rect in frames.items():
        assert title is not None
        assert rect is not None
        x, y, width = (float(rect.get(name, "")) for name in ("x", "y", "width"))
        assert x >= 0
        assert x + width <= WIDTH
        sizes[title.rpartition(":")[0]] = (x, y, width)
    assert set(sizes) == {"a load", APPEND, CHECK, "a <rare> one"}
    assert sizes[CHECK][0] == sizes[APPEND][0]
    assert sizes[CHECK][1] < sizes[APPEND][1] < sizes["a load"][1]
    assert sizes[CHECK][2] == pytest.approx(sizes["a load"][2] / 2, rel=0.01)
    assert sizes["a <rare> one"][0] > sizes[APPEND][0] + sizes[APPEND][2] - 1


def test_frames_too_narrow_to_see_are_not_drawn() -> None:
    few = int(LEAST_SHARE * 10_000) - 1
    assert "narrow" not in draw({("wide",): 10_000 - few, ("narrow",): few}, "a load")


def test_a_process_that_used_no_processor_time_has_an_empty_graph() -> None:
    assert "at rest, no samples" in draw({}, "at rest")
    assert self_shares({}) == {}

"""Members that were declared dead because they were silent, and join again."""

from __future__ import annotations

from bmq.controller.silent_members import SILENT_MAX, SilentMembers


def test_a_member_that_joins_after_a_silence_is_unproven_until_it_responds() -> None:
    silent = SilentMembers()
    silent.note("a", 5.0)
    assert not silent.joined("b", 8.0)
    assert silent.joined("a", 8.0)
    assert silent.unproven == {"a"}
    assert silent.responded("a") == 3.0
    assert silent.responded("a") is None
    assert not silent.unproven
    assert not silent.joined("a", 9.0), "its silence is over"


def test_an_unproven_member_that_is_gone_is_forgotten() -> None:
    silent = SilentMembers()
    silent.note("a", 5.0)
    silent.joined("a", 8.0)
    silent.forget("a")
    silent.forget("never-silent")
    assert not silent.unproven
    assert silent.responded("a") is None


def test_the_silence_of_a_bounded_number_of_members_is_known() -> None:
    silent = SilentMembers()
    for number in range(SILENT_MAX + 1):
        silent.note(f"m{number}", 1.0)
    assert not silent.joined("m0", 2.0)
    assert silent.joined("m1", 2.0)

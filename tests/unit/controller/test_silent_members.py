"""Members that were declared dead because they were silent, and join again."""

from __future__ import annotations

from bmq.controller.silent_members import SILENT_MAX, SilentMembers


def test_a_member_that_joins_after_a_silence_is_unproven_until_it_responds() -> None:
    silent = SilentMembers()
    silent.note("a", 5.0)
    silent.joined("b", 8.0)
    silent.joined("a", 8.0)
    assert silent.unproven == {"a"}
    assert silent.responded("a") == 3.0
    assert silent.responded("a") is None
    assert not silent.unproven
    silent.joined("a", 9.0)
    assert not silent.unproven, "its silence is over"


def test_an_unproven_member_that_is_gone_is_unproven_again_once_it_joins() -> None:
    silent = SilentMembers()
    silent.note("a", 5.0)
    silent.joined("a", 8.0)
    silent.gone("a")
    silent.gone("never-silent")
    assert not silent.unproven
    silent.joined("a", 11.0)
    silent.joined("never-silent", 11.0)
    assert silent.unproven == {"a"}
    assert silent.responded("a") == 6.0


def test_the_silence_of_a_bounded_number_of_members_is_known() -> None:
    silent = SilentMembers()
    for number in range(SILENT_MAX + 1):
        silent.note(f"m{number}", 1.0)
    silent.joined("m0", 2.0)
    silent.joined("m1", 2.0)
    assert silent.unproven == {"m1"}


def test_a_member_that_responds_after_a_silence_is_not_silent_when_it_joins_again() -> None:
    silent = SilentMembers()
    silent.note("a", 5.0)
    assert silent.responded("a") is None, "it has not joined since"
    silent.joined("a", 9.0)
    assert not silent.unproven

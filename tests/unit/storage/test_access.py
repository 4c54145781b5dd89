"""Rights that an operator asks for, and those of them that an entry of the namespace lacks."""

from bmq.storage.access import NO_ACCESS, Access


def test_a_file_has_its_folders_mode_without_x() -> None:
    assert Access(group="g", mode=0o750).of_file() == Access(group="g", mode=0o640)
    assert NO_ACCESS.of_file() is NO_ACCESS


def test_what_is_not_asked_for_is_met() -> None:
    assert NO_ACCESS.is_met("any", "any", 0o777)
    wanted = Access(group="readers", mode=0o750)
    assert wanted.is_met("any", "readers", 0o750)
    assert not wanted.is_met("any", "others", 0o750)
    assert not wanted.is_met("any", "readers", 0o755)


def test_only_what_is_missing_is_asked_of_storage() -> None:
    wanted = Access(owner="spark", group="readers", mode=0o750)
    assert wanted.missing("spark", "hadoop", 0o750) == Access(group="readers")
    assert wanted.missing("spark", "readers", 0o750) == NO_ACCESS
    assert not wanted.missing("spark", "readers", 0o750).is_given

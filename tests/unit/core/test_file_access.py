"""Rights that an operator asks for, and those of them that an entry of the namespace lacks."""

import pytest

from bmq.core.file_access import NO_ACCESS, Access, access_of, check_mode, check_name


def test_a_file_has_its_folders_mode_without_x() -> None:
    assert Access(group="g", mode=0o750).of_file() == Access(group="g", mode=0o640)
    assert NO_ACCESS.of_file() is NO_ACCESS


def test_only_what_is_missing_is_asked_of_storage() -> None:
    wanted = Access(owner="spark", group="readers", mode=0o750)
    assert wanted.missing("spark", "hadoop", 0o750) == Access(group="readers")
    assert wanted.missing("spark", "readers", 0o755) == Access(mode=0o750)
    assert wanted.missing("spark", "readers", 0o750) == NO_ACCESS
    assert not NO_ACCESS.missing("any", "any", 0o777).is_given


@pytest.mark.parametrize(("mode", "readable"), [(0o711, 0o755), (0o710, 0o750), (0o700, 0o700), (0o755, 0o755)])
def test_what_readers_of_any_topic_need_may_be_read_by_all_who_may_pass(mode: int, readable: int) -> None:
    assert Access(mode=mode).readable() == Access(mode=readable)
    assert NO_ACCESS.readable() is NO_ACCESS


def test_the_configs_of_a_topic_are_its_access() -> None:
    values = {"storage.owner": "spark", "storage.group": "readers", "storage.mode": "0750", "retention.ms": "5"}
    assert access_of(values) == Access("spark", "readers", 0o750)
    assert access_of({}) == NO_ACCESS
    assert str(access_of(values)) == "owner spark, group readers, mode 750"
    assert str(NO_ACCESS) == "as storage has it"


@pytest.mark.parametrize("mode", ["", "700", "750", "755", "0770", "777"])
def test_a_mode_is_a_folders_in_octal(mode: str) -> None:
    assert check_mode(mode) == ""


@pytest.mark.parametrize("mode", ["75", "650", "550", "050", "0o750", "1750", "rwx", "758", "\u0667\u0665\u0665"])
def test_a_mode_without_its_owners_rights_or_of_another_form_is_refused(mode: str) -> None:
    assert check_mode(mode)
    with pytest.raises(ValueError, match=r"storage\.mode="):
        access_of({"storage.mode": mode})


@pytest.mark.parametrize("name", ["", "spark", "_svc", "team-a.readers", "1001", "DOMAIN_x", "machine$", "x@REALM"])
def test_names_of_users_and_groups(name: str) -> None:
    assert check_name(name) == ""


@pytest.mark.parametrize("name", ["-rf", "a b", "a:b", "a/b", "ä", "a" * 300, "a\nb", ".x"])
def test_other_names_are_refused(name: str) -> None:
    assert check_name(name)

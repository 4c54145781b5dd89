"""A process serves once it is made, while every check says so."""

from __future__ import annotations

from bmq.server.serving_checks import ServingChecks


def test_a_process_serves_from_its_first_check_on_while_all_agree() -> None:
    checks, well = ServingChecks(), {"broker": True, "disk": True}
    assert not checks.is_serving(), "its roles are not made"
    checks.add(lambda: well["broker"])
    assert checks.is_serving()
    checks.add(lambda: well["disk"])
    assert checks.is_serving()
    for name in well:
        well[name] = False
        assert not checks.is_serving()
        well[name] = True

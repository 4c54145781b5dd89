"""The files in `deploy/`: what they name exists, and they say the same as the code.

Building the image and starting every role from it: `tests/integration/test_packages.py`.
"""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bmq.cli.parsers.serve import DEFAULTS
from bmq.cli.parsers.tree import build_parser
from bmq.core.config import OPTIONS, ROLES, NodeConfig, environment_name, parse_address
from bmq.core.config_sources import load
from tests.services.image import DOCKERFILE, ROOT, Image, Instruction, context, parse

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOPS = {folder.removeprefix("bmq.") for folder in PROJECT["tool"]["setuptools"]["package-dir"]}
PINS = ROOT / "deploy" / "requirements.txt"
COMPOSE = ROOT / "deploy" / "compose.yaml"
UNIT = ROOT / "deploy" / "systemd" / "bmq.service"
CLOSES_FILES_S = 20.0
"""After `drain_ms`: what a process may take to close its files, see docs/operations.md."""


@pytest.fixture(scope="module")
def dockerfile() -> list[Instruction]:
    return parse(DOCKERFILE.read_text())


def only(dockerfile: list[Instruction], keyword: str) -> Instruction:
    """Return the last stage's instruction of this kind."""
    last = max(index for index, step in enumerate(dockerfile) if step.keyword == "FROM")
    (found,) = [step for step in dockerfile[last:] if step.keyword == keyword]
    return found


def settings_of(dockerfile: list[Instruction]) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in only(dockerfile, "ENV").text.split())


def test_the_build_sees_what_the_wheel_is_made_of_and_nothing_else() -> None:
    assert {str(path) for path in context()} == TOPS | {
        "deploy/requirements.txt", "pyproject.toml", "README.md", "LICENSE",
    }  # fmt: skip
    assert all((ROOT / path).exists() for path in context())


def pinned() -> dict[str, tuple[Requirement, list[str]]]:
    """Return each entry of the image's requirements, by its name, with its hashes."""
    text = PINS.read_text().replace("\\\n", " ")
    lines = [line.split("#")[0].split() for line in text.splitlines() if not line.lstrip().startswith("#")]
    found: dict[str, tuple[Requirement, list[str]]] = {}
    for words in filter(None, lines):
        hashes = [word.removeprefix("--hash=") for word in words if word.startswith("--")]
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), words
        requirement = Requirement(" ".join(word for word in words if not word.startswith("--")))
        found[canonicalize_name(requirement.name)] = (requirement, hashes)
    return found


def wanted(dockerfile: list[Instruction]) -> list[Requirement]:
    """Return BMQ's dependencies with those of the extras that the image installs."""
    (extras,) = {found[1] for step in dockerfile if (found := re.search(r"'bmq\[([\w,]+)\]'", step.text))}
    optional = PROJECT["project"]["optional-dependencies"]
    lines = [*PROJECT["project"]["dependencies"], *(line for extra in extras.split(",") for line in optional[extra])]
    return [Requirement(line) for line in lines]


def test_each_dependency_of_the_image_has_one_version_within_its_bounds_and_hashes(
    dockerfile: list[Instruction],
) -> None:
    entries = pinned()
    for name, (requirement, hashes) in entries.items():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), name
        assert hashes, name
    for requirement in wanted(dockerfile):
        ((_, version),) = [
            (each.operator, each.version) for each in entries[canonicalize_name(requirement.name)][0].specifier
        ]
        assert requirement.specifier.contains(version), f"{requirement}: {version}: run `make pins`"


def test_the_image_is_built_from_what_is_pinned_and_from_no_named_index(dockerfile: list[Instruction]) -> None:
    collected = [step.text for step in dockerfile if " pip wheel " in step.text and "--no-deps" not in step.text]
    assert len(collected) == 1
    assert "--require-hashes --requirement /src/requirements.txt" in collected[0]
    assert all("--no-index" in step.text for step in dockerfile if " install " in step.text and "pip" in step.text)
    assert "://" not in PINS.read_text()
    extras = re.search(r"^PINS_EXTRAS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert extras is not None
    assert any(f"'bmq[{','.join(extras[1].split())}]'" in step.text for step in dockerfile)


def test_both_stages_have_one_base_that_a_digest_may_name(dockerfile: list[Instruction]) -> None:
    assert [step.text.split()[0] for step in dockerfile if step.keyword == "FROM"] == ["${BASE}", "${BASE}"]
    before = [step.text.split("=")[0] for step in dockerfile[:2]]
    assert before == ["PYTHON", "BASE"]


def test_the_image_runs_as_nobody_in_particular(dockerfile: list[Instruction]) -> None:
    """A number, not a name: Kubernetes' runAsNonRoot believes nothing else."""
    user, _, group = only(dockerfile, "USER").text.partition(":")
    assert int(user) > 1000
    assert int(group) > 1000


def test_the_images_settings_are_settings(dockerfile: list[Instruction]) -> None:
    known = {environment_name(option): option.name for option in OPTIONS}
    named = {name: value for name, value in settings_of(dockerfile).items() if name.startswith("BMQ_")}
    assert set(named) <= set(known)
    ports = {parse_address(value, name)[1] for name, value in named.items()}
    assert {int(port) for port in only(dockerfile, "EXPOSE").text.split()} == ports


def test_the_images_commands_are_commands(dockerfile: list[Instruction]) -> None:
    parser = build_parser()
    assert only(dockerfile, "ENTRYPOINT").words == ["bmq"]
    assert parser.parse_args(only(dockerfile, "CMD").words).subcommand == "serve"
    program, *arguments = Instruction("CMD", only(dockerfile, "HEALTHCHECK").text.partition("CMD")[2]).words
    assert program == "bmq"
    assert parser.parse_args(arguments).subcommand == "health"


def test_only_the_images_own_folders_are_moved() -> None:
    image = Image(Path("/x"))
    assert (
        image.here("install /opt/bmq/bin --find-links /dist bmq") == "install /x/opt/bmq/bin --find-links /x/dist bmq"
    )
    assert image.here("/usr/bin:/srcs /distribution /bin") == "/usr/bin:/srcs /distribution /bin"


# ------------------------------------------------------------------------------------------------------------ systemd


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit["Service"]


def test_the_unit_starts_a_server(service: configparser.SectionProxy) -> None:
    program, *arguments = service["ExecStart"].split()
    assert Path(program).name == "bmq"
    assert build_parser().parse_args(arguments).subcommand == "serve"


def test_the_unit_gives_a_server_time_to_end(service: configparser.SectionProxy) -> None:
    assert float(service["TimeoutStopSec"]) >= NodeConfig().drain_ms / 1000 + CLOSES_FILES_S
    assert service["Restart"] == "on-failure", "one that an operator has drained stays away"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_takes_the_unit_and_finds_it_safe(tmp_path: Path) -> None:
    """Verify the unit with systemd: no setting is unknown, and its security rating, 10 being the worst, is under 2."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/bmq/bin/bmq", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if UNIT.name in line]) == (0, [])
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)]
    rated = subprocess.run(command, capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout


# ------------------------------------------------------------------------------------------------------------ compose


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Return the compose file's services, merge keys applied."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def of_bmq(services: dict[str, Any]) -> dict[str, NodeConfig]:
    """Return the settings of each of our processes: the image's, with the service's over them."""
    image = settings_of(parse(DOCKERFILE.read_text()))
    return {
        name: load(environment={**image, **service["environment"]}, flags={}, defaults=DEFAULTS)
        for name, service in services.items()
        if service["image"] == "bmq"
    }


def test_the_compose_file_is_one() -> None:
    """Validate by the compose specification: no unknown keys, and whatever a service names exists."""
    compose_spec.PyCompose.from_json(json.dumps(yaml.safe_load(COMPOSE.read_text()))).validate()


def test_every_role_is_there_and_nothing_is_misspelt(services: dict[str, Any]) -> None:
    configs = of_bmq(services)
    assert {role for config in configs.values() for role in config.roles} == set(ROLES)
    known = {environment_name(option) for option in OPTIONS} | {"HADOOP_USER_NAME"}
    for name in configs:
        assert set(services[name]["environment"]) <= known, name
    places = {(config.root, config.meta, config.cluster) for config in configs.values()}
    assert len(places) == 1, "they are one cluster"


def test_clients_reach_each_proxy_where_they_are_told(services: dict[str, Any]) -> None:
    """Reach proxies from this machine by the published port, from other containers by the service's name."""
    outside = []
    for name, config in of_bmq(services).items():
        published = dict(port.removeprefix("127.0.0.1:").split(":") for port in services[name].get("ports", ()))
        if "proxy" not in config.roles:
            assert not published, f"{name} serves no client"
            continue
        for each in config.kafka_listeners():
            if each.name == "OUTSIDE":
                assert (each.advertised_host, published[str(each.advertised_port)]) == ("localhost", str(each.port))
                outside.append(each.advertised_port)
            else:
                assert (each.advertised_host, each.advertised_port) == (name, each.port)
    assert len(outside) == len(set(outside)) == 2
    assert f"localhost:{outside[0]},localhost:{outside[1]}" in COMPOSE.read_text()


def test_containers_have_time_to_end_and_no_more_rights_than_the_chart_gives(services: dict[str, Any]) -> None:
    for name, config in of_bmq(services).items():
        service = services[name]
        assert float(service["stop_grace_period"].removesuffix("s")) >= config.drain_ms / 1000 + CLOSES_FILES_S
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])

"""A pod's environment on this machine: as Kubernetes makes it, with mounts where they lie here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.services.netns import Machine
from tests.services.pods import Node, Pod, expand, here


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)-$(B)", "1-two"),
        ("$(C)", "$(C)"),
        ("$$(A)", "$(A)"),
        ("$A ${A} $", "$A ${A} $"),
    ],
)
def test_references_are_expanded_as_in_kubernetes(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1", "B": "two"}) == expanded


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/etc/bmq/config/proxy.toml", "/tmp/p/config/proxy.toml"),
        ("/etc/bmq/configuration", "/etc/bmq/configuration"),
        ("etcd://h:1?ca=/etc/tls/ca.crt&key=/etc/tls/k", "etcd://h:1?ca=/tmp/p/tls/ca.crt&key=/tmp/p/tls/k"),
        ("hdfs://h:1/tmp/x", "hdfs://h:1/tmp/x"),
        ("/tmp", "/tmp/p/tmp"),
    ],
)
def test_paths_below_mounts_are_rewritten_once(text: str, found: str) -> None:
    folders = {"/etc/bmq/config": "config", "/etc/tls": "tls", "/tmp": "tmp"}
    assert here(text, {mount: Path("/tmp/p", name) for mount, name in folders.items()}) == found


def test_a_container_has_the_images_environment_and_its_own(tmp_path: Path) -> None:
    """Build a container's environment and its command, prefixed with the command that enters its machine."""
    env = [
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}},
        {"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}},
        {"name": "NONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['none']"}}},
        {"name": "BMQ_ADVERTISE", "value": "$(NAME)-$(INDEX):9092"},
    ]
    container = {"name": "bmq", "command": ["bmq", "serve"], "env": env}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    pod = Pod(
        "orders-proxy-1", template, Machine("p1", "ns1", "10.0.0.1"), tmp_path, files={}, index=1,
        image={"HOME": "/home", "INDEX": "replaced"}, node=Node("n", "10.0.0.2", "rack-1"),
    )  # fmt: skip
    command = pod.command(container, {})
    assert command[:6] == ["ip", "netns", "exec", "ns1", "env", "-i"]
    assert {"HOME=/home", "INDEX=1", "ZONE=rack-1", "NONE=", "BMQ_ADVERTISE=$(NAME)-1:9092"} <= set(command)
    assert "INDEX=replaced" not in command
    assert command[-2:] == ["bmq", "serve"]

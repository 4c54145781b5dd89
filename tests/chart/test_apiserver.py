"""The chart in a real API server: what it renders is taken as it stands, and a release lives and ends as it should."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.drawn import CHART
from tests.chart.render import NAMESPACE, RELEASE, Object, ci_values, run_helm, template
from tests.services.kubernetes_api import ApiServer, KubectlFailed

pytestmark = pytest.mark.apiserver
KINDS = "all,cm,sa,netpol,pdb,hpa,ingress,secret,servicemonitor,prometheusrule"
SELECTOR = f"app.kubernetes.io/instance={RELEASE}"
MINIMAL = CHART / "ci" / "minimal-values.yaml"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.kubectl("create", "namespace", NAMESPACE)
        levels = [f"pod-security.kubernetes.io/{each}=restricted" for each in ("warn", "enforce")]
        server.kubectl("label", "namespace", NAMESPACE, *levels)
        yield server


def apply_dry(server: ApiServer, objects: Sequence[Object]) -> str:
    """Return what kubectl says of each object.  A warning is an error."""
    return server.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-",
        text=yaml.safe_dump_all(objects),
    )  # fmt: skip


@pytest.mark.parametrize("values", ci_values(), ids=lambda path: path.stem)
def test_what_is_rendered_is_taken(server: ApiServer, values: Path) -> None:
    """Apply all objects (dry) without a warning: no field is deprecated, no pod refused by the level `restricted`."""
    objects = template(values=[values])
    assert len(apply_dry(server, objects).splitlines()) == len(objects)


def test_a_field_that_is_not_known_is_refused(server: ApiServer) -> None:
    """Apply an object with an unknown field: it is refused, so the test of what is rendered can fail."""
    (service, *_) = [each for each in template(values=[MINIMAL]) if each["kind"] == "Service"]
    service["spec"]["publishNotReady"] = True
    with pytest.raises(KubectlFailed, match="publishNotReady"):
        apply_dry(server, [service])


def test_a_pod_that_may_do_more_is_refused(server: ApiServer) -> None:
    objects = template("--set", "securityContext.allowPrivilegeEscalation=true", values=[MINIMAL])
    with pytest.raises(KubectlFailed, match="would violate PodSecurity"):
        apply_dry(server, [each for each in objects if each["kind"] == "Deployment"])


def kept(server: ApiServer) -> dict[tuple[str, str], Any]:
    """Return what of the release is there, by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): each for each in server.objects(NAMESPACE, KINDS, SELECTOR)}


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(server: ApiServer) -> None:
    def helm(*arguments: str) -> str:
        return run_helm(*arguments, "--namespace", NAMESPACE, environment=server.environment)

    helm("install", RELEASE, str(CHART), "--values", str(MINIMAL))
    installed = kept(server)
    secret = ("Secret", "orders-bmq-internal")
    proxies, config = ("StatefulSet", "orders-bmq-proxy"), ("ConfigMap", "orders-bmq-config")
    assert installed[proxies]["spec"]["replicas"] == 3
    template_before = installed[proxies]["spec"]["template"]

    # More proxies are more Services, and no reason for any pod to start again.
    helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", "proxy.replicas=5")
    scaled = kept(server)
    assert set(scaled) - set(installed) == {("Service", f"orders-bmq-proxy-{number}") for number in (3, 4)}
    assert scaled[proxies]["spec"]["replicas"] == 5
    assert scaled[proxies]["spec"]["template"] == template_before

    # The secret between processes is found by `lookup`, and stays: pods that show another one would be refused.
    assert scaled[secret]["data"] == installed[secret]["data"]

    # A setting of brokers restarts brokers, and no other pod.
    helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", "broker.config.block_bytes=67108864")
    changed = kept(server)
    assert "67108864" in changed[config]["data"]["broker.toml"]
    workloads = [key for key in changed if key[0] in ("StatefulSet", "Deployment")]
    again = [key for key in workloads if changed[key]["spec"]["template"] != scaled[key]["spec"]["template"]]
    assert again == [("Deployment", "orders-bmq-broker")]

    # From one mode to the other, and back.
    helm("upgrade", RELEASE, str(CHART), "--reuse-values", "--set", "mode=combined")
    combined = kept(server)
    assert ("StatefulSet", "orders-bmq-node") in combined
    assert not {proxies, ("Deployment", "orders-bmq-broker")} & set(combined)
    helm("rollback", RELEASE, "1")
    assert set(kept(server)) == set(installed)
    assert kept(server)[proxies]["spec"] == installed[proxies]["spec"]

    history = json.loads(helm("history", RELEASE, "--output", "json"))
    assert [each["status"] for each in history] == ["superseded"] * 4 + ["deployed"]
    assert kept(server)[secret]["data"] == installed[secret]["data"]
    helm("uninstall", RELEASE)
    assert set(kept(server)) == {secret}

    # The same release, installed again, has the secret that was kept.
    helm("install", RELEASE, str(CHART), "--values", str(MINIMAL))
    assert kept(server)[secret]["data"] == installed[secret]["data"]
    helm("uninstall", RELEASE)
    server.kubectl("delete", "secret", "-n", NAMESPACE, "orders-bmq-internal")
    assert kept(server) == {}


def test_notes_tell_how_to_connect(server: ApiServer) -> None:
    output = run_helm(
        "install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=server", "--values",
        str(CHART / "ci" / "trial-values.yaml"), environment=server.environment,
    )  # fmt: skip
    notes = output.partition("NOTES:")[2]
    assert f"bootstrap.servers=orders-bmq-bootstrap.{NAMESPACE}.svc.cluster.local:9092" in notes
    assert "WARNING: etcd.trial is for a trial" in notes
    assert "WARNING: networkPolicy.enabled is false" in notes
    assert "Kafka listener INTERNAL, port 9092, PLAINTEXT: set listener.protocol=SASL_SSL" in notes
    assert "HTTP, port 9080: set http.authentication=basic" in notes


def test_notes_of_a_secured_release_name_no_open_port(server: ApiServer) -> None:
    output = run_helm(
        "install", RELEASE, str(CHART), "--namespace", NAMESPACE, "--dry-run=server", "--values",
        str(CHART / "ci" / "secured-values.yaml"), environment=server.environment,
    )  # fmt: skip
    notes = output.partition("NOTES:")[2]
    assert "The user admin is written into the metadata store" in notes
    assert "https://127.0.0.1:9080" in notes
    assert "WARNING" not in notes.replace("WARNING: Prometheus reaches the metrics from this namespace only", "")

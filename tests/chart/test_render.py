"""The rendered chart: linted, valid for three versions of Kubernetes, refused where values contradict each other."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate.utils
import pytest
from kubernetes_validate import SchemaNotFoundError, ValidationError, validate

from bmq.server.otel import TraceSettings, wanted_of
from tests.chart.drawn import CHART
from tests.chart.render import NAMESPACE, RELEASE, HelmFailed, Object, ci_values, find, run_helm, template

VERSIONS = ("1.31", "1.34", "1.37")
CUSTOM = {"ServiceMonitor": "monitoring.coreos.com/v1", "PrometheusRule": "monitoring.coreos.com/v1"}
"""Kinds that are not Kubernetes' own: `make chart-apiserver` has their definitions."""
MINIMAL = CHART / "ci" / "minimal-values.yaml"


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Cache the definitions of each version, whose megabytes every check would read again."""
    with pytest.MonkeyPatch.context() as patch:
        read = functools.cache(kubernetes_validate.utils.schema_contents)
        patch.setattr(kubernetes_validate.utils, "schema_contents", read)
        yield


def test_lint() -> None:
    """Lint the chart without values too: settings that must be set are then named, and the lint does not fail."""
    for values in ([], *(["--values", str(path)] for path in ci_values())):
        assert "0 chart(s) failed" in run_helm("lint", "--strict", str(CHART), *values)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", ci_values(), ids=lambda path: path.stem)
def test_every_object_is_valid(values: Path, version: str) -> None:
    objects = template(values=[values], kube_version=version)
    passed = [each for each in objects if is_valid(each, version)]
    custom = [each for each in objects if CUSTOM.get(each["kind"]) == each["apiVersion"]]
    assert len(passed) >= 10
    assert len(passed) + len(custom) == len(objects)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names), "two objects of one name"


def is_valid(each: Object, version: str) -> bool:
    """Return whether it passed; False for a kind of others.  Raises ValidationError."""
    try:
        return str(validate(each, version, strict=True)) == version
    except SchemaNotFoundError:
        if each["kind"] in CUSTOM:
            return False
        raise


def test_the_check_sees_what_is_wrong() -> None:
    (service, *_) = [each for each in template(values=[MINIMAL]) if each["kind"] == "Service"]
    assert is_valid(service, VERSIONS[-1])
    with pytest.raises(ValidationError):
        is_valid({**service, "spec": {**service["spec"], "publishNotReady": True}}, VERSIONS[-1])
    with pytest.raises(SchemaNotFoundError):
        is_valid({**service, "kind": "Servise"}, VERSIONS[-1])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("storage.root=", "storage.root is not set"),
        ("etcd.endpoints=null", "etcd.endpoints is not set"),
        ("etcd.trial.enabled=true", "etcd.endpoints and etcd.trial.enabled are both set"),
        ("etcd.user=bmq", "etcd.user needs etcd.passwordSecret.name"),
        ("etcd.tls.enabled=true", "etcd.tls.enabled needs etcd.tls.secret"),
        ("etcd.tls.enabled=true,etcd.tls.secret=s,etcd.tls.certKey=c", "go together"),
        ("zone.source=value", "zone.value is not set"),
        ("broker.terminationGracePeriodSeconds=60", "broker.terminationGracePeriodSeconds is 60"),
        ("external.enabled=true", "external.advertisedHost is not set"),
        ("external.enabled=true,external.advertisedHosts={a,b}", "names 2 hosts, and there may be 3 proxies"),
        ("external.enabled=true,external.type=NodePort", "external.nodePorts.first is not set"),
        ("external.enabled=true,external.type=NodePort,external.nodePorts.first=30100,external.nodePorts.bootstrap=30102",
         "external.nodePorts.bootstrap is 30102"),
        ("external.enabled=true,external.advertisedHost=a,external.port=9092", "another listener's port"),
        ("proxy.autoscaling.enabled=true,proxy.autoscaling.maxReplicas=2", "maxReplicas is below minReplicas"),
        ("broker.autoscaling.enabled=true,broker.autoscaling.cpuUtilization=0", "nothing to aim at"),
        ("config.num\\.partition=6", "num.partition"),
        ("config.drain_ms=5", "drain_ms"),
        ("proxy.replica=3", "replica"),
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(values: str, told: str) -> None:
    with pytest.raises(HelmFailed, match=told.replace("(", r"\(")):
        template("--set", values, values=[MINIMAL])


def test_kubernetes_before_1_31_is_refused() -> None:
    with pytest.raises(HelmFailed, match=r"requires kubeVersion"):
        template(values=[MINIMAL], kube_version="1.30")


# ----------------------------------------------------------------------------------------------- what is rendered


def container(workload: Object) -> Object:
    """Return the container `bmq` of a workload."""
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert found["name"] == "bmq"
    return dict(found)


def environment(workload: Object) -> dict[str, Any]:
    """Return name and value, or where it is from."""
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(workload)["env"]}


def test_each_role_is_a_workload_that_ends_in_time() -> None:
    objects = template(values=[MINIMAL])
    for name, kind, grace in (
        ("proxy", "StatefulSet", 5 + 30 + 30),
        ("broker", "Deployment", 60 + 30),
        ("controller", "Deployment", 10 + 30),
        ("coordinator", "Deployment", 30 + 30),
    ):
        workload = find(objects, kind, f"{RELEASE}-bmq-{name}")
        pod = workload["spec"]["template"]["spec"]
        assert environment(workload)["BMQ_ROLES"] == name
        assert environment(workload)["BMQ_DRAIN_MS"].endswith("000")
        assert pod["terminationGracePeriodSeconds"] == grace
        assert ("lifecycle" in container(workload)) is (name == "proxy")
        assert pod["automountServiceAccountToken"] is False
        volumes = [key for volume in pod["volumes"] for key in volume if key != "name"]
        assert "persistentVolumeClaim" not in volumes
    assert not [each for each in objects if "volumeClaimTemplates" in json.dumps(each)]


def test_a_proxy_is_told_of_by_its_own_service() -> None:
    objects = template("--set", "proxy.firstOrdinal=7", values=[MINIMAL])
    proxies = find(objects, "StatefulSet", f"{RELEASE}-bmq-proxy")
    assert proxies["spec"]["ordinals"] == {"start": 7}
    assert environment(proxies)["BMQ_NODE_ID"] == "$(POD_INDEX)"
    assert environment(proxies)["BMQ_ADVERTISE"] == f"$(POD_NAME).{NAMESPACE}.svc.cluster.local:9092"
    for number in (7, 8, 9):
        service = find(objects, "Service", f"{RELEASE}-bmq-proxy-{number}")
        assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == f"{RELEASE}-bmq-proxy-{number}"
        assert service["spec"]["publishNotReadyAddresses"] is True


def test_only_proxies_have_a_kafka_port() -> None:
    for name in ("broker", "controller", "coordinator"):
        workload = find(template(values=[MINIMAL]), "Deployment", f"{RELEASE}-bmq-{name}")
        assert [port["name"] for port in container(workload)["ports"]] == ["internal", "http"]
        assert not {"BMQ_LISTEN", "BMQ_ADVERTISE", "BMQ_NODE_ID"} & set(environment(workload))


def test_settings_of_zero_and_false_win() -> None:
    """Set 0 and false: they are rendered, and a component's settings win over those of all."""
    flags = "config.auto\\.create\\.topics\\.enable=true,broker.config.auto\\.create\\.topics\\.enable=false"
    objects = template("--set", f"{flags},config.etcd_history_ms=0,config.cache_bytes=268435456", values=[MINIMAL])
    data = find(objects, "ConfigMap", f"{RELEASE}-bmq-config")["data"]
    assert '"auto.create.topics.enable" = true' in data["proxy.toml"]
    assert '"auto.create.topics.enable" = false' in data["broker.toml"]
    assert '"etcd_history_ms" = 0' in data["broker.toml"]
    assert '"cache_bytes" = 268435456' in data["broker.toml"]


def test_the_store_s_url_has_no_password() -> None:
    everything = CHART / "ci" / "everything-values.yaml"
    broker = find(template(values=[everything]), "Deployment", f"{RELEASE}-queue-broker")
    files = "ca=/etc/bmq/etcd-tls/ca.crt&cert=/etc/bmq/etcd-tls/tls.crt&key=/etc/bmq/etcd-tls/tls.key"
    assert environment(broker)["BMQ_META"] == f"etcd://orders@etcd-0.etcd:2379?{files}"
    assert environment(broker)["BMQ_META_PASSWORD_FILE"] == "/etc/bmq/etcd-password/password"
    assert environment(broker)["HADOOP_CONF_DIR"] == "/etc/hadoop/conf"


def test_logs_and_traces_are_set_for_all_pods() -> None:
    everything = CHART / "ci" / "everything-values.yaml"
    for name in ("queue-broker", "queue-controller"):
        env = environment(find(template(values=[everything]), "Deployment", f"{RELEASE}-{name}"))
        assert env["BMQ_LOG_FORMAT"] == "json"
        assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector.monitoring:4318"
        assert wanted_of(env) == TraceSettings(0.01)
    plain = environment(find(template(values=[MINIMAL]), "Deployment", f"{RELEASE}-bmq-broker"))
    assert plain["BMQ_LOG_FORMAT"] == "text"
    assert wanted_of(plain) is None


def test_only_pods_of_the_cluster_reach_the_internal_port() -> None:
    policy = find(template(values=[MINIMAL]), "NetworkPolicy", f"{RELEASE}-bmq")
    (internal,) = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "internal"]
    assert internal["from"] == [{"podSelector": {"matchLabels": {"bmq.cluster": "orders-bmq"}}}]


def test_a_chart_of_another_version_starts_no_pod_again() -> None:
    """Label the workloads, not their pod templates, with the chart's version: the same image then restarts no pod."""
    for each in template(values=[MINIMAL]):
        if each["kind"] in ("StatefulSet", "Deployment"):
            assert "helm.sh/chart" in each["metadata"]["labels"]
            assert "helm.sh/chart" not in json.dumps(each["spec"]["template"])


def test_names_fit() -> None:
    long = "a" * 53  # helm's longest name of a release
    text = run_helm("template", long, str(CHART), "--values", str(CHART / "ci" / "everything-values.yaml"))
    assert max(len(line.split()[-1]) for line in text.splitlines() if line.startswith("  name: ")) <= 63


def test_the_pods_show_each_other_a_secret_that_the_chart_makes() -> None:
    objects = template(values=[MINIMAL])
    secret = find(objects, "Secret", f"{RELEASE}-bmq-internal")
    assert len(base64.b64decode(secret["data"]["secret"])) >= 32
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    other = find(template(values=[MINIMAL]), "Secret", f"{RELEASE}-bmq-internal")
    assert other["data"] != secret["data"], "each release has its own"
    for pod in pods_of(objects):
        (container,) = pod["containers"]
        settings = {each["name"]: each.get("value") for each in container["env"]}
        assert settings["BMQ_INTERNAL_SECRET_FILE"] == "/etc/bmq/internal-secret/secret"
        assert settings["BMQ_INTERNAL_SECRET_REQUIRED"] == "true"
        assert {"name": "internal-secret", "mountPath": "/etc/bmq/internal-secret", "readOnly": True} in container[
            "volumeMounts"
        ]
        (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "internal-secret"]
        assert volume["secretName"] == f"{RELEASE}-bmq-internal"


def test_an_existing_secret_takes_its_place_and_may_not_be_required_yet() -> None:
    objects = template(
        "--set", "internalSecret.name=ours,internalSecret.key=k,internalSecret.required=false", values=[MINIMAL]
    )
    assert not [each for each in objects if each["kind"] == "Secret"]
    for pod in pods_of(objects):
        (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "internal-secret"]
        assert (volume["secretName"], volume["items"]) == ("ours", [{"key": "k", "path": "secret"}])
        settings = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert settings["BMQ_INTERNAL_SECRET_REQUIRED"] == "false"


def pods_of(objects: list[Object]) -> list[Object]:
    found = [each["spec"]["template"]["spec"] for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    pods = [each for each in found if each["containers"][0]["name"] == "bmq"]
    assert len(pods) >= 4
    return pods

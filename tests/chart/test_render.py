"""The rendered chart: linted, valid for three versions of Kubernetes, refused where values contradict each other."""

from __future__ import annotations

import base64
import functools
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate.utils
import pytest
from kubernetes_validate import SchemaNotFoundError, ValidationError, validate

from bmq.core.config import OPTIONS, option_name
from bmq.core.security.listener_settings import parse
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
    ("values", "message"),
    [
        ("storage.root=", "storage.root is not set"),
        ("etcd.endpoints=null", "etcd.endpoints is not set"),
        ("etcd.trial.enabled=true", "etcd.endpoints and etcd.trial.enabled are both set"),
        ("hdfs.kerberos.principal=bmq@EXAMPLE.ORG", "needs hdfs.kerberos.keytabSecret.name"),
        ("hdfs.kerberos.keytabSecret.name=s", "hdfs.kerberos.keytabSecret.name needs Hadoop's configuration"),
        ("hdfs.kerberos.krb5ConfigMap.name=a,sasl.gssapi.krb5ConfigMap.name=b,sasl.gssapi.keytabSecret.name=s",
         "hdfs.kerberos.krb5ConfigMap and sasl.gssapi.krb5ConfigMap differ"),
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
        ("proxy.replicas=0", "proxy/replicas"),
        ("external.enabled=true,external.type=NodePort,external.nodePorts.first=100", "external/nodePorts/first"),
        ("listener.protocol=SASL_SSL", "listener.protocol is SASL_SSL: it needs listener.tls.secret"),
        ("external.enabled=true,external.advertisedHost=a,external.protocol=SSL", "it needs external.tls.secret"),
        ("moreListeners[0].name=A,moreListeners[0].port=9095,moreListeners[0].protocol=SSL",
         "moreListeners[0].protocol is SSL: it needs moreListeners[0].tls.secret"),
        ("moreListeners[0].name=A,moreListeners[0].port=9093,moreListeners[0].protocol=PLAINTEXT",
         "moreListeners[0].port 9093 is another listener's port (service.internalPort)"),
        ("listener.tls.secret=s", "listener.tls.secret is set, and listener.protocol is PLAINTEXT"),
        ("listener.protocol=SSL,listener.tls.secret=s,listener.tls.clientAuth=required",
         "needs listener.tls.clientCaSecret"),
        ("listener.mechanisms={PLAIN}", "listener.mechanisms are set, and listener.protocol is PLAINTEXT"),
        ("listener.protocol=SASL_PLAINTEXT,listener.mechanisms={PLAIN}", "it needs sasl.plain.secret"),
        ("listener.protocol=SASL_PLAINTEXT,listener.mechanisms={OAUTHBEARER}", "it needs sasl.oauthbearer.jwksUrl"),
        ("listener.protocol=SASL_PLAINTEXT,listener.mechanisms={GSSAPI}", "it needs sasl.gssapi.keytabSecret.name"),
        ("listener.protocol=SASL_PLAINTEXT,listener.mechanisms={LDAP}", "listener/mechanisms/0"),
        ("http.authentication=bearer", "http.authentication is bearer: it needs sasl.oauthbearer.jwksUrl"),
        ("http.authentication=basic,http.mechanisms={PLAIN}", "http.mechanisms has PLAIN: it needs sasl.plain.secret"),
        ("http.mechanisms={PLAIN},sasl.plain.secret=s", "http.mechanisms are set, and http.authentication is none"),
        ("authorization.enabled=true", "authorization.enabled needs authorization.superUsers"),
        ("authorization.superUsers={User:admin}", "authorization.enabled is false"),
        ("authorization.enabled=true,authorization.superUsers={User:a;User:b}", "authorization/superUsers/0"),
        ("firstUser.name=admin", "firstUser.name needs firstUser.passwordSecret.name"),
        ("http.authentication=basic,metrics.serviceMonitor.enabled=true", "/metrics asks for a log-in"),
        ("metrics.serviceMonitor.basicAuth.secret=a,metrics.serviceMonitor.bearer.secret=b", "are both set"),
        ("insecure=false", "Kafka listener INTERNAL, port 9092, PLAINTEXT: set listener.protocol=SASL_SSL"),
        ("insecure=false", "HTTP, port 9080: set http.authentication=basic"),
        ("insecure=false,internalSecret.required=false", "the port between processes, 9093"),
        ("config.ssl\\.keystore\\.password=x", "ssl.keystore.password"),
        ("config.listener\\.name\\.internal\\.ssl\\.client\\.aut=x", "ssl.client.aut"),
        ("config.listener\\.name\\.internal\\.plain\\.sasl\\.jaas\\.config=x", "sasl.jaas.config"),
        ("config.schema_registry_url=http://u:p@registry", "schema_registry_url"),
    ],
)  # fmt: skip
def test_values_that_cannot_work_are_refused(values: str, message: str) -> None:
    with pytest.raises(HelmFailed, match=re.escape(message)):
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


def test_every_pod_logs_in_to_hdfs_by_the_keytab_and_krb5_conf_of_its_mounts() -> None:
    secured = CHART / "ci" / "secured-values.yaml"
    plain = ("--set", "sasl.gssapi.krb5ConfigMap.name=")
    for objects in (template(values=[secured]), template(*plain, values=[secured])):
        for pod in pods_of(objects):
            env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
            names = [each["name"] for each in pod["containers"][0]["env"]]
            assert len(names) == len(set(names)), names
            assert env["BMQ_HDFS_KEYTAB"] == "/etc/bmq/hdfs-keytab/keytab"
            assert env["BMQ_HDFS_PRINCIPAL"] == "bmq@EXAMPLE.ORG"
            assert env["KRB5_CONFIG"] == "/etc/bmq/krb5/krb5.conf"
            assert env["HADOOP_CONF_DIR"] == "/etc/hadoop/conf"
            mounts = {each["mountPath"]: each["name"] for each in pod["containers"][0]["volumeMounts"]}
            assert len(mounts) == len(pod["containers"][0]["volumeMounts"])
            volumes = {each["name"]: each for each in pod["volumes"]}
            keytab = volumes[mounts["/etc/bmq/hdfs-keytab"]]["secret"]
            assert keytab["secretName"] == "hdfs-keytab"
            assert keytab["items"] == [{"key": "keytab", "path": "keytab"}]
            krb5 = volumes[mounts["/etc/bmq/krb5"]]["configMap"]
            assert krb5 == {"name": "krb5", "items": [{"key": "krb5.conf", "path": "krb5.conf"}]}


def test_without_kerberos_no_pod_has_a_keytab() -> None:
    for pod in pods_of(template(values=[MINIMAL])):
        names = {each["name"] for each in pod["containers"][0]["env"]}
        assert not {"BMQ_HDFS_KEYTAB", "BMQ_HDFS_PRINCIPAL", "KRB5_CONFIG"} & names


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


# ------------------------------------------------------------------------------------------------------- secured

SECURED = CHART / "ci" / "secured-values.yaml"
SECRETS = (
    "kafka-tls", "kafka-outside-tls", "clients-ca", "plain-users", "issuer-ca", "kafka-keytab", "delegation-tokens",
    "http-tls", "internal-tls", "internal-secret", "etcd-user", "etcd-tls", "hdfs-keytab",
)  # fmt: skip


def test_a_secured_release_has_no_open_port() -> None:
    """Render all security: `bmq serve` is held to it, since it may not have an open port."""
    objects = template(values=[SECURED])
    for pod in pods_of(objects):
        settings = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert settings["BMQ_INSECURE"] == "false"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert pod["containers"][0][probe]["httpGet"]["scheme"] == "HTTPS"
    proxies = find(objects, "StatefulSet", f"{RELEASE}-bmq-proxy")
    assert environment(proxies)["BMQ_LISTENER_SECURITY_PROTOCOL_MAP"] == "INTERNAL:SASL_SSL,MTLS:SSL,EXTERNAL:SASL_SSL"
    assert (
        environment(proxies)["BMQ_LISTENERS"] == "INTERNAL://0.0.0.0:9092,MTLS://0.0.0.0:9095,EXTERNAL://0.0.0.0:9094"
    )
    policy = find(objects, "NetworkPolicy", f"{RELEASE}-bmq-kafka")
    ports = [each["port"] for each in policy["spec"]["ingress"][0]["ports"]]
    assert ports == ["kafka", "kafka-1", "kafka-external"]
    bootstrap = find(objects, "Service", f"{RELEASE}-bmq-bootstrap")
    assert [each["port"] for each in bootstrap["spec"]["ports"]] == [9092, 9095]


def test_every_setting_of_a_secured_release_is_known() -> None:
    data = find(template(values=[SECURED]), "ConfigMap", f"{RELEASE}-bmq-config")["data"]
    names = {option_name(each) for each in OPTIONS}
    listeners = {"proxy.toml": ["INTERNAL", "MTLS", "EXTERNAL", "HTTP"]}
    for file, text in data.items():
        for key, value in tomllib.loads(text).items():
            if key.startswith("listener.name."):
                parse(key, value, listeners.get(file, ["HTTP"]), file)
            else:
                assert key.removesuffix(".file") in names, key


def test_secrets_are_mounted_files_where_they_are_needed() -> None:
    """Name every Secret as a volume of the proxies; of the others, none that is the listeners' alone."""
    objects = template(values=[SECURED])
    for name, mounted in (
        ("proxy", set(SECRETS)),
        ("broker", set(SECRETS) - {"kafka-tls", "kafka-outside-tls", "clients-ca", "kafka-keytab"}),
    ):
        kind = "StatefulSet" if name == "proxy" else "Deployment"
        pod = find(objects, kind, f"{RELEASE}-bmq-{name}")["spec"]["template"]["spec"]
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert {each["secretName"] for each in secrets} == mounted
        assert {each["defaultMode"] for each in secrets} == {0o440}
        (container,) = pod["containers"]
        paths = [each["mountPath"] for each in container["volumeMounts"]]
        assert len(set(paths)) == len(paths), "two mounts at one path"
        assert "secretKeyRef" not in json.dumps(pod)
        assert container["command"] == ["bmq", "serve"]


def test_the_first_user_s_password_is_a_file_and_its_pod_serves_nobody() -> None:
    objects = template(values=[SECURED])
    job = find(objects, "Job", f"{RELEASE}-bmq-first-user")
    pod = job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"][-2:] == ["/etc/bmq/first-user/password", "admin"]
    assert {each["name"] for each in container["env"]} == {"BMQ_CLUSTER", "BMQ_META", "BMQ_META_PASSWORD_FILE", "HOME"}
    labels = pod["metadata"]["labels"]
    for service in [each for each in objects if each["kind"] == "Service"]:
        assert not service["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize("values", ci_values(), ids=lambda path: path.stem)
def test_the_job_of_the_rules_is_the_job_of_the_service_monitor(values: Path) -> None:
    """Also with a nameOverride: BmqDown would not find the targets of a release under another job."""
    monitored = [f"metrics.{name}.enabled=true" for name in ("serviceMonitor", "prometheusRule")]
    objects = template("--set", ",".join(monitored), values=[values])
    (monitor,) = [each for each in objects if each["kind"] == "ServiceMonitor"]
    (rules,) = [each for each in objects if each["kind"] == "PrometheusRule"]
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each["metadata"]["labels"] for each in objects if each["kind"] == "Service"]
    jobs = {labels.get(monitor["spec"]["jobLabel"]) for labels in services if selected <= labels.items()}
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    assert jobs == set(re.findall(r'job="([^"]*)"', " ".join(expressions)))


def test_prometheus_logs_in() -> None:
    endpoint = find(template(values=[SECURED]), "ServiceMonitor", f"{RELEASE}-bmq")["spec"]["endpoints"][0]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "serverName": f"{RELEASE}-bmq-http.{NAMESPACE}.svc.cluster.local",
        "ca": {"secret": {"name": "http-tls", "key": "ca.crt"}},
    }
    assert endpoint["basicAuth"]["password"] == {"name": "prometheus-user", "key": "password"}
    bearer = "metrics.serviceMonitor.basicAuth.secret=,metrics.serviceMonitor.bearer.secret=token"
    endpoint = find(template("--set", bearer, values=[SECURED]), "ServiceMonitor", f"{RELEASE}-bmq")["spec"][
        "endpoints"
    ][0]
    assert endpoint["authorization"] == {"credentials": {"name": "token", "key": "token"}}
    assert "basicAuth" not in endpoint


def test_helm_s_test_pods_log_in_or_are_left_out() -> None:
    def names(*arguments: str) -> set[str]:
        objects = template(*arguments, values=[SECURED])
        return {each["metadata"]["name"].partition("-test-")[2] for each in objects if each["kind"] == "Pod"}

    assert names() == {"status", "produce-consume"}
    assert names("--set", "firstUser.name=") == set()
    assert names("--set", "http.authentication=bearer,http.mechanisms=null,metrics.serviceMonitor.enabled=false") == {
        "produce-consume"
    }
    assert names("--set", "listener.mechanisms={PLAIN}") == {"status"}

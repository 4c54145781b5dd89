"""Each value of security is rendered: changed alone, it is in what changes, and the schema refuses it mistyped."""

from __future__ import annotations

import difflib
import json
from typing import Any

import jsonschema
import pytest

from tests.chart.drawn import CHART, values
from tests.chart.render import NAMESPACE, RELEASE, run_helm

SECTIONS = (
    "authorization", "etcd.passwordSecret", "etcd.tls", "etcd.user", "external.mechanisms", "external.protocol",
    "external.tls", "firstUser", "hdfs.kerberos", "http", "insecure", "internalSecret", "internalTls", "listener",
    "metrics.serviceMonitor.basicAuth", "metrics.serviceMonitor.bearer", "metrics.serviceMonitor.serverName",
    "moreListeners", "sasl",
)  # fmt: skip
BASE = (
    'listener.tls.clientAuth="requested"', 'listener.tls.clientCaSecret="clients-ca"',
)  # fmt: skip
"""Beside the secured values, so that the listener inside has an authority of clients' certificates too."""

CHANGED: dict[str, tuple[Any, str]] = {
    "authorization.enabled": (False, "-authorizer.class.name"),
    "authorization.superUsers": (["User:a", "User:b"], '"super.users" = "User:a;User:b"'),
    "authorization.allowEveryoneIfNoAclFound": (True, '"allow.everyone.if.no.acl.found" = true'),
    "etcd.passwordSecret.name": ("other", "secretName: other"),
    "etcd.passwordSecret.key": ("other", "other"),
    "etcd.tls.enabled": (False, "etcd://bmq@etcd-0.etcd:2379"),
    "etcd.tls.secret": ("other", "other"),
    "etcd.tls.caKey": ("other.crt", 'key: "other.crt", path: ca.crt'),
    "etcd.tls.certKey": ("other.crt", 'key: "other.crt", path: tls.crt'),
    "etcd.tls.keyKey": ("other.key", 'key: "other.key", path: tls.key'),
    "etcd.user": ("other", "etcd://other@"),
    "external.protocol": ("SASL_PLAINTEXT", "EXTERNAL:SASL_PLAINTEXT"),
    "external.mechanisms": (["PLAIN"], '"listener.name.external.sasl.enabled.mechanisms" = "PLAIN"'),
    "firstUser.name": ("other", "other"),
    "firstUser.mechanism": ("SCRAM-SHA-256", "SCRAM-SHA-256"),
    "firstUser.passwordSecret.name": ("other", "secretName: other"),
    "firstUser.passwordSecret.key": ("other", 'key: "other", path: password'),
    "http.tls.secret": ("other", "secretName: other"),
    "http.tls.caKey": ("other.crt", "other.crt"),
    "http.authentication": ("basic", '"http_authentication" = "basic"'),
    "http.mechanisms": (["PLAIN"], '"listener.name.http.sasl.enabled.mechanisms" = "PLAIN"'),
    "http.metricsAuthentication": (False, '"http_metrics_authentication" = false'),
    "internalSecret.name": ("other", "secretName: other"),
    "internalSecret.key": ("other", 'key: "other", path: secret'),
    "internalSecret.required": (False, 'value: "false"'),
    "internalTls.secret": ("other", "secretName: other"),
    "internalTls.required": (False, '"internal.ssl.required" = false'),
    "internalTls.caKey": ("other.crt", 'key: "other.crt", path: ca.crt'),
    "listener.protocol": ("SSL", "INTERNAL:SSL"),
    "listener.mechanisms": (["PLAIN"], '"listener.name.internal.sasl.enabled.mechanisms" = "PLAIN"'),
    "metrics.serviceMonitor.basicAuth.secret": ("other", "name: other"),
    "metrics.serviceMonitor.basicAuth.userKey": ("other", 'key: "other"'),
    "metrics.serviceMonitor.basicAuth.passwordKey": ("other", 'key: "other"'),
    "metrics.serviceMonitor.bearer.secret": ("other", "credentials: {name: other"),
    "metrics.serviceMonitor.bearer.key": ("other", 'key: "other"'),
    "metrics.serviceMonitor.serverName": ("other", "serverName: other"),
    "moreListeners": ([{"name": "A", "port": 9096, "protocol": "SASL_PLAINTEXT"}], "A:SASL_PLAINTEXT"),
    "sasl.plain.secret": ("other", "secretName: other"),
    "sasl.plain.key": ("other", 'key: "other", path: users'),
    "sasl.oauthbearer.jwksUrl": ("https://other/keys", "https://other/keys"),
    "sasl.oauthbearer.issuer": ("other", '"sasl.oauthbearer.expected.issuer" = "other"'),
    "sasl.oauthbearer.audiences": (["a", "b"], '"sasl.oauthbearer.expected.audience" = "a,b"'),
    "sasl.oauthbearer.subClaim": ("other", '"sasl.oauthbearer.sub.claim.name" = "other"'),
    "sasl.oauthbearer.scopeClaim": ("other", '"sasl.oauthbearer.scope.claim.name" = "other"'),
    "sasl.oauthbearer.caSecret": ("other", "secretName: other"),
    "sasl.oauthbearer.caKey": ("other", 'key: "other", path: ca.crt'),
    "sasl.gssapi.serviceName": ("other", 'kerberos.service.name" = "other"'),
    "sasl.gssapi.principal": ("other@EXAMPLE.ORG", "other@EXAMPLE.ORG"),
    "sasl.gssapi.keytabSecret.name": ("other", "secretName: other"),
    "sasl.gssapi.keytabSecret.key": ("other", 'key: "other", path: keytab'),
    "sasl.gssapi.krb5ConfigMap.name": ("other", "name: other"),
    "sasl.gssapi.krb5ConfigMap.key": ("other", 'key: "other", path: krb5.conf'),
    "sasl.gssapi.principalToLocalRules": ("RULE:[1:$1]", "RULE:[1:$1]"),
    "sasl.delegationTokens.secret": ("other", "secretName: other"),
    "hdfs.kerberos.principal": ("other@EXAMPLE.ORG", 'value: "other@EXAMPLE.ORG"'),
    "hdfs.kerberos.keytabSecret.name": ("other", "secretName: other"),
    "hdfs.kerberos.keytabSecret.key": ("other", 'key: "other", path: keytab'),
    "hdfs.kerberos.krb5ConfigMap.name": ("other", "name: other"),
    "hdfs.kerberos.krb5ConfigMap.key": ("other", 'key: "other", path: krb5.conf'),
    "sasl.delegationTokens.key": ("other", 'key: "other", path: secret'),
} | {
    f"{listener}.tls.{key}": change
    for listener in ("listener", "external")
    for key, change in {
        "secret": ("other", "secretName: other"),
        "clientAuth": ("required", '.ssl.client.auth" = "required"'),
        "clientCaSecret": ("other", "secretName: other"),
        "clientCaKey": ("other.crt", 'key: "other.crt", path: ca.crt'),
        "principalMappingRules": ("RULE:^CN=(.*?)$/$1/L", "RULE:^CN=(.*?)$/$1/L"),
    }.items()
}
"""By value: what it is changed to, and a part of a line that is then rendered; after `-` of one that no longer is."""

WITH = {
    "external.protocol": ('external.tls={"secret": null, "clientAuth": "none"}', "insecure=true"),
    "listener.protocol": ("listener.mechanisms=[]", "insecure=true"),
    "authorization.enabled": ("authorization.superUsers=[]",),
    "metrics.serviceMonitor.bearer.secret": ('metrics.serviceMonitor.basicAuth.secret=""',),
    "hdfs.kerberos.krb5ConfigMap.name": ('sasl.gssapi.krb5ConfigMap.name=""',),
    "hdfs.kerberos.krb5ConfigMap.key": ('sasl.gssapi.krb5ConfigMap.name=""',),
    "sasl.gssapi.krb5ConfigMap.name": ('hdfs.kerberos.krb5ConfigMap.name=""',),
    "sasl.gssapi.krb5ConfigMap.key": ('hdfs.kerberos.krb5ConfigMap.name=""',),
    "metrics.serviceMonitor.bearer.key": (
        'metrics.serviceMonitor.basicAuth.secret=""', 'metrics.serviceMonitor.bearer.secret="token"',
    ),
}  # fmt: skip
"""What else must be set, so that the values do not contradict each other."""
REFUSALS = {"insecure"}
"""Values that render nothing: `test_render` shows what they refuse."""


def security_values() -> list[str]:
    """Return the keys of values.yaml that are security's."""
    keys = [row.key for row in values((CHART / "values.yaml").read_text())]
    return [key for key in keys if any(f"{key}.".startswith(f"{section}.") for section in SECTIONS)]


def rendered(*changed: str) -> list[str]:
    """Return the lines that helm renders, but for sums over others."""
    flags = [part for each in (*BASE, *changed) for part in ("--set-json", each)]
    secured = str(CHART / "ci" / "secured-values.yaml")
    text = run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", "1.37",
                    "--values", secured, *flags)  # fmt: skip
    return [line for line in text.splitlines() if "checksum/" not in line]


@pytest.fixture(scope="module")
def before() -> list[str]:
    return rendered()


def test_every_value_of_security_is_here() -> None:
    assert set(security_values()) == set(CHANGED) | REFUSALS


@pytest.mark.parametrize("key", CHANGED)
def test_a_value_that_is_changed_is_rendered(key: str, before: list[str]) -> None:
    value, text = CHANGED[key]
    after = rendered(*WITH.get(key, ()), f"{key}={json.dumps(value)}")
    sign, text = ("-", text[1:]) if text.startswith("-") else ("+", text)
    changes = [line for line in difflib.unified_diff(before, after, n=0) if line.startswith(sign)]
    assert any(text in line for line in changes), changes


@pytest.mark.parametrize("key", [*CHANGED, *sorted(REFUSALS)])
def test_a_value_of_another_type_is_refused(key: str) -> None:
    validator = jsonschema.Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    right = CHANGED[key][0] if key in CHANGED else False
    for wrong in (7, {"secret": "a"}, [7], [["a"]], "yes" if isinstance(right, bool) else True):
        assert not validator.is_valid(nested(key, wrong)), wrong
    assert validator.is_valid(nested(key, right))
    assert not validator.is_valid(nested(f"{key}s", right)), "a misspelt key"


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return the values in which `key`, with dots, has this value."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)

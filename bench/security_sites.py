"""The sites of bench.security: Apache Kafka and ``bmq serve`` with the same listeners, certificate, users and ACLs.

A site is two processes: one without an authorizer, one with.

| process   | listeners            | who one is there                                  |
|-----------|----------------------|---------------------------------------------------|
| `open`    | `PLAINTEXT`, `TLS`   | `User:ANONYMOUS`                                  |
| `secured` | `PLAINTEXT`          | `User:ANONYMOUS`, who has ACLs                    |
|           | `LOGIN`              | `User:bench`, by SASL_SSL and SCRAM; has ACLs     |
|           | `SETUP`              | `User:admin`, a super user, by SASL_PLAINTEXT and PLAIN: not measured |

Both servers are given the same settings, by Kafka's names.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic

from bench import raw_client, tls_hello
from bench.deployments import OWN, Deployment
from bench.security_plan import CONFIGURATIONS, MECHANISM, OPEN, SECURED
from bench.servers import BMQ_ENVIRONMENT, KAFKA_HEAP_MB, KAFKA_JAVA, KAFKA_PROPERTIES
from bench.tls_hello import Negotiated, Tap, server_hello
from tests.harness.certificates import PASSWORD, Certificates
from tests.services.bmq import BmqServer
from tests.services.kafka import KafkaCluster
from tests.services.processes import ServiceProcess, free_ports

PLAINTEXT, TLS, LOGIN, SETUP = "PLAINTEXT", "TLS", "LOGIN", "SETUP"
PROTOCOLS = {PLAINTEXT: "PLAINTEXT", TLS: "SSL", LOGIN: "SASL_SSL", SETUP: "SASL_PLAINTEXT"}
LISTENERS = {OPEN: (PLAINTEXT, TLS), SECURED: (PLAINTEXT, LOGIN, SETUP)}
ADMIN, USER = "admin", "bench"
ITERATIONS = 4096
"""Of a SCRAM user: Kafka's default."""
TOPICS = "bench-"
"""What the names of topics and groups begin with that are measured."""
REFUSED = "refused"
"""A topic for which there is no ACL."""
TIMEOUT_S = 60
_PLAIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    f' username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}";'
)
_OPEN = {"ssl.enabled.protocols": "TLSv1.3"}
_SECURED = _OPEN | {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN}",
    "listener.name.setup.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.setup.plain.sasl.jaas.config": _PLAIN,
    "listener.name.login.sasl.enabled.mechanisms": MECHANISM,
}
SETTINGS: Mapping[str, Mapping[str, str]] = {OPEN: _OPEN, SECURED: _SECURED}
"""Settings of both servers, by process."""
_OF_KAFKA = {
    OPEN: {},
    SECURED: {  # its broker is a client of its own controller, and needs a principal with rights there
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": _PLAIN,
        f"listener.name.login.{MECHANISM.lower()}.sasl.jaas.config":
            "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    },
}  # fmt: skip


@dataclass(slots=True)
class Site:
    """One server in all configurations."""

    name: str
    deployments: Mapping[str, Deployment]
    """By the name of a configuration."""

    @property
    def processes(self) -> list[ServiceProcess]:
        """The processes, each once."""
        return list({id(each): each for found in self.deployments.values() for each in found.processes}.values())

    @property
    def tls(self) -> dict[str, Negotiated]:
        """The choice of the server in each configuration with TLS, with librdkafka as the client."""
        return {
            name: negotiated(found)
            for name, found in self.deployments.items()
            if CONFIGURATIONS[name].protocol.endswith("SSL")
        }


@contextlib.contextmanager
def start(name: str, parent: Path | None, acls: int) -> Iterator[Site]:
    """Start a site's processes, give users and ACLs, and check that rights and TLS are as they are to be.

    Raises RuntimeError if an act without its right is not refused.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"bmq-bench-{name}-", dir=parent))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        certificates = Certificates.make(folder / "certificates")
        keystore = certificates.pkcs12(certificates.server, "server.p12")
        start_process = _KINDS[name]
        deployments = {}
        for process, listeners in LISTENERS.items():
            keystore_settings = {"ssl.keystore.location": str(keystore), "ssl.keystore.password": PASSWORD}
            found, addresses = start_process(stack, process, keystore_settings, folder / process)
            if process == SECURED:
                give_rights(addresses[SETUP], acls)
            for each in CONFIGURATIONS.values():
                if each.process == process:
                    assert each.listener in listeners
                    properties = client_properties(each.protocol, certificates.trust)
                    deployment = Deployment(name, addresses[each.listener], 1, {OWN: [found]}, properties=properties)
                    if process == SECURED:
                        require_refusal(deployment)
                    deployments[each.name] = deployment
        yield Site(name, {each: deployments[each] for each in CONFIGURATIONS})


def client_properties(protocol: str, trust: Path) -> dict[str, str]:
    """Return the settings by which librdkafka connects."""
    found = {"security.protocol": protocol} if protocol != "PLAINTEXT" else {}
    if protocol.endswith("SSL"):
        found["ssl.ca.location"] = str(trust)
    if protocol.startswith("SASL"):
        found |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": PASSWORD}
    return found


# -------------------------------------------------------------------------------------------------------- processes


def _kafka(
    stack: contextlib.ExitStack, process: str, keystore: Mapping[str, str], folder: Path
) -> tuple[ServiceProcess, dict[str, str]]:
    names = LISTENERS[process]
    controller = "PLAINTEXT" if process == OPEN else "SASL_PLAINTEXT"
    cluster = KafkaCluster(
        listeners=[name for name in names if name != PLAINTEXT], heap_mb=KAFKA_HEAP_MB, java_options=KAFKA_JAVA,
        folder=folder,
        properties={
            **KAFKA_PROPERTIES, **SETTINGS[process], **_OF_KAFKA[process], **keystore, "ssl.keystore.type": "PKCS12",
            "listener.security.protocol.map": f"{_map(names)},CONTROLLER:{controller}",
        },
    )  # fmt: skip
    stack.enter_context(cluster)
    (node,) = cluster.node_ids
    return cluster.node(node), {name: cluster.address(node, name) for name in names}


def _bmq(
    stack: contextlib.ExitStack, process: str, keystore: Mapping[str, str], folder: Path
) -> tuple[ServiceProcess, dict[str, str]]:
    folder.mkdir()
    names = LISTENERS[process]
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(len(names)), strict=True)}
    listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
    settings = {"listeners": listeners, "listener.security.protocol.map": _map(names), **SETTINGS[process], **keystore}
    environment = dict(BMQ_ENVIRONMENT)
    for number, (name, value) in enumerate(settings.items()):
        variable = f"BMQ_{name.upper().replace('.', '_')}"
        if PASSWORD in value:  # a file, not the environment, which the results show
            secret = folder / f"secret-{number}"
            secret.write_text(value)
            environment[f"{variable}_FILE"] = str(secret)
        else:
            environment[variable] = value
    server = BmqServer((folder / "root").as_uri(), environment=environment, folder=folder)
    stack.enter_context(server)
    return server.process, addresses


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings as a page may show them."""
    return {name: value.replace(PASSWORD, "...") for name, value in settings.items()}


def _map(names: tuple[str, ...]) -> str:
    return ",".join(f"{name}:{PROTOCOLS[name]}" for name in names)


_Start = Callable[
    [contextlib.ExitStack, str, Mapping[str, str], Path], tuple[ServiceProcess, dict[str, str]]
]  # fmt: skip
_KINDS: Mapping[str, _Start] = {"kafka-1": _kafka, "bmq-local": _bmq}
NAMES = tuple(_KINDS)


# ----------------------------------------------------------------------------------------------------- users and rights


def give_rights(address: str, acls: int) -> None:
    """Make the user that logs in, and the ACLs."""
    admin = AdminClient(
        {
            "bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": ADMIN, "sasl.password": PASSWORD, "log_level": 3,
        }
    )  # fmt: skip
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    user = UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
    for future in (
        *admin.alter_user_scram_credentials([user]).values(),
        *admin.create_acls(bindings(acls)).values(),
    ):
        future.result(TIMEOUT_S)


def bindings(count: int) -> list[AclBinding]:
    """Return the ACLs that the clients need, and others up to so many: of topics, each of its own team."""
    found = [
        _allowed(kind, TOPICS, ResourcePatternType.PREFIXED, f"User:{name}", AclOperation.ALL)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
        for name in ("ANONYMOUS", USER)
    ]
    for number in range(count - len(found)):
        is_prefix = number % 2
        found.append(
            _allowed(
                ResourceType.TOPIC, f"team-{number}{'-' if is_prefix else ''}",
                ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
                f"User:team-{number % 50}", AclOperation.WRITE if number % 4 < 2 else AclOperation.READ,
            )
        )  # fmt: skip
    return found


def _allowed(
    kind: ResourceType, name: str, pattern: ResourcePatternType, principal: str, operation: AclOperation
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def require_refusal(deployment: Deployment) -> None:
    """Raise RuntimeError if the client may make a topic that no ACL lets it make."""
    admin = AdminClient({"bootstrap.servers": deployment.bootstrap, "log_level": 3, **deployment.properties})
    try:
        admin.create_topics([NewTopic(REFUSED, 1, 1)])[REFUSED].result(TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].name() == "TOPIC_AUTHORIZATION_FAILED":
            return
        raise
    raise RuntimeError(f"{deployment.name} let a client make a topic that no ACL lets it make")


def negotiated(deployment: Deployment) -> Negotiated:
    """Return what librdkafka and a listener with TLS agree on.

    Raises RuntimeError if that is not TLS 1.3 with AES-GCM: other suites cost more or less, on either side.
    """
    (address,) = raw_client.addresses_of(deployment.bootstrap)
    with Tap(address) as tap:
        admin = AdminClient({**deployment.properties, "bootstrap.servers": tap.address, "log_level": 3})
        admin.list_topics(timeout=TIMEOUT_S)
        found = server_hello(tap.first)
    if found.version != tls_hello.VERSIONS[0x0304] or "GCM" not in found.suite:
        raise RuntimeError(f"{deployment.name} agreed on {found}, not on TLS 1.3 with AES-GCM")
    return found

"""Write the settings of `bmq serve` that are known only where its pod runs: its zone, and its address outside.

Run by the init container, with Python's standard library only.  Everything comes from the environment:

    SETTINGS_BASE, SETTINGS_FILE    the settings of all pods, and where to write those of this one
    ZONE_LABEL, NODE_NAME           the label of this node that has its zone
    INSIDE                          NAME://HOST:PORT, what clients inside are told
    OUTSIDE_LISTENER, OUTSIDE_HOST, OUTSIDE_PORT   what clients outside are told; a port 30100+2 is a sum
    POD_INDEX                       the number of this proxy
    OUTSIDE_HOSTS, OUTSIDE_FIRST    hosts, comma-separated, from that proxy on, in place of OUTSIDE_HOST
"""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API_TIMEOUT_S = 10


class SettingsError(Exception):
    """A setting cannot be made; the text says why, and what to do."""


def settings(environment: Mapping[str, str], account: Path) -> dict[str, str]:
    """Return this pod's settings by name."""
    found = {}
    if "ZONE_LABEL" in environment:
        found["zone"] = node_label(environment, account)
    if "OUTSIDE_LISTENER" in environment:
        outside = f"{environment['OUTSIDE_LISTENER']}://{outside_host(environment)}:{outside_port(environment)}"
        found["advertised.listeners"] = f"{environment['INSIDE']},{outside}"
    return found


def node_label(environment: Mapping[str, str], account: Path) -> str:
    """Ask the API server for the label of this pod's node; "" when the node does not have it."""
    host, port = environment["KUBERNETES_SERVICE_HOST"], environment["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{port}/api/v1/nodes/{environment['NODE_NAME']}"
    try:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {(account / 'token').read_text()}"})
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with opener.open(request, timeout=API_TIMEOUT_S) as response:
            labels = json.load(response)["metadata"].get("labels", {})
    except urllib.error.HTTPError as error:
        raise SettingsError(f"{url}: {error}: may the ServiceAccount get nodes?") from error
    except OSError as error:
        raise SettingsError(f"{url}: {error}") from error
    return str(labels.get(environment["ZONE_LABEL"], ""))


def outside_host(environment: Mapping[str, str]) -> str:
    """Return the host that clients outside are told; in brackets when it is an IPv6 address."""
    host = environment["OUTSIDE_HOST"]
    hosts = [name for name in environment["OUTSIDE_HOSTS"].split(",") if name]
    if hosts:
        number = int(environment["POD_INDEX"]) - int(environment["OUTSIDE_FIRST"])
        if number >= len(hosts):
            raise SettingsError(f"proxy {number} has no host: external.advertisedHosts names {len(hosts)}")
        host = hosts[number]
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def outside_port(environment: Mapping[str, str]) -> int:
    """Return the port that clients outside are told."""
    return sum(map(int, environment["OUTSIDE_PORT"].split("+")))


def main(environment: Mapping[str, str], account: Path = ACCOUNT) -> int:
    """Write the file; 1 when that is not possible."""
    try:
        found = settings(environment, account)
        # A JSON string is a TOML string.
        lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in found.items()]
        base = Path(environment["SETTINGS_BASE"]).read_text(encoding="utf-8")
        Path(environment["SETTINGS_FILE"]).write_text(f"{base.rstrip()}\n{''.join(lines)}", encoding="utf-8")
    except (SettingsError, OSError) as error:
        sys.stderr.write(f"settings: {error}\n")
        return 1
    sys.stdout.write("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))

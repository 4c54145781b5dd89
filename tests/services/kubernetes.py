"""Kubernetes' own programs, for what is shown of the chart: helm, kubectl and an API server on loopback.

python -m tests.services.kubernetes helm|apiserver      build what is missing, and print where it is
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.services import jars
from tests.services.go_programs import GoModule, build, cached, folder_of, staged_modules

HELM_VERSION = "v3.22.0"
HELM_MIN = (3, 16)
"""The first that renders for the versions of Kubernetes that the chart is for."""
KUBERNETES_VERSION = "v1.37.0"
_STAGED_VERSION = "v0.37.0"
"""Version of Kubernetes' libraries, which its own go.mod names as folders of its repository."""
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
OPERATOR_VERSION = "v0.85.0"
OPERATOR_CRDS = "example/prometheus-operator-crd"

_HELM = GoModule(
    "helm.sh/helm/v3",
    HELM_VERSION,
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    stamps={
        "helm.sh/helm/v3/internal/version.version": HELM_VERSION,
        # What `helm template` takes for the cluster's version when none is named: a plain build says 1.20.
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "37",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": "1",
        "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": "37",
    },
)


def helm() -> Path:
    """Return the program: helm 3 on the path, or one that is built the first time, in two minutes on two cores."""
    found = shutil.which("helm")
    if found is not None and _is_helm(found):
        return Path(found)
    folder = cached("helm", HELM_VERSION)
    jars.once(folder, lambda: build(_HELM, folder))
    return folder / "helm"


def _is_helm(program: str) -> bool:
    """Return whether it is a helm 3 of `HELM_MIN` or later."""
    ended = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=False, timeout=60)
    version = re.match(r"v(\d+)\.(\d+)\.", ended.stdout)
    return version is not None and HELM_MIN <= (int(version[1]), int(version[2])) < (4, 0)


def apiserver_folder() -> Path:
    """Return the folder of `kube-apiserver` and `kubectl`, after a build if this is the first time."""
    folder = cached("kubernetes", KUBERNETES_VERSION)
    jars.once(folder, lambda: _build_kubernetes(folder))
    return folder


def operator_crds() -> list[Path]:
    """Return prometheus-operator's resource definitions."""
    found = sorted((folder_of(OPERATOR_MODULE, OPERATOR_VERSION) / OPERATOR_CRDS).glob("*.yaml"))
    assert found, f"no {OPERATOR_CRDS} in {OPERATOR_MODULE} {OPERATOR_VERSION}"
    return found


def _build_kubernetes(folder: Path) -> None:
    major, minor, _ = KUBERNETES_VERSION.removeprefix("v").split(".")
    stamps = {"gitVersion": KUBERNETES_VERSION, "gitMajor": major, "gitMinor": minor}
    module = GoModule(
        "k8s.io/kubernetes",
        KUBERNETES_VERSION,
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kubectl")},
        stamps={f"k8s.io/component-base/version.{name}": value for name, value in stamps.items()},
        replaced=staged_modules("k8s.io/kubernetes", KUBERNETES_VERSION, _STAGED_VERSION),
    )
    build(module, folder)


def main(arguments: Sequence[str]) -> int:
    if arguments not in (["helm"], ["apiserver"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    for path in [helm(), *([apiserver_folder()] if arguments == ["apiserver"] else [])]:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

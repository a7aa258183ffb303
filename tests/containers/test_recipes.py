"""The recipes under deploy/compose as they are shipped, with the simulated engine for vLLM.

A `vllm` command in a test image takes their flags and runs the simulator; what a machine without
such GPUs can't give (the GPUs, RoCE) is taken out by an override of the test.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sidecar.core.grid.shapes import parse
from tests.containers.conftest import ROOT
from tests.containers.docker import Docker
from tests.containers.project import Project, made
from tests.live.process import free_port
from tests.live.sidecar import assert_heard, get, wait_until
from tests.live.vllm import Installation

FAKE = """\
#!/usr/bin/env python
import json, os, sys, time

print("flags:", json.dumps(sys.argv[1:]), flush=True)
if "FLAGS_ONLY" in os.environ:
    sys.exit()
flags = dict(zip(sys.argv, sys.argv[1:]))
if "--headless" in sys.argv:
    while True:
        print(
            "(Worker_TP1 pid=7) WARNING 11-29 16:15:35 [jit_monitor.py:135] Triton kernel JIT "
            "compilation during inference: kernel_of_rank_1. This causes a latency spike; "
            "consider extending warmup to cover this shape/config.", flush=True,
        )
        time.sleep(0.5)
kept = ("--host", "--port", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens")
arguments = [word for flag in kept if flag in flags for word in (flag, flags[flag])]
quick = ("--time-scale", "0.01", "--start-delay-s", "0.5", "--model", flags["--served-model-name"])
os.execvp("vllm-warmup", ["vllm-warmup", "sim", *quick, *arguments])
"""
DOCKERFILE = """\
ARG BASE
FROM ${BASE}
COPY --chmod=755 vllm /usr/local/bin/vllm
USER 0
ENTRYPOINT []
HEALTHCHECK NONE
"""
WITHOUT_GPUS = """\
services:
  vllm:
    deploy: !reset null
    devices: !reset []
    ulimits: !reset null
"""

GB10 = "deploy/compose/gb10-two-nodes"
RTX = "deploy/compose/rtx-pro-6000-two-gpus"


@pytest.fixture(scope="module")
def vllm_image(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("vllm-image")
    (folder / "vllm").write_text(FAKE)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    docker = Docker()
    tag = "warmup-test-vllm"
    arguments = ("--quiet", "--tag", tag, "--build-arg", f"BASE={image}")
    docker("build", *arguments, str(folder), limit_s=400)
    yield tag
    docker("image", "rm", tag, check=False)


@pytest.fixture
def project(
    docker: Docker, image: str, tmp_path: Path, vllm_image: str, request: pytest.FixtureRequest
) -> Iterator[Project]:
    """The recipe's folder, copied; `.env` as somebody would write it."""
    (tmp_path / "models").mkdir()
    with made(docker, image, tmp_path) as project:
        for file in (ROOT / request.param).iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "without-gpus.yaml").write_text(WITHOUT_GPUS)
        env = project.folder / ".env"
        env.write_text(env.read_text().replace("WARMUP_SHAPES=tiny\n", ""))
        project.set(VLLM_IMAGE=vllm_image, HF_HOME="./models", MODEL="/models/it")
        yield project


def flags(printed: str) -> list[str]:
    """What `vllm` was started with, from what the container printed."""
    (line, *_) = re.findall(r"flags: (\[.*\])", printed)
    found: list[str] = json.loads(line)
    return found


def engine_of(shapes: str) -> dict[str, int]:
    """What a shipped shapes file says of the engine's flags."""
    text = (ROOT / "shapes" / f"{shapes}.yaml").read_text()
    assert parse(text, shapes).cells
    engine: dict[str, int] = yaml.safe_load(text)["engine"]
    return engine


@pytest.mark.parametrize("project", [RTX], indirect=True)
def test_two_gpus_of_one_machine(docker: Docker, project: Project) -> None:
    """It warms the grid for these flags, with whole evidence from the file, and can be stopped."""
    project.set(COMPOSE_FILE="compose.yaml:without-gpus.yaml", VLLM_PORT=0)
    config = project.config("compose.yaml")
    assert config["services"]["vllm"]["deploy"], "the recipe itself asks for GPUs"
    project("up", "--detach", "--quiet-pull")
    assert_heard(project.wait_for("ready", "/status"), "complete")
    said = flags(project("logs", "--no-log-prefix", "vllm"))
    engine = engine_of(config["services"]["warmup"]["environment"]["WARMUP_SHAPES"])
    for flag in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
        assert said[said.index(f"--{flag.replace('_', '-')}") + 1] == str(engine[flag])
    assert "--speculative-config" not in said
    project("stop", "--timeout", "30", "vllm")
    assert docker.state(project.container("vllm"))["ExitCode"] == 0, "SIGTERM reached the engine"


@pytest.mark.parametrize("project", [GB10], indirect=True)
def test_two_nodes(docker: Docker, project: Project) -> None:
    """One sidecar reads both logs: the head's whole, of the worker what compiles there."""
    ports = [free_port() for _ in range(3)]
    project.set(
        COMPOSE_FILE="compose.head.yaml:without-gpus.yaml",
        HEAD_ADDRESS="127.0.0.1",
        WORKER_ADDRESS="127.0.0.1",
        VLLM_PORT=ports[0],
        WARMUP_LOG_PORT=ports[1],
    )
    env = project.folder / ".env"
    env.write_text(env.read_text().replace("WARMUP_PORT=0\n", f"WARMUP_PORT={ports[2]}\n"))
    project("up", "--detach", "--quiet-pull")
    worker = ("--project-name", f"{project.config()['name']}-worker")
    files = ("--file", "compose.worker.yaml", "--file", "without-gpus.yaml")
    project(*worker, *files, "up", "--detach", "--quiet-pull")
    try:
        where = f"http://127.0.0.1:{ports[2]}"
        # The worker compiles all the time here, so that no wave is quiet.
        wait_until(
            "the worker's kernel is named",
            lambda: "kernel_of_rank_1" in json.dumps(getattr(get(f"{where}/status"), "body", "")),
            120,
        )
        of_worker = flags(project(*worker, *files, "logs", "--no-log-prefix", "vllm"))
    finally:
        project(*worker, *files, "down", "--volumes", "--timeout", "0", check=False)
    wait_until("the gate is open", lambda: getattr(get(f"{where}/ready"), "status", 0) == 200, 240)
    of_head = flags(project("logs", "--no-log-prefix", "vllm"))
    engine = engine_of("deepseek-v4-flash-gb10-tp2")
    for said, rank in ((of_head, "0"), (of_worker, "1")):
        assert said[said.index("--node-rank") + 1] == rank
        assert said[said.index("--max-num-seqs") + 1] == str(engine["max_num_seqs"])
        drafts = json.loads(said[said.index("--speculative-config") + 1])
        assert drafts["num_speculative_tokens"] == engine["draft_tokens"]
        assert ("--headless" in said) == (rank == "1")


PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

serve, model, *flags = json.loads(sys.argv[1])
flags = [flag for flag in flags if flag != "--headless"]  # of `vllm serve` itself
parsed = make_arg_parser(FlexibleArgumentParser()).parse_args([model, *flags])
print(serve, parsed.max_num_seqs, parsed.tensor_parallel_size)
"""


@pytest.mark.live
@pytest.mark.parametrize("project", [GB10], indirect=True)
def test_a_real_vllm_knows_every_flag(project: Project, vllm_installation: Installation) -> None:
    """The flags of both recipes are those of a real vLLM's parser."""
    project.set(
        COMPOSE_FILE="compose.head.yaml:without-gpus.yaml",
        HEAD_ADDRESS="127.0.0.1",
        WORKER_ADDRESS="127.0.0.1",
        EXTRA_ARGUMENTS="--enable-logging-iteration-details --block-size 256 "
        "--max-num-batched-tokens 4096",
        VLLM_PORT=0,
    )
    once = ("run", "--rm", "--no-deps", "--no-TTY", "--env", "FLAGS_ONLY=1", "vllm")
    done = subprocess.run(
        [str(vllm_installation.python), "-c", PARSE, json.dumps(flags(project(*once)))],
        env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[-2] == "serve 8 2"

"""The queries of the autoscaling examples, run by Prometheus' own engine on written-down series."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar import exposition
from sidecar.core.watch.gate import State
from tests.deploy.manifests import BASE, KUBERNETES, containers, one, tool

AUTOSCALING = KUBERNETES / "autoscaling"

POD = '{namespace="default", pod="vllm-%s"}'


def document(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((AUTOSCALING / name).read_text()))


def users_requests() -> str:
    """The query that KEDA would send."""
    [trigger] = document("scaledobject.yaml")["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    return str(trigger["metadata"]["query"])


def users_tokens() -> str:
    """The query of the page, as it stands there."""
    page = (KUBERNETES / "autoscaling.md").read_text()
    found = re.search(r"```promql\n(.*?)```", page, re.DOTALL)
    assert found is not None
    return found[1]


def series(name: str, pod: str, values: str, **labels: str) -> dict[str, str]:
    more = "".join(f', {key}="{value}"' for key, value in labels.items())
    return {"series": name + (POD % pod).replace("}", more + "}"), "values": values}


def requests(pod: str, running: str, waiting: str) -> list[dict[str, str]]:
    """Both gauges of one engine, with the labels that vLLM gives them."""
    labels = {"model_name": "m", "engine": "0", "container": "vllm"}
    return [
        series("vllm:num_requests_running", pod, running, **labels),
        series("vllm:num_requests_waiting", pod, waiting, **labels),
    ]


def sidecar(pod: str, active: str, warming: str) -> list[dict[str, str]]:
    return [
        series("warmup_active", pod, active, container="warmup"),
        series("warmup_state", pod, warming, container="warmup", state="warming"),
        series("warmup_state", pod, "0x40", container="warmup", state="ready"),
    ]


def promtool_accepts(
    folder: Path, inputs: list[dict[str, str]], expr: str, expected: dict[str, float]
) -> None:
    """`expected`: by time, such as 5m, the one value that the query gives then."""
    checks = [
        {"expr": expr, "eval_time": at, "exp_samples": [{"labels": "{}", "value": value}]}
        for at, value in expected.items()
    ]
    test = {"interval": "15s", "input_series": inputs, "promql_expr_test": checks}
    (folder / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    done = subprocess.run(
        [tool("promtool", "Debian: prometheus"), "test", "rules", "test.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


SCALE_OUT = [
    # one engine serves 8 and 4 wait; a second is warmed with 32 at once from minute 2 to 6
    *requests("old", "8x40", "4x40"),
    *sidecar("old", "0x40", "0x40"),
    *requests("new", "0x8 32x15 5x15", "0x40"),
    # between the waves nothing is active
    *sidecar("new", "0x8 1 0 0 0 0 0 0 1 0 0 0 0 0 0 1 0x15", "0x8 1x14 0x15"),
]


def test_warm_up_is_no_demand(tmp_path: Path) -> None:
    """KEDA's query counts the users' requests alone, before, during and after a warm-up."""
    expected = {"1m": 12.0, "2m15s": 12.0, "3m30s": 12.0, "4m": 12.0, "5m45s": 12.0, "9m": 17.0}
    promtool_accepts(tmp_path, SCALE_OUT, users_requests(), expected)


def test_without_it_the_warm_up_calls_for_more(tmp_path: Path) -> None:
    """The plain sum would have asked for two more engines while one was being warmed."""
    plain = "sum(vllm:num_requests_running + vllm:num_requests_waiting)"
    promtool_accepts(tmp_path, SCALE_OUT, plain, {"1m": 12.0, "4m": 44.0})


def test_no_engine_is_no_demand(tmp_path: Path) -> None:
    """Where every Pod is being warmed the query says 0, not nothing: KEDA calls that an error."""
    inputs = [*requests("new", "32x40", "0x40"), *sidecar("new", "1x40", "1x40")]
    promtool_accepts(tmp_path, inputs, users_requests(), {"5m": 0.0})


def test_an_unscraped_sidecar_hides_no_user(tmp_path: Path) -> None:
    """Requests count where nothing is known of the sidecar: too many engines beat too few."""
    promtool_accepts(tmp_path, requests("old", "8x40", "4x40"), users_requests(), {"5m": 12.0})


def test_users_tokens(tmp_path: Path) -> None:
    """What the sidecar sent is taken off the engines' counters; without it nothing is."""
    inputs = [
        series("vllm:prompt_tokens_total", "old", "0+1500x80", model_name="m", container="vllm"),
        series("vllm:prompt_tokens_total", "new", "0+3000x80", model_name="m", container="vllm"),
        series("warmup_sent_prompt_tokens_total", "new", "0+3000x80", container="warmup"),
    ]
    promtool_accepts(tmp_path, inputs, users_tokens(), {"10m": 100.0})
    promtool_accepts(tmp_path, inputs[:1], users_tokens(), {"10m": 100.0})


@pytest.mark.parametrize("query", [users_requests, users_tokens])
def test_names_are_exported(query: Any) -> None:
    """Every warmup_* name in a query is one that the sidecar exports."""
    source = Path(exposition.__file__).read_text()
    names = set(re.findall(r"\bwarmup_[a-z_]+", query()))
    assert names
    assert all(f'"{name.removesuffix("_total")}"' in source for name in names)
    assert State.WARMING == "warming"


def test_examples_mean_this_deployment() -> None:
    """They name the Deployment, its labels, its ports, and stay below what an engine can run."""
    scaled = document("scaledobject.yaml")["spec"]
    assert scaled["scaleTargetRef"]["name"] == one(BASE, "Deployment")["metadata"]["name"]
    assert f"--max-num-seqs={32}" in containers(BASE)["vllm"]["args"]
    assert int(scaled["triggers"][0]["metadata"]["threshold"]) < 32
    monitor = document("podmonitor.yaml")["spec"]
    labels = one(BASE, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"] == labels
    ports = {port["name"] for each in containers(BASE).values() for port in each["ports"]}
    assert {each["port"] for each in monitor["podMetricsEndpoints"]} == ports

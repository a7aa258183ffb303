"""`target` is the simulator in the fast tier, and a real vLLM in the live one."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile
from sidecar.simulator.server import simulator
from tests.contract.target import API_KEY, MAX_MODEL_LEN, MODEL, Target, completion
from tests.live.vllm import Installation, VllmServer

FLAGS = ("--enable-prompt-tokens-details",)
DEV_MODE = {"VLLM_SERVER_DEV_MODE": "1"}
REQUEST_LIMIT_S = 60.0
FIRSTS = 4
PROFILE = Profile(
    model=MODEL,
    engine=EngineConfig(max_model_len=MAX_MODEL_LEN, prefill_s_per_token=2e-6),
    time_scale=0.2,
    api_key=API_KEY,
    prompt_tokens_details=True,
    dev_mode=True,
)


class Measured:
    """What only the first requests of a real server's life can tell."""

    def __init__(self, server: VllmServer) -> None:
        self.server = server
        self.firsts_s: list[float] = []


@pytest.fixture(scope="session")
def contract_vllm(
    vllm_installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Measured]:
    folder: Path = tmp_path_factory.mktemp("contract")
    with VllmServer(
        vllm_installation,
        folder,
        served_name=MODEL,
        max_model_len=MAX_MODEL_LEN,
        api_key=API_KEY,
        flags=FLAGS,
        env=DEV_MODE,
    ) as server:
        yield Measured(server)


@pytest.fixture(
    scope="module",
    params=[
        "simulator",
        pytest.param("vllm", marks=[pytest.mark.live, pytest.mark.timeout(300)]),
    ],
)
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    if request.param == "simulator":
        async with simulator(PROFILE) as sim, _client(sim.url) as client:
            target = Target(client)
            _tell(target, [await _first_token_s(target) for _ in range(FIRSTS)])
            yield target
        return
    measured: Measured = request.getfixturevalue("contract_vllm")
    async with _client(measured.server.url) as client:
        target = Target(client)
        while len(measured.firsts_s) < FIRSTS:
            measured.firsts_s.append(await _first_token_s(target))
        _tell(target, measured.firsts_s)
        yield target


def _tell(target: Target, firsts_s: list[float]) -> None:
    target.first_request_s, target.warm_request_s = firsts_s[0], min(firsts_s[1:])


def _client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=REQUEST_LIMIT_S)


async def _first_token_s(target: Target) -> float:
    return (await target.stream("/v1/completions", completion(8, 2)))[0].at_s

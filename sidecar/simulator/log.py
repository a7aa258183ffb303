"""Log lines in vLLM's formats, to a stream or a file."""

import time
from collections.abc import Iterable
from typing import TextIO

from sidecar.simulator.model import Paid, Step
from sidecar.simulator.profile import Profile


class Log:
    """Writes what the API server and the engine core of one process life say.

    Access lines have no prefix from 0.31 on ([31] decorate_logs); before, every line of a process
    had one ([30] utils/system_utils.py).
    """

    def __init__(self, out: TextIO | None, profile: Profile, pid: int, port: int) -> None:
        self._out = out
        self._profile = profile
        self._pid = pid
        self._port = port
        self._iterations = [0] * profile.engine.ranks
        self._told: set[str] = set()
        """Kernels named before: without --jit-monitor-verbose a name is said once a process."""

    def starting(self) -> None:
        profile, engine = self._profile, self._profile.engine
        arguments = {
            "model_tag": profile.model,
            "port": self._port,
            "model": profile.model,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            **({"enforce_eager": True} if engine.enforce_eager else {}),
            **({"jit_monitor_verbose": True} if profile.jit_monitor_verbose else {}),
            **({"enable_logging_iteration_details": True} if profile.log_iterations else {}),
        }
        self._api("INFO", "api_utils.py:286", f"non-default args: {arguments}")
        self._api("INFO", "model.py:2152", f"Using max model len {engine.max_model_len}")
        self._api(
            "INFO",
            "scheduler.py:311",
            "Chunked prefill is enabled with max_num_batched_tokens="
            f"{engine.max_num_batched_tokens}.",
        )
        if engine.enforce_eager:
            off = (
                ", CUDAGraphs, and JIT kernel warmup" if profile.minor >= 31 else " and CUDAGraphs"
            )
            self._api(
                "WARNING",
                "vllm.py:1763",
                f"Enforce eager set, disabling torch.compile{off}. This is equivalent to setting "
                "-cc.mode=none -cc.cudagraph_mode=none",
            )
        for rank in range(engine.ranks):
            self._core(rank, "INFO", "core.py:133", self._configuration())

    def _configuration(self) -> str:
        profile, engine = self._profile, self._profile.engine
        speculative = (
            f"SpeculativeConfig(method='mtp', num_spec_tokens={engine.draft_tokens})"
            if engine.draft_tokens
            else "None"
        )
        return (
            f"Initializing a V1 LLM engine (v{profile.version}) with config: "
            f"model='{profile.model}', speculative_config={speculative}, "
            f"tokenizer='{profile.model}', max_seq_len={engine.max_model_len}, "
            f"tensor_parallel_size=1, pipeline_parallel_size=1, "
            f"data_parallel_size={engine.ranks}, enforce_eager={engine.enforce_eager}, "
            "observability_config=ObservabilityConfig("
            f"enable_logging_iteration_details={profile.log_iterations}, "
            f"jit_monitor_mode='warn', jit_monitor_verbose={profile.jit_monitor_verbose}), "
            f"seed=0, served_model_name={profile.model}, "
            f"enable_prefix_caching={engine.prefix_caching}, enable_chunked_prefill=True, "
            f"compilation_config={{'cudagraph_capture_sizes': {list(capture_sizes(profile))}}}"
        )

    def ready(self, host: str) -> None:
        """From the end of the engine's start to the open port."""
        profile, engine = self._profile, self._profile.engine
        for rank in range(engine.ranks):
            self._core(
                rank,
                "INFO",
                "kv_cache_utils.py:2327",
                f"GPU KV cache size: {engine.kv_cache_tokens:,} tokens, Maximum concurrency for "
                f"{engine.max_model_len:,} tokens per request: "
                f"{engine.kv_cache_tokens / engine.max_model_len:.2f}x",
            )
            if profile.has_jit_monitor:
                self._core(
                    rank,
                    "INFO",
                    "jit_monitor.py:79",
                    "Kernel JIT monitor activated; monitored JIT compilations during inference "
                    "will use mode=warn.",
                )
            self._core(
                rank,
                "INFO",
                "core.py:402",
                "init engine (profile, create kv cache, warmup model) took "
                f"{profile.start_delay_s:.2f} s",
            )
        self._api("INFO", "entry.py:136", "Supported tasks: ['generate']")
        self._api("INFO", "entry.py:140", f"Starting vLLM server on http://{host}:{self._port}")
        self._plain(f"INFO:     Started server process [{self._pid}]")
        self._plain("INFO:     Waiting for application startup.")
        self._plain("INFO:     Application startup complete.")
        self._flush()

    def access(self, client: str, method: str, target: str, status: str) -> None:
        """Written with the response headers: before a compile that the answer waits for."""
        self._plain(f'INFO:     {client} - "{method} {target} HTTP/1.1" {status}')
        self._flush()

    def happened(self, steps: Iterable[Step], paid: Iterable[Paid]) -> None:
        for cost in paid:
            self._compiled(cost)
        if self._profile.log_iterations:
            for step in steps:
                self._iteration(step)
        self._flush()

    def step_timed_out(self) -> None:
        """The last words of an engine whose step took longer than its executor waits."""
        self._dead("TimeoutError: RPC call to execute_model timed out.")

    def out_of_memory(self) -> None:
        """Those of one that could not allocate what a prompt needs, in torch's words."""
        self._dead("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")

    def _dead(self, cause: str) -> None:
        self._core(0, "ERROR", "core.py:1166", cause)
        self._api(
            "ERROR",
            "async_llm.py:708",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See "
            "stack trace (above) for the root cause.",
        )
        self._flush()

    def _compiled(self, cost: Paid) -> None:
        profile = self._profile
        if not (cost.logged and profile.has_jit_monitor):
            return
        detail = ""
        if profile.jit_monitor_verbose:
            key = ", ".join(map(str, cost.key))
            detail = f' (constexprs={{}}; signature={{}}; extra_compile_info={{}}; key="{key}")'
        elif cost.rank or cost.rule in self._told:
            return  # once per name and process, and only the node's first rank
        self._told.add(cost.rule)
        self._core(
            cost.rank,
            "WARNING",
            "jit_monitor.py:132",
            f"Triton kernel JIT compilation during inference: {cost.rule}{detail}. This causes a "
            "latency spike; consider extending warmup to cover this shape/config.",
        )

    def _iteration(self, step: Step) -> None:
        number = self._iterations[step.rank]
        self._iterations[step.rank] += 1
        # Its elapsed time means nothing with asynchronous scheduling: 0.04 ms was seen throughout.
        self._api(
            "INFO",
            "loggers.py:182",
            f"Engine {step.rank:03d}: Iteration({number}): {step.context_requests} context "
            f"requests, {step.context_tokens} context tokens, {step.generation_requests} "
            f"generation requests, {step.generation_tokens} generation tokens, iteration elapsed "
            f"time: 0.04 ms, GPU KV cache usage: {step.kv_usage:.1%}",
        )

    def _api(self, level: str, place: str, message: str) -> None:
        self._write(f"(APIServer pid={self._pid}) {level} {_stamp()} [{place}] {message}")

    def _core(self, rank: int, level: str, place: str, message: str) -> None:
        name = "EngineCore" if self._profile.engine.ranks == 1 else f"EngineCore_DP{rank}"
        pid = self._pid + 1 + rank
        self._write(f"({name} pid={pid}) {level} {_stamp()} [{place}] {message}")

    def _plain(self, line: str) -> None:
        self._write(line if self._profile.minor >= 31 else f"(APIServer pid={self._pid}) {line}")

    def _write(self, line: str) -> None:
        if self._out is not None:
            self._out.write(line + "\n")

    def _flush(self) -> None:
        if self._out is not None:
            self._out.flush()


def capture_sizes(profile: Profile) -> tuple[int, ...]:
    """Of the CUDA graphs, by vLLM 0.33's defaults (config/vllm.py)."""
    largest = 0 if profile.engine.enforce_eager else profile.engine.capture_max
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return tuple(size for size in sizes if size <= largest)


def _stamp() -> str:
    return time.strftime("%m-%d %H:%M:%S", time.gmtime())

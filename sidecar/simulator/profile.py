"""What a simulated server is like: the flags of `vllm serve`, so to speak."""

from dataclasses import dataclass, field

from sidecar.simulator.cold import Rule
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.rulesfile import DEFAULT_RULES


@dataclass(frozen=True, slots=True)
class Profile:
    """Settings of one simulated server over all its restarts.

    Everything that the engine and its start take is multiplied by `time_scale`: 0.1 is ten times
    faster than the figures say.
    """

    model: str = "sim"
    version: str = "0.32.0"
    engine: EngineConfig = field(default_factory=EngineConfig)
    rules: tuple[Rule, ...] = DEFAULT_RULES
    seed: int = 0
    time_scale: float = 1.0
    start_delay_s: float = 0.0
    """From the start of the process to the open port; connections are refused until then."""
    api_key: str | None = None
    is_reasoning: bool = False
    """--reasoning-parser: the first half of a thinking answer comes as `reasoning`."""
    jit_monitor: bool = True
    jit_monitor_verbose: bool = False
    log_iterations: bool = False
    """--enable-logging-iteration-details"""
    log_stats: bool = True
    """False is --disable-log-stats: nearly all metric families are gone."""
    prompt_tokens_details: bool = False
    """--enable-prompt-tokens-details"""
    dev_mode: bool = False
    """VLLM_SERVER_DEV_MODE=1: /server_info, /sleep, /reset_prefix_cache …"""
    sse_keep_alive_s: float = 0.0
    """--sse-keep-alive-interval (0.29+): comments in a stream that waits for its first token, so
    many wall seconds apart; 0 is off, the default."""
    execute_timeout_s: float | None = None
    """VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS, 300 by default: a longer step kills the engine. None: the
    in-process executor of one rank, which waits for ever."""
    max_queued_requests: int | None = None
    """--max-num-queued-reqs: more are answered 503."""

    @property
    def is_multiprocess(self) -> bool:
        """Several API processes share one port, the default of internal data parallelism: /metrics
        then has no process_* and no *_created series ([33] v1/metrics/prometheus.py)."""
        return self.engine.ranks > 1

    @property
    def has_jit_monitor(self) -> bool:
        """--enforce-eager switches the kernels' warm-up off from 0.31 on, and the monitor with it
        ([31] v1/worker/gpu_worker.py)."""
        eager_is_silent = self.engine.enforce_eager and self.minor >= 31
        return self.jit_monitor and not eager_is_silent

    @property
    def minor(self) -> int:
        """Of the version: 32 of 0.32.0."""
        return int(self.version.split(".")[1])

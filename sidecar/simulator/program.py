"""`vllm-warmup sim`: the simulated server as a program of its own."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import anyio

from sidecar.core.errors import ConfigError, ExitCode, unreadable
from sidecar.simulator.model import EngineConfig
from sidecar.simulator.profile import Profile
from sidecar.simulator.rulesfile import DEMO_RULES, MAX_FILE_CHARS, parse_rules
from sidecar.simulator.server import simulator

DEMO = Profile(
    model="sim",
    start_delay_s=3.0,
    rules=DEMO_RULES,
    engine=EngineConfig(
        max_model_len=8192,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        kv_cache_tokens=65_536,
        prefill_s_per_token=2e-5,
        decode_step_s=0.006,
        noise_small=0.1,
        noise_large=0.1,
    ),
    jit_monitor_verbose=True,
)
"""What the command runs unless told otherwise: a start to wait for, a first wave that is seen to be
cold, and fast enough for a demonstration."""


def with_rules_file(profile: Profile, path: Path) -> Profile:
    """The profile with the cold rules of a file. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_FILE_CHARS + 1)
    except OSError as error:
        raise ConfigError(f"the rules file {path} can't be read {unreadable(error)}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the rules file {path} is not UTF-8 text; save it as UTF-8") from None
    return replace(profile, rules=parse_rules(text, str(path)))


def run_simulator(
    profile: Profile = DEMO,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    log_file: Path | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; logs go to `log_file`, else to stdout. Returns the exit code.

    Raises ConfigError where the port is taken or the log can't be written.
    """
    if log_file is None:
        return anyio.run(_serve, profile, host, port, sys.stdout)
    try:
        log = log_file.open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the log file {log_file}: {error}") from None
    with log:
        return anyio.run(_serve, profile, host, port, log)


async def _serve(profile: Profile, host: str, port: int, log: TextIO) -> int:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        try:
            async with simulator(profile, host=host, port=port, log=log, wait=False):
                async for _ in signals:
                    break
        except* OSError as group:
            reason = group.exceptions[0]
            raise ConfigError(f"cannot serve on {host}:{port}: {reason}") from None
    return ExitCode.WARM

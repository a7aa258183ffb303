"""`sim`: the simulated engine, for a demonstration or for trying a shapes file."""

import argparse
from dataclasses import replace
from pathlib import Path

from sidecar.simulator.axes import AXIS_RULES
from sidecar.simulator.program import DEMO, run_simulator, with_rules_file


def sim(options: argparse.Namespace) -> int:
    """Serve until a signal. Raises ConfigError where the port or a file can't be had."""
    limits = {
        name: value
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        if (value := getattr(options, name)) is not None
    }
    # A longer model gets the cache that it needs: a vLLM without would not start.
    longest = limits.get("max_model_len", 0)
    limits["kv_cache_tokens"] = max(DEMO.engine.kv_cache_tokens, 2 * longest)
    profile = replace(
        DEMO,
        model=options.model,
        seed=options.seed,
        time_scale=options.time_scale,
        api_key=options.api_key,
        dev_mode=options.dev_mode,
        log_iterations=options.log_iterations,
        sse_keep_alive_s=options.sse_keep_alive_s or 0.0,
        execute_timeout_s=options.execute_timeout_s,
        prompt_tokens_details=options.prompt_tokens_details,
        engine=replace(
            DEMO.engine, ranks=options.ranks, draft_tokens=options.draft_tokens, **limits
        ),
    )
    if options.start_delay_s is not None:
        profile = replace(profile, start_delay_s=options.start_delay_s)
    if options.rules is not None:
        profile = with_rules_file(profile, Path(options.rules))
    if options.axes:
        profile = replace(profile, rules=profile.rules + AXIS_RULES)
    log_file = None if options.log_file is None else Path(options.log_file)
    return run_simulator(profile, host=options.host, port=options.port, log_file=log_file)

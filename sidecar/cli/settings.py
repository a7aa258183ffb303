"""Flags → Settings."""

import argparse
from pathlib import Path

from sidecar.core.errors import ConfigError
from sidecar.settings import Settings, load


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings of one command line. Raises ConfigError with one sentence."""
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    settings = load(flags, settings_file=options.settings)
    options.log_level = settings.log_level  # wherever it was set: it decides about tracebacks
    return settings


def state_folder(options: argparse.Namespace) -> Path:
    """The state folder, of several engines the one that --engine names. Raises ConfigError."""
    settings = settings_of(options)
    if settings.state_dir is None:
        raise ConfigError("no state folder is set; give --state-dir or WARMUP_STATE_DIR")
    named: str | None = getattr(options, "engine", None)
    names = [engine.name for engine in settings.engines] if settings.has_names else []
    if named is None and not names:
        return settings.state_dir
    named = names[0] if named is None and len(names) == 1 else named
    if named is None or named not in names:
        what = "give --engine" if named is None else f"there is no engine {named!a}"
        known = ", ".join(names) or "one engine alone"
        raise ConfigError(f"{what}; by WARMUP_ENGINE_URLS this sidecar warms {known}")
    return settings.state_dir / named

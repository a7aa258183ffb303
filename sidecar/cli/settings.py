"""Flags → Settings."""

import argparse

from sidecar.settings import Settings, load


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings of one command line. Raises ConfigError with one sentence."""
    flags = {name: value for name, value in vars(options).items() if name in Settings.model_fields}
    settings = load(flags, settings_file=options.settings)
    options.log_level = settings.log_level  # wherever it was set: it decides about tracebacks
    return settings

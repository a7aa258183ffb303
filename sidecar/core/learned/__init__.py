"""Cells that the declared grid lacks, as the engine's own log and counters tell of them."""

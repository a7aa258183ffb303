"""Sources of the log: each yields lines, and gaps where lines may be missing."""

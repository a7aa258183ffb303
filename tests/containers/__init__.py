"""Against a real Docker Engine."""

"""Warms a vLLM server before its users come, and proves it."""

__version__ = "0.1.0"

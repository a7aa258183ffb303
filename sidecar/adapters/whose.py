"""Whose a line of the log is: with several engines every line of one's conductor says its name."""

from contextvars import ContextVar

WHOSE: ContextVar[str] = ContextVar("whose", default="")
"""The engine's name in all tasks that are its own; empty where there is one, or of none alone."""

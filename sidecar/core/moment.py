"""Moments as people read them; whatever is stored as one can be shown."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

_YEAR_9999_S = 253_370_764_800

Moment = Annotated[float, Field(ge=0, lt=_YEAR_9999_S, allow_inf_nan=False)]
"""Seconds since 1970, UTC. Read from a file, another number is damage."""


def stamp(moment: float) -> str:
    """`2026-11-29 12:00:00`, in UTC."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S")

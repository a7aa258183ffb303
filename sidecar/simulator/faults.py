"""What can be made to go wrong, by POST /_sim or from a test.

Every knob stays as it was set until it is set again, and survives a restart of the engine; counts
(`times`) run down. Seconds here are wall seconds: `time_scale` doesn't touch them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Garbage = Literal["sse", "line", "stream", "html", "truncate", "wrong_json"]
_Seconds = Annotated[float, Field(ge=0, le=3600)]


class FailOn(BaseModel):
    """Requests to be answered with an error: of these prompt lengths, while so many are running."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    status: Annotated[int, Field(ge=400, le=599)] = 500
    message: str = "EngineCore encountered an issue. See stack trace (above) for the root cause."
    min_prompt_tokens: int = 0
    max_prompt_tokens: int = 10**9
    min_concurrency: int = 1
    """Counting the request itself."""
    times: int = 10**9


class Knobs(BaseModel):
    """The body of POST /_sim. What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    die: bool = False
    """Connections are reset, later ones refused."""
    restart_after_s: _Seconds | None = None
    """Die and, so much later, begin a new process life: everything is cold again."""
    hang: bool | None = None
    """The engine makes no step; the API process goes on answering."""
    pace: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Every step takes so many times as long."""
    health_delay_s: _Seconds | None = None
    health_status: Literal[200, 503] | None = None
    fail: FailOn | None = None
    oom_above_tokens: int | None = None
    """A prompt longer than this kills the engine. 0 switches it off."""
    reject: bool | None = None
    """503 to every request: an admission limit."""
    sleep_level: Literal[0, 1, 2] | None = None
    paused: bool | None = None
    """/pause: requests wait."""
    rescaling: bool | None = None
    """503 to everything but /health."""
    garbage: Garbage | Literal["off"] | None = None
    """What streams are made of instead: `sse` no JSON, `line` one endless line, `stream` events
    without end, `html` a page, `truncate` cut off before the end, `wrong_json` not a completion."""
    usage_offset: int | None = None
    """Usage reports so many prompt tokens more."""
    api_key: str | None = None
    """The key from now on; "" is none."""
    model: str | None = None
    alternate: bool | None = None
    """Every second scrape shows another process: what a load balancer over two engines does."""


@dataclass(slots=True)
class Faults:
    """The knobs as they stand. One simulator, one object; written by `set` only."""

    health_delay_s: float = 0.0
    health_status: int = 200
    fail: FailOn | None = None
    fail_left: int = 0
    oom_above_tokens: int = 0
    reject: bool = False
    sleep_level: int = 0
    paused: bool = False
    rescaling: bool = False
    garbage: Garbage | None = None
    usage_offset: int = 0
    hang: bool = False
    pace: float = 1.0
    alternate: bool = False
    scrapes: int = 0

    def set(self, knobs: Knobs) -> None:
        """Take over what `knobs` names; dying and restarting are the simulator's business."""
        for name in (
            "health_delay_s",
            "health_status",
            "oom_above_tokens",
            "reject",
            "sleep_level",
            "paused",
            "rescaling",
            "usage_offset",
            "hang",
            "pace",
            "alternate",
        ):
            value = getattr(knobs, name)
            if value is not None:
                setattr(self, name, value)
        if knobs.fail is not None:
            self.fail, self.fail_left = knobs.fail, knobs.fail.times
        if knobs.garbage is not None:
            self.garbage = None if knobs.garbage == "off" else knobs.garbage

    def fails(self, prompt_tokens: int, concurrency: int) -> FailOn | None:
        """The failure that this request has to meet, if any; counts it."""
        rule = self.fail
        if (
            rule is None
            or self.fail_left < 1
            or not rule.min_prompt_tokens <= prompt_tokens <= rule.max_prompt_tokens
            or concurrency < rule.min_concurrency
        ):
            return None
        self.fail_left -= 1
        return rule

    def kills(self, prompt_tokens: int) -> bool:
        return 0 < self.oom_above_tokens < prompt_tokens

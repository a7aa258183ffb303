"""Whether an engine that lives also serves: asleep, paused, being rescaled."""

from enum import StrEnum


class Presence(StrEnum):
    """What the engine does with the requests that it gets now."""

    SERVING = "serving"
    UNTOLD = "untold"
    """No answer, or none that tells."""
    SLEEP_0 = "sleeping (level 0)"
    """Only its scheduler rests (vLLM 0.32 v1/engine/core.py, sleep)."""
    SLEEP_1 = "sleeping (level 1)"
    """Weights offloaded, KV cache gone."""
    SLEEP_2 = "sleeping (level 2)"
    """Weights gone too."""
    ASLEEP = "sleeping"
    """At a level that isn't told."""
    PAUSED = "paused"
    """/pause, mostly while weights are exchanged (0.32 entrypoints/rl/online/api_router.py)."""
    RESCALING = "rescaling"
    """503 on every path, in 0.33 but for /health (entrypoints/serve/elastic_ep/middleware.py)."""

    @property
    def is_away(self) -> bool:
        return self not in (Presence.SERVING, Presence.UNTOLD)

    @property
    def keeps_kernels(self) -> bool:
        """Whether the process keeps all that it had compiled and loaded, as far as is known."""
        return self in (Presence.SLEEP_0, Presence.SLEEP_1, Presence.PAUSED)


def sentence(presence: Presence) -> str:
    """Why the gate is shut while the engine is away."""
    if presence is Presence.RESCALING:
        return (
            "the engine answers 503 on every path: it is being rescaled; its new ranks are cold, "
            "and it is warmed again after that"
        )
    if presence is Presence.PAUSED:
        return "the engine is paused (/pause): requests wait or are refused until /resume"
    return f"the engine is {presence}: requests hang until /wake_up"


def of_sleep(asleep: bool | None, level: int | None) -> Presence:
    """From vllm:engine_sleep_state; `level` is None where no state of a level was set."""
    if not asleep:
        return Presence.SERVING if asleep is False else Presence.UNTOLD
    known = {0: Presence.SLEEP_0, 1: Presence.SLEEP_1, 2: Presence.SLEEP_2}
    return Presence.ASLEEP if level is None else known.get(level, Presence.ASLEEP)

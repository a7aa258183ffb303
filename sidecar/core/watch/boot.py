"""One life of the engine process, told from another."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sidecar.core.wire.metrics import Scrape

_COUNTERS = ("requests", "prompt_tokens", "generation_tokens")
_REMEMBERED = 8
"""Identities kept to recognise one that comes back: more replicas than this hide each other."""
_STEPS_BACK = 2
"""One step back of the counters is a restart; two without a broken connection are two engines."""


class Sameness(StrEnum):
    """Whether two marks were left by the same life of the same engine."""

    SAME = "same"
    OTHER = "other"
    UNTOLD = "untold"
    """Neither can be shown: nothing comparable was there."""


@dataclass(frozen=True, slots=True)
class BootMark:
    """What tells one boot from the next. Every field may be None: it could not be read."""

    process_start_s: float | None = None
    """process_start_time_seconds; missing with several API processes and the Rust front end."""
    requests: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    version: str | None = None
    models: tuple[str, ...] | None = None
    """Ids of the base models. LoRA adapters come and go during one boot."""
    cache_config: str | None = None
    """Digest of the labels of vllm:cache_config_info."""

    def to_json(self) -> dict[str, Any]:
        """For the state folder."""
        models = None if self.models is None else list(self.models)
        return {
            "process_start_s": self.process_start_s,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "version": self.version,
            "models": models,
            "cache_config": self.cache_config,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "BootMark":
        """The mark that `to_json` gave. Raises ValueError where a field has another type."""
        models = stored.get("models")
        if models is not None and not (
            isinstance(models, list) and all(isinstance(one, str) for one in models)
        ):
            raise ValueError("models is not a list of strings")
        return cls(
            process_start_s=_figure(stored, "process_start_s"),
            requests=_figure(stored, "requests"),
            prompt_tokens=_figure(stored, "prompt_tokens"),
            generation_tokens=_figure(stored, "generation_tokens"),
            version=_word(stored, "version"),
            models=None if models is None else tuple(models),
            cache_config=_word(stored, "cache_config"),
        )


def _figure(stored: Mapping[str, Any], name: str) -> float | None:
    value = stored.get(name)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} is not a number")


def _word(stored: Mapping[str, Any], name: str) -> str | None:
    value = stored.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{name} is not a string")


def mark_of(
    scrape: Scrape | None, *, version: str | None, models: tuple[str, ...] | None
) -> BootMark:
    """The mark of a boot from what could be read of it."""
    if scrape is None:
        return BootMark(version=version, models=models)
    return BootMark(
        process_start_s=scrape.process_start_s,
        requests=scrape.total.requests,
        prompt_tokens=scrape.total.prompt_tokens,
        generation_tokens=scrape.total.generation_tokens,
        version=version,
        models=models,
        cache_config=_digest(scrape.cache_config),
    )


def _digest(labels: Mapping[str, Mapping[str, str]]) -> str | None:
    if not labels:
        return None
    text = json.dumps({engine: dict(of) for engine, of in labels.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(earlier: BootMark, later: BootMark) -> Sameness:
    """Whether `later` was left by the boot that left `earlier`.

    The start time of the process decides where both have it. Without it, counters that went
    backwards mean another boot, and counters that had moved and did not go back mean the same
    one; counters that stood at zero tell nothing, for a new boot begins there too.
    """
    for name in ("version", "models", "cache_config"):
        known = getattr(earlier, name), getattr(later, name)
        if None not in known and known[0] != known[1]:
            return Sameness.OTHER
    if earlier.process_start_s is not None and later.process_start_s is not None:
        same = earlier.process_start_s == later.process_start_s
        return Sameness.SAME if same else Sameness.OTHER
    moved = False
    for name in _COUNTERS:
        before, after = getattr(earlier, name), getattr(later, name)
        if before is None or after is None:
            continue
        if after < before:
            return Sameness.OTHER
        moved = moved or before > 0
    return Sameness.SAME if moved else Sameness.UNTOLD


class Sightings:
    """Recognises a load balancer: identities that alternate, A, B, A.

    A boot that has ended never comes back, so an identity that does is another engine behind the
    same address.
    """

    def __init__(self) -> None:
        self._last: BootMark | None = None
        self._gone: list[BootMark] = []
        self._steps_back = 0

    def see(self, mark: BootMark, *, after_break: bool = False) -> bool:
        """Take the next mark; True if it shows more than one engine behind the address.

        `after_break`: a connection was refused or broken since the last mark, so that counters
        that went backwards mean a restart and no second engine.
        """
        last, self._last = self._last, mark
        if last is None or compare(last, mark) is not Sameness.OTHER:
            return False
        came_back = mark.process_start_s is not None and any(
            gone.process_start_s is not None and compare(gone, mark) is Sameness.SAME
            for gone in self._gone
        )
        self._gone = [*self._gone, last][-_REMEMBERED:]
        self._steps_back = 0 if after_break else self._steps_back + 1
        return came_back or (mark.process_start_s is None and self._steps_back >= _STEPS_BACK)

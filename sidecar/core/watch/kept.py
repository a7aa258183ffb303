"""A verdict that outlives the sidecar, and whether it holds for the engine that is there now."""

from dataclasses import dataclass, fields
from functools import cache

from pydantic import TypeAdapter, ValidationError

from sidecar.core.facts import EngineFacts
from sidecar.core.judge.calls import log_missing
from sidecar.core.judge.verdict import GridVerdict
from sidecar.core.watch.boot import BootMark, Sameness, compare

FORMAT = 1

FRESH_S = 60.0
"""Where only counters tell a boot, how old the last look at them may be. In less time no vLLM has
ended, started and served as much again as the one before; in more it may have."""

_LOOSE = frozenset({"sources", "request_fields"})
"""Facts that say nothing of what the engine is: where a fact was read, and its API's fields."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What opened the gate, of one boot."""

    boot: BootMark
    """The newest mark of it."""
    marked_at: float
    """When that was taken, in seconds since 1970, UTC."""
    url: str
    """Where that boot was."""
    shapes_digest: str
    facts: EngineFacts
    verdict: GridVerdict
    proven: bool
    reasons: tuple[str, ...]
    nonce: str
    format: int = FORMAT


@cache
def _adapter() -> TypeAdapter[Kept]:
    return TypeAdapter(Kept)


def to_json(kept: Kept) -> str:
    return _adapter().dump_json(kept).decode()


def from_json(text: str | bytes) -> Kept:
    """Raises ValueError with one sentence when the text is no kept verdict of this format."""
    try:
        kept = _adapter().validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise ValueError(f"at {where}: {first['msg']}") from problem
    if kept.format != FORMAT:
        raise ValueError(f"format {kept.format} is not {FORMAT}")
    return kept


def objection(
    kept: Kept,
    *,
    boot: BootMark,
    now: float,
    url: str,
    shapes_digest: str,
    facts: EngineFacts,
    open_unproven: bool,
    require_log: bool = False,
) -> str | None:
    """Why a kept verdict does not hold; None: it does.

    A boot that can't be told from the kept one counts as another: what is adopted must be known.
    `now` is in seconds since 1970.
    """
    if kept.shapes_digest != shapes_digest:
        return "the shapes file was changed"
    if compare(kept.boot, boot) is not Sameness.SAME:
        return "the engine is not surely the boot that was warmed"
    unseen_s = now - kept.marked_at
    # A start time is hardly shared by two engines; counters are, as those of two idle ones.
    by_counters = kept.boot.process_start_s is None or boot.process_start_s is None
    if by_counters and kept.url != url:
        return "the engine does not tell when its process started, and its address was another"
    if by_counters and not 0 <= unseen_s <= FRESH_S:
        return (
            "the engine does not tell when its process started, and its counters were last seen "
            f"{unseen_s:.0f} s ago"
        )
    changed = [
        field.name
        for field in fields(EngineFacts)
        if field.name not in _LOOSE
        and _contradict(getattr(kept.facts, field.name), getattr(facts, field.name))
    ]
    if changed:
        return f"the engine differs in {', '.join(changed)}"
    if not kept.proven and not open_unproven:
        return "it was not proven, and on_unproven is closed"
    if require_log and (missing := log_missing(kept.verdict)) is not None:
        return f"it does not stand on the log, which WARMUP_REQUIRE_EVIDENCE asks for: {missing}"
    return None


def _contradict(kept: object, now: object) -> bool:
    """What could not be learned, then or now, contradicts nothing."""
    return kept is not None and now is not None and kept != now

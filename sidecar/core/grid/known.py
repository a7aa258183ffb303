"""What the engine says of itself, completed with what the operator says of it."""

from dataclasses import dataclass, replace
from typing import Any

from sidecar.core.facts import EngineFacts
from sidecar.core.grid.shapes import EngineHints

FROM_FILE = "shapes file"


@dataclass(frozen=True, slots=True)
class Known:
    """Facts with their gaps filled, and what was contradictory."""

    facts: EngineFacts
    warnings: tuple[str, ...]


def known_facts(facts: EngineFacts, hints: EngineHints) -> Known:
    """What was learned wins; what the operator says otherwise becomes a warning."""
    filled: dict[str, Any] = {}
    warnings = []
    for name in EngineHints.__dataclass_fields__:
        hint, learned = getattr(hints, name), getattr(facts, name)
        if hint is None or hint == learned:
            continue
        if learned is None:
            filled[name] = hint
        else:
            warnings.append(
                f"the shapes file says {name} is {hint}, the engine says {learned}"
                f" ({facts.sources.get(name, 'as learned')}): the engine is believed"
            )
    if not filled:
        return Known(facts, tuple(warnings))
    sources = dict(facts.sources) | dict.fromkeys(filled, FROM_FILE)
    if "draft_tokens" in filled and facts.speculation is None:
        filled["speculation"] = filled["draft_tokens"] > 0
        sources["speculation"] = FROM_FILE
    return Known(replace(facts, **filled, sources=sources), tuple(warnings))

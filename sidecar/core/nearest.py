"""Names that were mistyped."""

import difflib
from collections.abc import Iterable


def suggest(name: str, known: Iterable[str]) -> str:
    """` (did you mean "b"?)` for the nearest of the known names, or nothing if none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f' (did you mean "{matches[0]}"?)' if matches else ""

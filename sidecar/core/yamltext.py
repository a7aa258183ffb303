"""YAML text → plain values that know their lines. Safe, and bounded in every direction.

Anchors and aliases are allowed, but each use counts as if it had been written out, so that a
few lines can't unfold into millions of values. Two equal keys in one mapping are an error: YAML
would silently keep the last.
"""

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from sidecar.core.errors import ConfigError

MAX_BYTES = 256 * 1024  # 1,000 cells written one a line take about 90 KiB
MAX_DEPTH = 16  # a JSON schema inside a variant is the deepest honest thing
MAX_VALUES = 20_000

Path = tuple[str | int, ...]

# libyaml where the wheel has it: it reads the largest allowed file in a tenth of the time.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = yaml.constructor.SafeConstructor()
_KNOWN_SCALARS = frozenset(f"tag:yaml.org,2002:{t}" for t in ("null", "bool", "int", "float"))
_TEXT_SCALARS = frozenset(f"tag:yaml.org,2002:{t}" for t in ("str", "timestamp", "value"))
_SURPRISING = re.compile(r"[-+]?(0[0-9_]+|[0-9][0-9_]*(:[0-9_.]+)+)")
"""What YAML 1.1 counts by eights (0350 is 232) or by sixties (1:30 is 90)."""
_COLLECTIONS = frozenset(f"tag:yaml.org,2002:{t}" for t in ("map", "seq"))


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `lines` maps the path of each value to its line, from 1."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)

    def there(self, path: Path) -> Path:
        """Of a path, what the text has: pydantic adds names of union members, which it doesn't."""
        at: Path = ()
        for element in path:
            if (*at, element) in self.lines:
                at = (*at, element)
        return at

    def line_of(self, path: Path) -> int:
        """The line of the value at `path`, or of the nearest one around it."""
        return self.lines.get(self.there(path), 1)


def load(text: str, name: str) -> Document:
    """Read one document. Raises ConfigError, `name:line: what`, for anything out of bounds."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES // 1024} KiB; split it or shorten it")
    try:
        _check_events(text, name)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(_not_yaml(error, name)) from None
    if node is None:
        raise ConfigError(f"{name}: is empty; it should declare at least a grid or cells")
    walk = _Walk(name)
    value = walk.value(node, (), 0)
    return Document(value, walk.lines)


def _check_events(text: str, name: str) -> None:
    """Depth and number of events before anything recursive sees them."""
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
    for count, event in enumerate(events):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        line = event.start_mark.line + 1
        if depth > MAX_DEPTH:
            raise ConfigError(f"{name}:{line}: nested deeper than {MAX_DEPTH} levels; flatten it")
        if count > MAX_VALUES:
            raise ConfigError(f"{name}:{line}: more than {MAX_VALUES} values; shorten the file")


def _not_yaml(error: yaml.YAMLError, name: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    where = f"{name}:{mark.line + 1}" if mark is not None else name
    if "nesting depth" in problem:
        return f"{where}: nested deeper than {MAX_DEPTH} levels; flatten it"
    if "expected a single document" in str(error):
        problem = "a second document starts"
    return f"{where}: not valid YAML ({problem}); correct the syntax at or just above this line"


class _Walk:
    """Builds values from nodes. Aliased nodes are walked, and counted, once per use."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines: dict[Path, int] = {}
        self.count = 0

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError(
                f"{self.name}:{line}: unfolds to more than {MAX_VALUES} values; "
                "write it without nested aliases"
            )
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self.name}:{line}: an alias contains itself; write it out")
        self.lines.setdefault(path, line)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
            raise ConfigError(f"{self.name}:{line}: the tag {node.tag} is not allowed; remove it")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(n, (*path, i), depth + 1) for i, n in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[Hashable, Any]:
        built: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self.name}:{line}: a key must be a plain name")
            # Keys stay text, whatever they look like: `1:` in a logit_bias, `on:` in a template.
            key = key_node.value
            if key in built:
                raise ConfigError(
                    f'{self.name}:{line}: the key "{key}" is there twice; keep one of them'
                )
            self.lines[(*path, key)] = line
            built[key] = self.value(value_node, (*path, key), depth + 1)
        return built

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        if node.tag in _TEXT_SCALARS:
            return node.value
        if node.tag in _KNOWN_SCALARS:
            if _SURPRISING.fullmatch(node.value) and node.tag.endswith(("int", "float")):
                raise ConfigError(
                    f"{self.name}:{line}: YAML reads {node.value[:40]} as another number; write it "
                    "without a leading 0 and without colons"
                )
            try:
                return _SCALARS.construct_object(node)
            except (ValueError, OverflowError, yaml.YAMLError):
                raise ConfigError(
                    f"{self.name}:{line}: {node.value[:40]} is no usable number; correct it"
                ) from None
        raise ConfigError(f"{self.name}:{line}: the tag {node.tag} is not allowed; remove it")

"""What a compile line itself says of the batch or of the requests that it was for: guesses.

Only a step line says what the engine did. A kernel's arguments are its author's, and a name says
what it is called: both are told as what they are.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sidecar.core.watch.escapes import Escape

_TOKENS = ("num_tokens", "n_tokens", "num_actual_tokens", "total_tokens", "seqlen", "seq_len", "M")
_REQUESTS = ("num_reqs", "num_seqs", "num_rows", "n_rows", "batch_size", "batch")
_ARGUMENT = re.compile(r"(?<![A-Za-z0-9_])([A-Za-z_][A-Za-z0-9_]{0,60})=(\d{1,9})(?![\d.])")
_SHAPE = re.compile(r"=\((\d{1,9})(?=[,)])")


@dataclass(frozen=True, slots=True)
class Asked:
    """How requests must have been made for a kernel to run."""

    name: str
    """For the variant that the shapes file is to declare."""
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def field(self) -> str:
        return next(iter(self.fields))


ASKED = (
    ("bitmask", Asked("structured", {"structured_outputs": {"regex": "[a-z]{2000}"}})),
    ("log_softmax", Asked("logprobs", {"logprobs": 5})),
    ("logprob", Asked("logprobs", {"logprobs": 5})),
    ("min_p", Asked("min-p", {"min_p": 0.05})),
    ("topk_topp", Asked("top-k-top-p", {"top_k": 20, "top_p": 0.9})),
    ("penalt", Asked("penalties", {"repetition_penalty": 1.1})),
)
"""Part of a kernel's name → the field that asks for it. `_topk_log_softmax_kernel` (#55577),
`apply_token_bitmask_inplace_kernel` (xgrammar), `_topk_topp_kernel` (#45601) and vLLM 0.33
v1/worker/gpu/sample."""


@dataclass(frozen=True, slots=True)
class Hint:
    """What one line gives a guess of; None: nothing."""

    tokens: int | None = None
    """Of the step."""
    requests: int | None = None
    asked: Asked | None = None
    why: str = ""
    """Where the guess comes from, for people."""


def hint_of(escape: Escape) -> Hint:
    """The guesses that an escape allows."""
    kernel = escape.kernel.lower()
    asked = next((asked for part, asked in ASKED if part in kernel), None)
    first = Counter(int(size) for size in _SHAPE.findall(escape.shapes) if int(size))
    if first:
        # The weights have shapes too: the step's size is what most of the arguments begin with.
        return Hint(tokens=first.most_common(1)[0][0], asked=asked, why="its runtime shapes")
    constexprs = escape.detail.partition("constexprs={")[2].partition("}; signature=")[0]
    given = {name: int(value) for name, value in _ARGUMENT.findall(constexprs)}
    tokens = next((given[name] for name in _TOKENS if given.get(name)), None)
    requests = next((given[name] for name in _REQUESTS if given.get(name)), None)
    why = "its arguments" if tokens or requests else "its name" if asked else ""
    return Hint(tokens, requests, asked, why)

"""A small exact tokenizer with merges, and a chat template with a real overhead.

2,048 ids: 0-2 special, 3-258 the bytes, then pieces of one to three lower-case letters with or
without a leading space, 2046 and 2047 `<think>` and `</think>`. Greedy, longest piece first: the
count of a text is not a multiple of its length, and it changes where texts are joined, as with
real ones. Every text can be written, and `decode(encode(text)) == text`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

VOCAB_SIZE = 2048
END_OF_TEXT, TURN_START, TURN_END, THINK, THINK_END = 0, 1, 2, 2046, 2047
SPECIAL = {
    "<|endoftext|>": END_OF_TEXT,
    "<|im_start|>": TURN_START,
    "<|im_end|>": TURN_END,
    "<think>": THINK,
    "</think>": THINK_END,
}
FIRST_BYTE, FIRST_PIECE = 3, 259
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _make_pieces() -> list[str]:
    pairs = ["".join(pair) for pair in product(LETTERS, repeat=2)]
    spaced = [" " + letter for letter in LETTERS] + [" " + pair for pair in pairs]
    triples = ["".join(triple) for triple in product("etaoinsr", repeat=3)]
    return (pairs + spaced + triples)[: THINK - FIRST_PIECE]


PIECES = _make_pieces()
TEXT_OF = {
    **{id_: text for text, id_ in SPECIAL.items()},
    **{FIRST_PIECE + i: piece for i, piece in enumerate(PIECES)},
}
ID_OF = {text: id_ for id_, text in TEXT_OF.items()}
PARTS = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")|( ?[a-z]+)|(.)", re.DOTALL)


@lru_cache(maxsize=20_000)
def _encode_word(word: str) -> tuple[int, ...]:
    ids: list[int] = []
    at = 0
    while at < len(word):
        for size in (3, 2):
            id_ = ID_OF.get(word[at : at + size])
            if id_ is not None and at + size <= len(word):
                ids.append(id_)
                at += size
                break
        else:
            ids.append(FIRST_BYTE + ord(word[at]))
            at += 1
    return tuple(ids)


def encode(text: str) -> list[int]:
    ids: list[int] = []
    for special, word, other in PARTS.findall(text):
        if word:
            ids += _encode_word(word)
        elif special:
            ids.append(SPECIAL[special])
        else:
            ids += (FIRST_BYTE + byte for byte in other.encode("utf-8", "surrogatepass"))
    return ids


def decode(ids: Iterable[int], *, skip_special: bool = False) -> str:
    """Ids out of range are left out; bytes that are no UTF-8 become U+FFFD."""
    raw = bytearray()
    for id_ in ids:
        if FIRST_BYTE <= id_ < FIRST_PIECE:
            raw.append(id_ - FIRST_BYTE)
        elif not (skip_special and id_ in (END_OF_TEXT, TURN_START, TURN_END)):
            raw += TEXT_OF.get(id_, "").encode()
    return raw.decode("utf-8", "replace")


def render_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    enable_thinking: bool = True,
    tools: Sequence[Any] = (),
) -> str:
    """A template like Qwen3's: switching thinking off writes an empty thought."""
    parts = [f"<|im_start|>system\n{json.dumps(tools)}<|im_end|>\n"] if tools else []
    for message in messages:
        parts.append(f"<|im_start|>{message.get('role', '')}\n{_content(message)}<|im_end|>\n")
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
        if not enable_thinking:
            parts.append("<think>\n\n</think>\n\n")
    return "".join(parts)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)

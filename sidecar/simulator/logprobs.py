"""Log probabilities as answers carry them: of the right number and shape, and nothing else."""

from collections.abc import Sequence
from typing import Any

from sidecar.simulator import tokenizer

_LIKELY = -1.5


def text_logprobs(number: int | None, ids: Sequence[int]) -> dict[str, Any] | None:
    """Of /v1/completions."""
    if number is None:
        return None
    texts = [tokenizer.decode([token]) for token in ids]
    offsets = [sum(map(len, texts[:i])) for i in range(len(texts))]
    return {
        "text_offset": offsets,
        "token_logprobs": [_LIKELY] * len(texts),
        "tokens": texts,
        "top_logprobs": [_top_texts(number, token) for token in ids],
    }


def chat_logprobs(number: int | None, ids: Sequence[int]) -> dict[str, Any] | None:
    """Of /v1/chat/completions; 0: of the sampled tokens alone."""
    if number is None:
        return None
    entries = []
    for token in ids:
        top = [_entry(text) for text in list(_top_texts(number, token))[:number]]
        entries.append({**_entry(tokenizer.decode([token])), "top_logprobs": top})
    return {"content": entries}


def prompt_logprobs(number: int, ids: Sequence[int]) -> list[dict[str, Any] | None]:
    """By token id; nothing goes before the first token, so that it has none."""
    told: list[dict[str, Any] | None] = [None]
    for token in ids[1:]:
        near = [token, *(n for n in range(tokenizer.FIRST_PIECE, 2000) if n != token)]
        told.append(
            {
                str(n): {"logprob": _LIKELY, "rank": i + 1, "decoded_token": tokenizer.decode([n])}
                for i, n in enumerate(near[: max(1, number)])
            }
        )
    return told


def _top_texts(number: int, token: int) -> dict[str, float]:
    """Different texts, the sampled token's own first."""
    own = tokenizer.decode([token])
    others = [text for text in tokenizer.PIECES[: number + 1] if text != own]
    return dict.fromkeys([own, *others][: max(1, number)], _LIKELY)


def _entry(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": _LIKELY, "bytes": list(text.encode())}

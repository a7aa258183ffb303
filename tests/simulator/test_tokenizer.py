"""The small tokenizer: exact, reversible, with merges."""

import random

import pytest

from sidecar.simulator import tokenizer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello there",
        "the quick brown fox",
        "ünï ☃ 漢字",
        "<think>a</think><|im_end|>",
        "  \n\t",
    ],
)
def test_every_text_comes_back(text: str) -> None:
    """decode(encode(text)) is the text, whatever is in it."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_texts_come_back_and_stay_in_the_vocabulary() -> None:
    """The same for 200 seeded random texts; every id is below the vocabulary's size."""
    draw = random.Random(5)
    for _ in range(200):
        text = "".join(draw.choices("abcdefgh tieo ÄÖ7.!\n", k=draw.randint(1, 60)))
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= id_ < tokenizer.VOCAB_SIZE for id_ in ids)


def test_joining_texts_changes_the_count() -> None:
    """Merges cross the seam: a count can't be had by adding parts, as with real tokenizers."""
    parts = [len(tokenizer.encode(part)) for part in ("the", "ta")]
    assert len(tokenizer.encode("theta")) < sum(parts)


def test_the_template_has_an_overhead_that_thinking_changes() -> None:
    """An empty message costs tokens; switching thinking off costs more."""
    counts = [
        len(tokenizer.encode(tokenizer.render_chat([{"role": "user"}], enable_thinking=thinks)))
        for thinks in (True, False)
    ]
    assert 5 < counts[0] < counts[1]


def test_parts_of_a_message_are_joined() -> None:
    """Content as a list of text parts renders like the joined text."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}]
    assert tokenizer.render_chat(parts) == tokenizer.render_chat(
        [{"role": "user", "content": "ab"}]
    )

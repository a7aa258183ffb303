"""Prompts that are exact to the token."""

import re
import time

import pytest

from sidecar.core.errors import ConfigError
from sidecar.core.facts import TokenIds
from sidecar.core.wire.prompts import (
    PIECE_IDS,
    SAFE_IDS,
    ChatFitter,
    TemplateSense,
    id_pieces,
    seed_of,
    usable_ids,
)

PIECES = re.compile(r" ?\w+|[^\w\s]|\s")


def by_words(text: str) -> int:
    """A tokenizer for which a short word is a token; its template takes 13."""
    return 13 + len(PIECES.findall(text))


def by_bytes(text: str) -> int:
    return 20 + len(text.encode())


def by_threes(text: str) -> int:
    """Words fall into pieces of three letters."""
    return 7 + sum(-(-len(piece) // 3) for piece in PIECES.findall(text))


def by_twos(text: str) -> int:
    """A word costs two tokens, so that odd rests need another filler."""
    return 5 + sum(2 if piece.strip().isalpha() else 1 for piece in PIECES.findall(text))


def fit(count, tokens: int, sense: TemplateSense, repetitive: bool = False):
    """The fitted text and how often it had to be counted."""
    fitter = ChatFitter(tokens, tokens, sense, repetitive=repetitive)
    for steps in range(1, 100):
        if fitter.told(count(fitter.text)):
            return fitter.text, steps
    raise AssertionError("it goes on for ever")


def ids_of(tokens: int, ids: TokenIds = SAFE_IDS, seed: int = 1, repetitive: bool = False):
    pieces = list(id_pieces(tokens, ids, seed, repetitive=repetitive))
    assert all(len(piece) <= PIECE_IDS for piece in pieces)
    return [one for piece in pieces for one in piece]


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, PIECE_IDS, PIECE_IDS + 1, 40_000])
@pytest.mark.parametrize("repetitive", [False, True])
def test_id_prompts_have_their_exact_length(tokens: int, repetitive: bool) -> None:
    """Every length, all ids inside the range or of the phrase."""
    ids = TokenIds(2000, 2999, (5, 6, 7))
    made = ids_of(tokens, ids, repetitive=repetitive)
    assert len(made) == tokens
    assert set(made) <= {5, 6, 7, *range(2000, 3000)}


def test_a_seed_repeats_a_prompt_and_a_nonce_changes_it() -> None:
    """What the run printed makes the same prompt again, another run makes another."""
    assert ids_of(100, seed=seed_of("run", 1, "0")) == ids_of(100, seed=seed_of("run", 1, "0"))
    assert ids_of(100, seed=seed_of("run", 1, "0")) != ids_of(100, seed=seed_of("run", 1, "1"))
    assert ids_of(100, seed=seed_of("run", 1, "0")) != ids_of(100, seed=seed_of("other", 1, "0"))


def test_prompts_for_speculation_repeat_a_phrase_after_a_nonce() -> None:
    """No draft is accepted on random ids; the beginning still differs from prompt to prompt."""
    ids = TokenIds(2000, 2999, (5, 6, 7))
    one, two = (ids_of(30, ids, seed, repetitive=True) for seed in (1, 2))
    assert one[8:14] == [5, 6, 7, 5, 6, 7]
    assert one[:8] != two[:8]
    assert min(ids_of(30, TokenIds(2000, 2999), repetitive=True)) >= 2000  # no phrase known


@pytest.mark.parametrize(
    ("vocab", "probed", "low", "high"),
    [
        (151_936, None, 1024, 142_439),
        (None, [9, 120_000, 40], 1024, 120_000),
        (2048, [1980, 600], 479, 1919),
        (151_936, [9, 120_000, 40], 1024, 120_000),
    ],
)
def test_ids_stay_off_both_ends_of_the_vocabulary(
    vocab: int | None, probed: list[int] | None, low: int, high: int
) -> None:
    """Special and added ids stand at the ends."""
    ids = usable_ids(vocab_size=vocab, probed=probed, phrase=[3])
    assert ids == TokenIds(low, high, (3,))


def test_nothing_known_gives_no_range() -> None:
    """Then the caller falls back to the safe one."""
    assert usable_ids(vocab_size=None, probed=None, phrase=None) is None


@pytest.mark.parametrize("count", [by_words, by_bytes, by_threes, by_twos])
def test_chat_is_exact_from_the_shortest_message_on(count) -> None:
    """Every length above the template's own, and a few long ones, in few counts."""
    sense = TemplateSense()
    least = count("a")
    steps = []
    for tokens in [*range(least, least + 120), 1000, 4097, 130_000]:
        text, taken = fit(count, tokens, sense)
        assert count(text) == tokens
        steps.append(taken)
    assert sum(steps) / len(steps) < 10


def test_the_second_fit_starts_near() -> None:
    """What one fit taught about the template saves counts for the next."""
    sense = TemplateSense()
    fit(by_threes, 2000, sense)
    assert fit(by_threes, 2001, sense)[1] <= 4


def test_chat_for_speculation_repeats_too() -> None:
    """Still exact."""
    text, _ = fit(by_words, 500, TemplateSense(), repetitive=True)
    assert text.count("e f g a b") > 10


def test_a_length_below_the_template_names_the_least() -> None:
    """One sentence with the number to write instead, at the first try and later."""
    sense = TemplateSense()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"takes 13 by itself.*prompt_tokens to 14 or more"):
            fit(by_words, 13, sense)


def test_a_template_that_can_not_be_met_ends_in_a_sentence() -> None:
    """Counts that never reach the length end the fit, with a length that works."""
    with pytest.raises(ConfigError, match="exactly 100 tokens"):
        fit(lambda text: 9 + 2 * len(text), 100, TemplateSense())


@pytest.mark.parametrize("tokens", [12, 16, 38, 100, 20_000])
@pytest.mark.parametrize("says", [lambda text: 9 + 2 * len(text.split()), lambda text: 11])
def test_a_count_that_leads_nowhere_ends_in_a_sentence(says, tokens: int) -> None:
    """A stranger's /tokenize may say anything: the fit neither goes on for ever nor grows."""
    longest = ""

    def count(text: str) -> int:
        nonlocal longest
        longest = max(longest, text, key=len)
        return says(text)

    with pytest.raises(ConfigError, match=f"exactly {tokens} tokens.*set prompt_tokens to"):
        fit(count, tokens, TemplateSense())
    assert len(longest.split()) <= 9 * tokens


def test_a_piece_is_made_in_milliseconds() -> None:
    """131,072 ids are made between the ticks of the event loop; 2 ms a piece, 200 ms of CPU
    allowed: other programs run too."""
    longest = 0.0
    pieces = id_pieces(131_072, SAFE_IDS, 1, repetitive=False)
    while True:
        started = time.thread_time()
        piece = next(pieces, None)
        if piece is None:
            break
        ",".join(map(str, piece))
        longest = max(longest, time.thread_time() - started)
    assert longest < 0.2

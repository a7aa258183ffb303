"""Prompts that are exact to the token: random ids for completions, fitted text for chat.

Everything is drawn from a seed that carries the nonce of the run, so no two runs send the same
prompt: an external KV store would answer it from its copy. Ids are made in pieces of a millisecond
or two, for a caller that lets its event loop breathe in between.
"""

import hashlib
import math
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from sidecar.core.errors import ConfigError
from sidecar.core.facts import TokenIds

SAFE_IDS = TokenIds(1024, 30_000)
"""Where neither the vocabulary nor /tokenize is known. Vocabularies of served models start at
32,000 ids; special ids stand below 1,000 (Mistral, Gemma) or at the very end (Llama, Qwen)."""

PIECE_IDS = 8192
"""Ids made in one go: 1-2 ms."""

_NONCE_IDS = 8
"""Random ids before a repeated phrase, so that no two prompts begin alike."""

_NONCE_WORDS = 3
"""The same in a chat message, where the words share a short prompt with the template."""

_LOW_SPECIAL = 1024
_TAIL_SHARE = 16
"""The last sixteenth of a vocabulary is left out: Gemma's image ids stand 2.4 % before its end."""

PHRASE = " a b c d e f g"
"""A text that any model goes on with: its drafts are accepted, those for random ids never are. It
is short, so that it repeats in a prompt of thirty tokens already."""

_COMMON = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city name team minute idea body back parent face level office door health "
    "person art war history party result change morning reason research girl moment air teacher"
)
WORDS = tuple(_COMMON.split())

PROBE_TEXT = (
    " ".join(WORDS)
    + "\ndef f(x): return {'a': [x * 2, None]}  # 3.14159 <b> && || !=\n"
    + "Straßenbahn naïve façade señor coração łódź jeugdherberg sähköposti kelimeler\n"
    + "пожалуйста электричество Καλημέρα שלום مرحبا नमस्ते สวัสดี 안녕하세요 ありがとう 谢谢\n"
    + "antidisestablishment photosynthesis hydrochloride Kubernetes serialization subpoena zygote\n"
)
"""Ordinary text of many kinds: the highest id in it comes near the end of the ordinary ones."""

_FILLERS = ((" ", "a"), (" ", "I"), (" ", "."), (" ", "1"), ("", "z"), ("", "!"), ("\n", "x"))
"""How the last few tokens are filled up: (joined by, atom). Most tokenizers take the first."""

_MAX_STEPS = 48

_MOST_WORDS_A_TOKEN = 4
"""A message of more words, or fillers, is not made: whoever counts so low does not count."""


def seed_of(nonce: str, *parts: int | str) -> int:
    """A seed from the run's nonce and what the prompt is for."""
    text = "/".join([nonce, *map(str, parts)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])


def usable_ids(
    *, vocab_size: int | None, probed: Sequence[int] | None, phrase: Sequence[int] | None
) -> TokenIds | None:
    """Ids that surely are ordinary ones; None if nothing is known.

    `probed` are the ids of PROBE_TEXT and `phrase` those of PHRASE, both without special ids.
    """
    ends = []
    if probed:
        ends.append(max(probed))
    if vocab_size is not None:
        ends.append(vocab_size - 1 - vocab_size // _TAIL_SHARE)
    if not ends:
        return None
    high = min(ends)
    low = _LOW_SPECIAL if high >= 8 * _LOW_SPECIAL else high // 4
    return TokenIds(low, high, tuple(phrase or ()))


def id_pieces(tokens: int, ids: TokenIds, seed: int, *, repetitive: bool) -> Iterator[list[int]]:
    """Exactly `tokens` ids, in pieces of at most PIECE_IDS.

    `repetitive`: the engine speculates; after a few random ids its own phrase is repeated (random
    ids go on where no phrase is known).
    """
    rng = random.Random(seed)
    if repetitive and ids.phrase:
        head = min(tokens, _NONCE_IDS)
        yield _random_ids(rng, head, ids)
        phrase = cycle(ids.phrase)
        for start in range(head, tokens, PIECE_IDS):
            yield list(islice(phrase, min(PIECE_IDS, tokens - start)))
        return
    for start in range(0, tokens, PIECE_IDS):
        yield _random_ids(rng, min(PIECE_IDS, tokens - start), ids)


def _random_ids(rng: random.Random, count: int, ids: TokenIds) -> list[int]:
    draws = array("I", rng.randbytes(4 * count))
    low, span = ids.low, ids.high - ids.low + 1
    return [low + draw % span for draw in draws]


@dataclass(slots=True)
class TemplateSense:
    """What fits of one variant have taught about its template, to start the next one near."""

    least: int | None = None
    """Tokens of the shortest message: the template's own and one."""
    tokens_per_word: float = 1.2


class ChatFitter:
    """Proposes a message, is told how many tokens the whole prompt has, until it is exact.

    Words up to just below the length, then single-token fillers. A filler that this tokenizer
    doesn't take as one token is given up for the next.
    """

    def __init__(
        self, tokens: int, seed: int, sense: TemplateSense, *, repetitive: bool = False
    ) -> None:
        self._target = tokens
        self._sense = sense
        self._rng = random.Random(seed)
        self._phrase = cycle(PHRASE.split()) if repetitive else None
        self._words: list[str] = []
        self._filler = 0
        self._fill = 0
        self._seen: dict[tuple[int, int, int], int] = {}
        if sense.least is not None:
            self._check_length()
            self._grow((tokens - sense.least) * 0.98 / sense.tokens_per_word)

    @property
    def text(self) -> str:
        """The message to count next; the exact one after `told` was True."""
        glue, atom = _FILLERS[self._filler]
        return " ".join(["a", *self._words]) + (glue + atom) * self._fill

    def told(self, count: int) -> bool:
        """Take the count of `text`'s whole prompt; True when it is exact.

        Raises ConfigError: shorter than the template allows, or no exact text was found.
        """
        if not self._words and not self._fill:
            self._sense.least = count
            self._check_length()
        if count == self._target:
            return True
        self._seen[len(self._words), self._filler, self._fill] = count
        self._learn(count)
        if len(self._seen) > _MAX_STEPS or not self._move(self._target - count):
            raise ConfigError(
                f"no chat message gives a prompt of exactly {self._target} tokens with this "
                f"template (the last try gave {count}): set prompt_tokens to {count}"
            )
        return False

    def _check_length(self) -> None:
        least = self._sense.least
        if least is not None and self._target < least:
            raise ConfigError(
                f"a chat prompt can't have {self._target} tokens: the template takes "
                f"{least - 1} by itself, so set prompt_tokens to {least} or more"
            )

    def _learn(self, count: int) -> None:
        if self._sense.least is not None and len(self._words) >= 8 and not self._fill:
            rate = (count - self._sense.least) / len(self._words)
            self._sense.tokens_per_word = max(0.25, rate)

    def _move(self, missing: int) -> bool:
        """To the next message; False: there is none that was not counted."""
        rate = self._sense.tokens_per_word
        if missing > 16 * rate and not self._fill:
            self._grow(missing * 0.98 / rate)
        elif missing < 0 and not self._fill:
            self._shrink(math.ceil(-missing / rate))
        else:
            self._refill(missing)
        while (len(self._words), self._filler, self._fill) in self._seen:
            if not self._next_filler():
                return False
        return True

    def _refill(self, missing: int) -> None:
        empty = self._seen.get((len(self._words), self._filler, 0))
        gained = 0.0
        if self._fill and empty is not None:
            gained = (self._target - missing - empty) / self._fill
        fill = self._fill + round(missing / (gained if gained >= 1 else 1))
        self._fill = max(0, min(fill, _MOST_WORDS_A_TOKEN * self._target))

    def _next_filler(self) -> bool:
        """Try the same words with another filler; after the last, with a word less, if there is."""
        self._filler += 1
        if self._filler == len(_FILLERS):
            if not self._words:
                return False
            self._filler = 0
            self._shrink(1)
            self._fill = 0
            return True
        words = len(self._words)
        bare = [count for (n, _, fill), count in self._seen.items() if n == words and not fill]
        self._fill = max(1, self._target - bare[0]) if bare else 0
        return True

    def _grow(self, words: float) -> None:
        most = _MOST_WORDS_A_TOKEN * self._target - len(self._words)
        count = max(0, min(int(words), most))
        if self._phrase is None:
            self._words += self._rng.choices(WORDS, k=count)
            return
        for _ in range(count):
            is_nonce = len(self._words) < _NONCE_WORDS
            self._words.append(self._rng.choice(WORDS) if is_nonce else next(self._phrase))

    def _shrink(self, words: int) -> None:
        del self._words[max(0, len(self._words) - words) :]

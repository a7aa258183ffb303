"""A vLLM engine in virtual time: API server, ranks, cold costs. Pure and deterministic by seed.

The API process parses bodies one after another, then hands each request to a rank (chosen, or the
least loaded). `Engine` keeps time and books; `scheduler.py` is one rank.
"""

import heapq
from collections import deque
from collections.abc import Iterable
from random import Random

from sidecar.simulator.cold import ColdState, Rule, Terms
from sidecar.simulator.model import Counters, Emission, EngineConfig, Paid, SimRequest, Step
from sidecar.simulator.scheduler import Booking, Rank

__all__ = ["Counters", "Emission", "Engine", "EngineConfig", "Paid", "SimRequest", "Step"]

STEPS_KEPT = 4096
NEVER_S = float("inf")


class Engine:
    """One process life of a simulated vLLM: everything is cold when it is made.

    `advance(until_s)` moves time; what is submitted or aborted in between takes effect at its own
    time, which may not lie before `now_s` (it is moved there if it does).
    """

    def __init__(
        self, config: EngineConfig, rules: Iterable[Rule] = (), *, seed: int = 0, now_s: float = 0.0
    ) -> None:
        self.config = config
        self.rules = tuple(rules)
        self.seed = seed
        self.now_s = now_s
        self.ledger: list[Paid] = []
        """Every cold cost paid in this life, in order: the truth."""
        self.steps: deque[Step] = deque(maxlen=STEPS_KEPT)
        self.steps_made = 0
        self.counters = [Counters() for _ in range(config.ranks)]
        """One per rank."""
        self._random = Random(seed)
        self._arrivals: list[tuple[float, int, SimRequest]] = []
        self._submitted = 0
        self._parser_free_s = now_s
        self._aborts: list[tuple[float, str]] = []
        self._on_rank: dict[str, Rank] = {}
        terms = Terms(
            config.max_num_batched_tokens,
            config.capture_max,
            config.top_k,
            config.draft_tokens,
            config.enforce_eager,
        )
        self._ranks = [
            Rank(config, rank, ColdState(self.rules, terms, rank), self.counters[rank])
            for rank in range(config.ranks)
        ]

    # --- in -------------------------------------------------------------------------------------

    def submit(self, request: SimRequest, at_s: float | None = None) -> None:
        """The last byte of the request's body arrives at `at_s`.

        Raises ValueError for what vLLM would answer with 400: the caller checks lengths first.
        """
        if request.prompt_tokens < 1 or request.max_tokens < 1:
            raise ValueError("a request needs a prompt token and an output token at least")
        if request.prompt_tokens + request.max_tokens > self.config.max_model_len:
            raise ValueError("prompt and output are longer than max_model_len")
        at_s = self.now_s if at_s is None else max(at_s, self.now_s)
        self._submitted += 1
        heapq.heappush(self._arrivals, (at_s, self._submitted, request))

    def abort(self, request_id: str, at_s: float | None = None) -> None:
        """The client of this request has gone. A step that computes it goes on to its end."""
        at_s = self.now_s if at_s is None else max(at_s, self.now_s)
        heapq.heappush(self._aborts, (at_s, request_id))

    # --- time -----------------------------------------------------------------------------------

    def next_event_s(self) -> float | None:
        """When something happens next; None: nothing will, until something is submitted."""
        times = [rank.next_s for rank in self._ranks if rank.next_s is not None]
        if self._arrivals:
            times.append(self._parsed_s())
        if self._aborts:
            times.append(self._aborts[0][0])
        return min(times, default=None)

    def advance(self, until_s: float) -> list[Emission]:
        """Everything that comes out up to and including `until_s`, in order of time."""
        out = self._play(until_s)
        self.now_s = max(self.now_s, until_s)
        return out

    def run(self, limit_s: float = 1e9) -> list[Emission]:
        """Advance until nothing is left to do, at most to `limit_s`; `now_s` is the last event."""
        return self._play(limit_s)

    def _play(self, until_s: float) -> list[Emission]:
        out: list[Emission] = []
        book = Booking(out, self.ledger, self.steps, self._random, self.seed)
        while True:
            parsed_s = self._parsed_s() if self._arrivals else NEVER_S
            rank, rank_s = self._next_rank()
            abort_s = self._aborts[0][0] if self._aborts else NEVER_S
            at_s = min(parsed_s, rank_s, abort_s)
            if at_s > until_s or at_s == NEVER_S:
                break
            self.now_s = at_s
            if at_s == abort_s:
                self._abort_one()
            elif at_s == parsed_s:
                self._hand_over(at_s)
            else:
                rank.turn(book)
        for emission in out:
            if emission.finished:
                self._on_rank.pop(emission.request_id, None)
        self.steps_made += book.steps_made
        return out

    def fork(self, *, seed: int | None = None, config: EngineConfig | None = None) -> "Engine":
        """A deep copy that shares nothing that changes: what is cold stays equally cold there.

        `seed` reseeds the noise only; a compile costs the same in every fork. `config` may change
        noise and speeds, not the number of ranks.
        """
        twin = Engine(config or self.config, self.rules, seed=self.seed, now_s=self.now_s)
        if seed is None:
            twin._random.setstate(self._random.getstate())
        else:
            twin._random.seed(seed)
        twin.ledger = list(self.ledger)
        twin.steps = self.steps.copy()
        twin.steps_made = self.steps_made
        twin.counters = [counters.copy() for counters in self.counters]
        twin._arrivals = list(self._arrivals)
        twin._submitted = self._submitted
        twin._parser_free_s = self._parser_free_s
        twin._aborts = list(self._aborts)
        twin._ranks = [
            rank.copy(twin.config, counters)
            for rank, counters in zip(self._ranks, twin.counters, strict=True)
        ]
        twin._on_rank = {id_: twin._ranks[rank.index] for id_, rank in self._on_rank.items()}
        return twin

    # --- for people and metrics -----------------------------------------------------------------

    def running(self, rank: int = 0) -> int:
        return len(self._ranks[rank].running)

    def waiting(self, rank: int = 0) -> int:
        return len(self._ranks[rank].waiting)

    def kv_usage(self, rank: int = 0) -> float:
        return self._ranks[rank].kv_usage

    def forget_prefixes(self) -> bool:
        """/reset_prefix_cache: False while blocks are held."""
        forgotten = [rank.forget_prefixes() for rank in self._ranks]
        return all(forgotten)

    # --- inside ---------------------------------------------------------------------------------

    def _parsed_s(self) -> float:
        at_s, _, request = self._arrivals[0]
        return (
            max(at_s, self._parser_free_s)
            + self.config.parse_base_s
            + self.config.parse_s_per_token * request.prompt_tokens
        )

    def _hand_over(self, at_s: float) -> None:
        _, _, request = heapq.heappop(self._arrivals)
        self._parser_free_s = at_s
        if request.rank is not None:
            rank = self._ranks[request.rank]
        else:
            rank = min(self._ranks, key=lambda r: (len(r.waiting) + len(r.running), r.served))
        self._on_rank[request.id] = rank
        rank.enqueue(request, at_s, self._random)

    def _abort_one(self) -> None:
        at_s, id_ = heapq.heappop(self._aborts)
        rank = self._on_rank.pop(id_, None)
        if rank is not None:
            rank.abort(id_)
            return
        kept = [entry for entry in self._arrivals if entry[2].id != id_ or entry[0] > at_s]
        heapq.heapify(kept)
        self._arrivals = kept

    def _next_rank(self) -> tuple[Rank, float]:
        rank = self._ranks[0]
        at_s = NEVER_S if rank.next_s is None else rank.next_s
        for other in self._ranks[1:]:
            if other.next_s is not None and other.next_s < at_s:
                rank, at_s = other, other.next_s
        return rank, at_s

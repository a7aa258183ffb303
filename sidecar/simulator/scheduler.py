"""One rank's scheduler and KV cache, like vLLM V1's: running requests first, then waiting ones.

Continuous batching, first come first served, chunked prefill within max_num_batched_tokens,
preemption of the youngest when blocks run out, prefix cache in whole blocks ([33] v1/core/sched,
v1/core/kv_cache_manager).
"""

from collections import deque
from random import Random

from sidecar.simulator.cold import ColdState, StepShape, next_pow2
from sidecar.simulator.jobs import Job, KvCache
from sidecar.simulator.model import Counters, Emission, EngineConfig, Paid, SimRequest, Step

SMALL_STEP_S = 0.2


class Booking:
    """Where a rank writes what it does during one `advance`."""

    __slots__ = ("ledger", "out", "random", "seed", "steps", "steps_made")

    def __init__(
        self,
        out: list[Emission],
        ledger: list[Paid],
        steps: deque[Step],
        random: Random,
        seed: int,
    ) -> None:
        self.out = out
        self.ledger = ledger
        self.steps = steps
        self.random = random
        self.seed = seed
        self.steps_made = 0


class Rank:
    """`next_s` is when its next turn is due: the end of the running step, or the start of one."""

    def __init__(
        self, config: EngineConfig, index: int, cold: ColdState, counters: Counters
    ) -> None:
        self.index = index
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self.next_s: float | None = None
        self.served = 0
        self._config = config
        self._cold = cold
        self._counters = counters
        self._in_step: list[Job] | None = None
        self._steady: StepShape | None = None
        """Shape of the running step, where the next one can only repeat it."""
        self._kv = KvCache(config)
        self._late: list[Emission] = []
        """Tokens that come out at `next_s`, while the running step ends at `_step_ends_s`."""
        self._step_ends_s: float | None = None

    @property
    def kv_usage(self) -> float:
        return self._kv.used / self._kv.total

    def forget_prefixes(self) -> bool:
        return self._kv.forget()

    def copy(self, config: EngineConfig, counters: Counters) -> "Rank":
        twin = Rank(config, self.index, self._cold.copy(), counters)
        jobs = {id(job): job.copy() for job in (*self.running, *self.waiting)}
        twin.running = [jobs[id(job)] for job in self.running]
        twin.waiting = deque(jobs[id(job)] for job in self.waiting)
        twin.next_s = self.next_s
        twin.served = self.served
        if self._in_step is not None:
            twin._in_step = [jobs[id(job)] for job in self._in_step]
        twin._late = list(self._late)
        twin._step_ends_s = self._step_ends_s
        twin._steady = self._steady
        twin._kv = self._kv.copy(config)
        return twin

    def enqueue(self, request: SimRequest, at_s: float, random: Random) -> None:
        self.waiting.append(Job(request, known=request.prompt_tokens))
        self._steady = None
        self.served += 1
        if self.next_s is None:
            self.next_s = at_s + self._config.wake_s * random.random()

    def abort(self, request_id: str) -> None:
        """Nothing more comes out of it. What a running step computes, it computes to the end.

        No finished_reason counts it: vLLM 0.32 doesn't, though there is an `abort`.
        """
        for jobs in (self.running, self.waiting):
            for job in jobs:
                if job.request.id == request_id:
                    job.aborted = True
                    self._steady = None
                    jobs.remove(job)
                    self._kv.release(job)
                    return

    def turn(self, book: Booking) -> None:
        """End the running step, if there is one, and start the next, if there is work."""
        now_s = self.next_s
        assert now_s is not None
        if self._late:
            book.out.extend(self._late)
            self._late.clear()
            self.next_s = self._step_ends_s
            return
        before = len(book.out)
        if self._in_step is not None:
            self._end_step(now_s, book)
        if self._steady is not None:
            self._start(now_s, self._steady, book)
        elif self.running or self.waiting:
            shape = self._schedule(book.random)
            self._start(now_s, shape, book)
        else:
            self.next_s = None
            self._in_step = None
            return
        cold_s = book.steps[-1].cold_s
        if cold_s and self._config.launches_ahead and len(book.out) > before:
            self._hold_back(book.out, before, now_s + cold_s)

    def _hold_back(self, out: list[Emission], since: int, until_s: float) -> None:
        """What the step before gave comes out only when this one is compiled."""
        self._late = [emission._replace(at_s=until_s) for emission in out[since:]]
        del out[since:]
        self._step_ends_s = self.next_s
        self.next_s = until_s

    # --- a step ---------------------------------------------------------------------------------

    def _start(self, now_s: float, shape: StepShape, book: Booking) -> None:
        config = self._config
        took_s = config.step_base_s + shape.prefill_tokens * config.prefill_s_per_token
        if shape.decode_reqs:
            took_s += config.decode_step_s
        noise = config.noise_small if took_s < SMALL_STEP_S else config.noise_large
        if noise:
            took_s *= 1.0 + noise * (2.0 * book.random.random() - 1.0)
        if config.outlier_rate and book.random.random() < config.outlier_rate:
            took_s *= config.outlier_factor
        due = self._cold.due(shape)
        cold_s = 0.0
        if due:
            jobs = self._in_step or []
            ids = tuple(job.request.id for job in jobs)
            for rule, key in due:
                cost_s = rule.cost_of(key, book.seed)
                cold_s += cost_s
                until_s = now_s + took_s + cold_s
                book.ledger.append(
                    Paid(now_s, until_s, rule.name, key, cost_s, ids, rule.logged, self.index)
                )
        self.next_s = now_s + took_s + cold_s
        book.steps_made += 1
        book.steps.append(
            Step(
                now_s,
                self.next_s,
                self.index,
                shape.prefill_reqs,
                shape.prefill_tokens,
                shape.decode_reqs,
                shape.decode_tokens,
                self._kv.used / self._kv.total,
                cold_s,
            )
        )

    def _end_step(self, now_s: float, book: Booking) -> None:
        counters = self._counters
        jobs = self._in_step or []
        done: list[Job] = []
        for job in jobs:
            if job.aborted:
                continue
            job.computed += job.scheduled
            gains = job.gains
            if not gains:
                continue
            is_first = job.generated == 0
            job.generated += gains
            job.known += gains
            # Rejected drafts leave no KV; the last token's KV comes with the next step.
            job.computed = job.known - 1
            counters.generation_tokens += gains
            cached = 0
            if is_first:
                cached = job.cached
                counters.prompt_tokens += job.request.prompt_tokens
                counters.cached_tokens += cached
                counters.computed_tokens += job.request.prompt_tokens - cached
            reason = job.finish_reason
            if reason is not None:
                done.append(job)
                counters.success[reason] += 1
            book.out.append(
                Emission(
                    job.request.id,
                    now_s,
                    gains,
                    reason is not None,
                    reason,
                    cached,
                    is_first,
                    self.index,
                )
            )
        for job in done:
            self.running.remove(job)
            self._kv.release(job)
        if self._steady is not None:
            self._steady = self._again(self._steady, jobs, bool(done))

    def _again(self, shape: StepShape, jobs: list[Job], ended: bool) -> StepShape | None:
        """The same decode step once more, or None where it has to be scheduled anew."""
        if ended:
            return None
        size = self._kv.size
        longest = 0
        for job in jobs:
            if job.known > job.blocks * size and not self._kv.grow(job, 1):
                return None
            if job.known > longest:
                longest = job.known
        if longest > shape.context_pow2:
            shape = shape._replace(context_pow2=next_pow2(longest))
        return shape

    # --- scheduling -----------------------------------------------------------------------------

    def _schedule(self, random: Random) -> StepShape:
        """Fill a step: at least one token, since a lone request always fits (EngineConfig)."""
        budget = self._config.max_num_batched_tokens
        step: list[Job] = []
        preempted = False
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            tokens = min(self._wanted(job), budget)
            while not self._kv.grow(job, tokens):
                victim = self.running.pop()
                self._preempt(victim)
                preempted = True
                if victim is job:
                    break
            else:
                self._plan(job, tokens, random)
                step.append(job)
                budget -= tokens
                index += 1
        while not preempted and self.waiting and budget > 0:
            if len(self.running) >= self._config.max_num_seqs:
                break
            job = self.waiting[0]
            hit = self._kv.hit(job)
            job.computed = hit
            tokens = min(job.known - hit, budget)
            if not self._kv.grow(job, tokens):
                job.computed = 0
                break
            self.waiting.popleft()
            self._admit(job, hit)
            self._plan(job, tokens, random)
            step.append(job)
            budget -= tokens
        self._in_step = step
        return self._shape(step)

    def _wanted(self, job: Job) -> int:
        missing = job.known - job.computed
        if missing == 1 and job.generated:
            return 1 + min(self._config.draft_tokens, self._config.max_model_len - job.known)
        return missing

    def _plan(self, job: Job, tokens: int, random: Random) -> None:
        job.scheduled = tokens
        job.prefills = job.generated == 0 or job.known - job.computed > 1
        if job.prefills:
            self._kv.remember(job)
            job.gains = 1 if job.computed + tokens >= job.known else 0
            return
        job.gains, job.accepted = 1, 0
        drafts = tokens - 1
        if drafts > 0:
            job.accepted = random.randint(1, drafts) if job.request.drafts_accepted else 0
            # What the output has no room for is counted all the same ([32] v1/core/sched).
            job.gains = min(1 + job.accepted, job.request.max_tokens - job.generated)
            self._counters.drafts += 1
            self._counters.draft_tokens += drafts
            self._counters.accepted_tokens += job.accepted

    def _shape(self, step: list[Job]) -> StepShape:
        prefill_reqs = prefill_tokens = decode_reqs = decode_tokens = sampled = accepted = 0
        longest = 0
        has_context = False
        features: frozenset[str] = frozenset()
        for job in step:
            if job.prefills:
                prefill_reqs += 1
                prefill_tokens += job.scheduled
                has_context = has_context or job.computed > 0
            else:
                decode_reqs += 1
                decode_tokens += job.scheduled
                accepted += job.accepted
            if job.gains:
                sampled += 1
                if job.request.features:
                    features |= job.request.features
            end = job.computed + job.scheduled
            if end > longest:
                longest = end
        shape = StepShape(
            prefill_reqs,
            prefill_tokens,
            decode_reqs,
            decode_tokens,
            sampled,
            has_context,
            next_pow2(longest),
            accepted,
            features,
        )
        plain = not prefill_reqs and not self.waiting and not self._config.draft_tokens
        self._steady = shape if plain and len(step) == len(self.running) else None
        return shape

    def _preempt(self, job: Job) -> None:
        self._kv.release(job)
        job.computed = 0
        self.waiting.appendleft(job)
        self._counters.preemptions += 1

    def _admit(self, job: Job, hit: int) -> None:
        self.running.append(job)
        if self._config.prefix_caching and job.generated == 0:
            self._counters.prefix_queries += job.known
            self._counters.prefix_hits += hit
            job.cached = hit

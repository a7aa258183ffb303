"""Requests on their way, and the KV cache they share."""

from dataclasses import dataclass, replace

from sidecar.simulator.model import EngineConfig, SimRequest


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way. `computed` counts tokens in the KV cache."""

    request: SimRequest
    known: int
    """Prompt and output tokens so far: what has to be computed."""
    computed: int = 0
    generated: int = 0
    cached: int = 0
    blocks: int = 0
    aborted: bool = False
    scheduled: int = 0
    """Tokens in the step that runs now."""
    gains: int = 0
    """Output tokens it will have gained when that step ends."""
    accepted: int = 0
    """Of its drafts in that step; more than it gains by them where its output ends there."""
    prefills: bool = False

    def copy(self) -> "Job":
        return replace(self)

    @property
    def finish_reason(self) -> str | None:
        """None while it goes on."""
        if self.request.eos_at is not None and self.generated >= self.request.eos_at:
            return "stop"
        return "length" if self.generated >= self.request.max_tokens else None


class KvCache:
    """Blocks in use, and a prefix cache in whole blocks.

    Simpler than vLLM's: a cached block costs nothing until it is used again, and as many are kept
    as there are blocks.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.size = config.block_size
        self.total = config.kv_cache_tokens // config.block_size
        self.used = 0
        self._caching = config.prefix_caching
        self._hashes: dict[int, None] = {}
        """Of computed blocks, oldest first."""

    def copy(self, config: EngineConfig) -> "KvCache":
        twin = KvCache(config)
        twin.used = self.used
        twin._hashes = dict(self._hashes)
        return twin

    def grow(self, job: Job, tokens: int) -> bool:
        """Room for `tokens` more of this job; False: not enough blocks, nothing taken."""
        needed = -(-(job.computed + tokens) // self.size) - job.blocks
        if needed <= 0:
            return True
        if self.used + needed > self.total:
            return False
        self.used += needed
        job.blocks += needed
        return True

    def release(self, job: Job) -> None:
        self.used -= job.blocks
        job.blocks = 0

    def hit(self, job: Job) -> int:
        """Leading tokens that are there already, in whole blocks; the last is always computed."""
        if not self._caching or not job.request.blocks:
            return 0
        count = 0
        for block in job.request.blocks[: (job.known - 1) // self.size]:
            if block not in self._hashes:
                break
            count += 1
        return count * self.size

    def remember(self, job: Job) -> None:
        """The blocks that this step of the job computes can be hit from now on, by who comes after
        it in the same step too (vLLM 0.33 v1/core/kv_cache_manager.py, allocate_slots)."""
        if not self._caching or not job.request.blocks:
            return
        for block in job.request.blocks[: (job.computed + job.scheduled) // self.size]:
            self._hashes.pop(block, None)
            self._hashes[block] = None
        while len(self._hashes) > self.total:
            del self._hashes[next(iter(self._hashes))]

    def forget(self) -> bool:
        """Empty the prefix cache; False, and nothing done, while blocks are in use."""
        if self.used:
            return False
        self._hashes.clear()
        return True

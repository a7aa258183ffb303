"""The engine in virtual time: how steps form, what they cost, what is counted."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sidecar.simulator.cold import Condition, Rule
from sidecar.simulator.engine import Emission, Engine, EngineConfig, SimRequest

CONFIG = EngineConfig(wake_s=0.0, parse_base_s=0.0, parse_s_per_token=0.0)


def composition(engine: Engine) -> list[tuple[int, int, int]]:
    """(context requests, context tokens, generation requests) of each step."""
    return [(s.context_requests, s.context_tokens, s.generation_requests) for s in engine.steps]


def firsts(emissions: list[Emission]) -> dict[str, float]:
    return {e.request_id: e.at_s for e in emissions if e.is_first}


def test_an_idle_engine_starts_with_whatever_has_arrived() -> None:
    """Two bodies parsed one after another make a step of one prompt, then one of the other."""
    engine = Engine(replace(CONFIG, parse_base_s=0.001))
    engine.submit(SimRequest("a", 350, 2))
    engine.submit(SimRequest("b", 350, 2))
    engine.run()
    assert composition(engine)[:2] == [(1, 350, 0), (1, 350, 1)]


def test_a_wave_behind_a_plug_shares_one_step() -> None:
    """Requests that arrive while a plug prefills are scheduled together."""
    engine = Engine(CONFIG)
    engine.submit(SimRequest("plug", 2048, 1), at_s=0.0)
    for i in range(4):
        engine.submit(SimRequest(f"r{i}", 350, 2), at_s=0.001 * (i + 1))
    engine.run()
    assert composition(engine)[:2] == [(1, 2048, 0), (4, 1400, 0)]


def test_prompts_above_the_budget_are_chunked() -> None:
    """A prompt of 5,000 tokens is computed as 2048 + 2048 + 904, and answers after the last."""
    engine = Engine(CONFIG)
    engine.submit(SimRequest("long", 5000, 1))
    emissions = engine.run()
    assert composition(engine) == [(1, 2048, 0), (1, 2048, 0), (1, 904, 0)]
    assert [(e.tokens, e.finish_reason) for e in emissions] == [(1, "length")]


def test_decodes_take_the_budget_before_waiting_prompts() -> None:
    """A prompt that comes while another decodes gets the budget less one token."""
    engine = Engine(CONFIG)
    engine.submit(SimRequest("a", 100, 50))
    engine.advance(0.02)
    engine.submit(SimRequest("b", 2048, 1))
    engine.run()
    mixed = [s for s in engine.steps if s.context_requests and s.generation_requests]
    assert [(s.context_tokens, s.generation_tokens) for s in mixed] == [(2047, 1), (1, 1)]


def test_concurrency_above_max_num_seqs_waits() -> None:
    """The third of three requests gets its first token after one of two has ended."""
    engine = Engine(replace(CONFIG, max_num_seqs=2))
    for i in range(3):
        engine.submit(SimRequest(f"r{i}", 10, 5))
    emissions = engine.run()
    ends = {e.request_id: e.at_s for e in emissions if e.finished}
    assert firsts(emissions)["r2"] > min(ends["r0"], ends["r1"])


def test_the_youngest_is_preempted_when_blocks_run_out() -> None:
    """Two growing requests in a small KV cache: one is put back, and both end complete."""
    engine = Engine(
        replace(CONFIG, max_model_len=160, kv_cache_tokens=160, max_num_batched_tokens=160)
    )
    engine.submit(SimRequest("a", 64, 40))
    engine.submit(SimRequest("b", 64, 40))
    emissions = engine.run()
    assert engine.counters[0].preemptions >= 1
    assert engine.counters[0].generation_tokens == 80
    assert sorted(e.request_id for e in emissions if e.finished) == ["a", "b"]
    assert engine.kv_usage() == 0.0


def test_a_preempted_request_comes_before_those_that_wait() -> None:
    """A third request, waiting all the while, starts only after the preempted one goes on."""
    engine = Engine(
        replace(
            CONFIG,
            max_model_len=160,
            kv_cache_tokens=160,
            max_num_batched_tokens=160,
            max_num_seqs=2,
        )
    )
    for name in "abc":
        engine.submit(SimRequest(name, 64, 40))
    emissions = engine.run()
    assert engine.counters[0].preemptions >= 1
    stamps = [e.at_s for e in emissions if e.request_id == "b"]
    resumed_s = max(pairwise(stamps), key=lambda pair: pair[1] - pair[0])[1]
    assert firsts(emissions)["c"] >= resumed_s


def test_the_prefix_cache_answers_whole_blocks() -> None:
    """The same blocks again are computed from the last block on; a request without is not."""
    engine = Engine(CONFIG)
    blocks = tuple(range(4))
    for name, identity in (("one", blocks), ("two", blocks), ("other", None)):
        engine.submit(SimRequest(name, 64, 1, blocks=identity))
        emissions = engine.run()
    engine_counts = engine.counters[0]
    assert [e.cached_tokens for e in emissions] == [0]
    assert (engine_counts.prefix_queries, engine_counts.prefix_hits) == (192, 48)
    assert (engine_counts.computed_tokens, engine_counts.cached_tokens) == (144, 48)


def test_drafts_give_several_tokens_a_step_when_accepted() -> None:
    """With 3 drafts a step, accepted text needs fewer steps for the same tokens."""
    steps = {}
    for accepted in (False, True):
        engine = Engine(replace(CONFIG, draft_tokens=3), seed=1)
        engine.submit(SimRequest("r", 10, 21, drafts_accepted=accepted))
        engine.run()
        steps[accepted] = engine.steps_made
        assert engine.counters[0].generation_tokens == 21
        assert (engine.counters[0].accepted_tokens > 0) is accepted
    assert steps[False] == 21
    assert steps[True] < 21


def test_everyone_in_a_step_waits_for_its_compile() -> None:
    """A cold prompt that joins a decoding request delays that one's next token too."""
    rule = Rule("late", when=(Condition("mixed", (True,)),), cost_s=(5.0, 5.0))
    engine = Engine(CONFIG, [rule])
    engine.submit(SimRequest("old", 10, 100))
    engine.advance(0.05)
    engine.submit(SimRequest("new", 10, 1))
    emissions = engine.run()
    stamps = [e.at_s for e in emissions if e.request_id == "old"]
    assert max(b - a for a, b in pairwise(stamps)) > 5.0
    (paid,) = engine.ledger
    assert set(paid.request_ids) == {"old", "new"}


def test_an_aborted_request_says_nothing_more() -> None:
    """Abort in the middle: no further tokens, blocks free, counted nowhere (as vLLM 0.32)."""
    engine = Engine(CONFIG)
    engine.submit(SimRequest("a", 100, 500))
    engine.advance(0.1)
    engine.abort("a")
    assert engine.run() == []
    assert engine.running() == 0
    assert engine.kv_usage() == 0.0
    assert set(engine.counters[0].success.values()) == {0}


def test_a_fork_pays_for_itself() -> None:
    """What a fork compiles stays cold in the original, and costs the same there."""
    rule = Rule("k", key=("tokens",), when=(Condition("prefill", (True,)),), cost_s=(0.1, 9.0))
    engine = Engine(CONFIG, [rule], seed=5)
    twin = engine.fork(seed=9)
    twin.submit(SimRequest("x", 77, 1))
    twin.run()
    assert engine.ledger == []
    engine.submit(SimRequest("x", 77, 1))
    engine.run()
    assert [p.cost_s for p in engine.ledger] == [p.cost_s for p in twin.ledger]


def test_a_fork_in_the_middle_of_a_step_goes_on_alike() -> None:
    """Without new noise a fork says what the original says."""
    engine = Engine(replace(CONFIG, noise_small=0.5), seed=2)
    for i in range(3):
        engine.submit(SimRequest(f"r{i}", 600, 9), at_s=i * 0.004)
    engine.advance(0.012)
    twin = engine.fork()
    assert twin.run() == engine.run()


def test_a_fork_in_the_middle_of_parsing_goes_on_alike() -> None:
    """A body half parsed is as far in the fork as in the original."""
    engine = Engine(replace(CONFIG, parse_base_s=0.01))
    for name in "ab":
        engine.submit(SimRequest(name, 10, 1))
    engine.advance(0.015)
    assert engine.fork().run() == engine.run()


def test_ranks_are_cold_by_themselves() -> None:
    """The same prompt on the other rank pays again; a repeat on the first does not."""
    engine = Engine(replace(CONFIG, ranks=2), [Rule("first")])
    for name, rank in (("a", 0), ("b", 0), ("c", 1)):
        engine.submit(SimRequest(name, 10, 1, rank=rank))
        engine.run()
    assert [(p.rank, p.request_ids) for p in engine.ledger] == [(0, ("a",)), (1, ("c",))]


def test_unsteered_requests_spread_over_ranks() -> None:
    """Requests without a rank go to the least loaded."""
    engine = Engine(replace(CONFIG, ranks=2))
    for i in range(4):
        engine.submit(SimRequest(f"r{i}", 10, 50))
    engine.advance(0.05)
    assert [engine.running(0), engine.running(1)] == [2, 2]


def test_a_seed_fixes_everything() -> None:
    """Same seed, same emissions; another seed, other times."""

    def play(seed: int) -> list[Emission]:
        engine = Engine(replace(CONFIG, noise_small=0.5, wake_s=0.002), seed=seed)
        for i in range(5):
            engine.submit(SimRequest(f"r{i}", 100, 5), at_s=i * 0.001)
        return engine.run()

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_steps_of_an_advance_in_pieces_are_the_same() -> None:
    """Advancing in small pieces gives what advancing at once gives."""
    whole = Engine(CONFIG)
    pieces = Engine(CONFIG)
    for engine in (whole, pieces):
        for i in range(3):
            engine.submit(SimRequest(f"r{i}", 900, 30), at_s=i * 0.01)
    out: list[Emission] = []
    for i in range(1000):
        out += pieces.advance(i * 0.001)
    assert out == whole.run()


def test_natural_end_is_a_stop() -> None:
    """eos_at ends a request early with finish reason stop."""
    engine = Engine(CONFIG)
    engine.submit(SimRequest("r", 10, 50, eos_at=3))
    last = engine.run()[-1]
    assert (last.finish_reason, engine.counters[0].generation_tokens) == ("stop", 3)


def test_an_engine_that_could_not_start_is_refused() -> None:
    """A KV cache below max_model_len is a ValueError, as vLLM refuses to start."""
    with pytest.raises(ValueError, match="max_model_len"):
        EngineConfig(kv_cache_tokens=4096)


def test_accepted_drafts_are_counted_beyond_the_output() -> None:
    """vLLM counts what was accepted before it cuts the output to max_tokens."""
    engine = Engine(EngineConfig(draft_tokens=5), seed=1)
    for number in range(10):
        engine.submit(SimRequest(f"r{number}", 20, 2, drafts_accepted=True), 0.0)
    engine.run()
    (counters,) = engine.counters
    assert counters.generation_tokens == 20
    assert counters.drafts == 10
    assert counters.accepted_tokens > 20


def test_a_step_hits_what_it_computes_itself() -> None:
    """Copies that are scheduled together share their prompt but for its last block."""
    engine = Engine(CONFIG)
    engine.submit(SimRequest("plug", 2048, 1), at_s=0.0)
    for number in range(3):
        engine.submit(SimRequest(f"copy{number}", 65, 1, blocks=tuple(range(5))), at_s=0.001)
    engine.run()
    assert composition(engine) == [(1, 2048, 0), (3, 65 + 1 + 1, 0)]
    assert engine.counters[0].prefix_hits == 2 * 64

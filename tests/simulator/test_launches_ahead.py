"""With asynchronous scheduling in process, a compile delays the tokens of the step before."""

from sidecar.simulator.cold import Rule
from sidecar.simulator.engine import Engine, EngineConfig, SimRequest
from sidecar.simulator.rulesfile import parse_rules

RULES = """
- name: odd
  key: [tokens_mod16]
  when: {prefill: true, tokens: {min: 500, max: 600}}
  cost_s: [1.0, 1.0]
"""


def held_wave(*, launches_ahead: bool) -> tuple[float, float, Engine]:
    """First tokens of a plug of 2,048 and of 3 x 171 behind it, cold at 513 tokens."""
    rules: tuple[Rule, ...] = tuple(parse_rules(RULES, "test"))
    engine = Engine(EngineConfig(launches_ahead=launches_ahead), rules)
    engine.submit(SimRequest("plug", 2048, 1), 0.0)
    for i in range(3):
        engine.submit(SimRequest(f"wave{i}", 171, 4), 0.005)
    first: dict[str, float] = {}
    for emission in engine.run():
        first.setdefault(emission.request_id, emission.at_s)
    assert first["wave0"] == first["wave1"] == first["wave2"]
    return first["plug"], first["wave0"], engine


def test_the_compile_comes_after_the_plug_by_default() -> None:
    """Without it the wave pays: its first token is late, the plug's is not."""
    plug_s, wave_s, _ = held_wave(launches_ahead=False)
    assert plug_s < 0.1
    assert wave_s > plug_s + 1.0


def test_the_compile_comes_before_the_plug_where_steps_are_launched_ahead() -> None:
    """As seen on an H200: both are late, and nearly together."""
    plug_s, wave_s, engine = held_wave(launches_ahead=True)
    assert plug_s > 1.0
    assert wave_s - plug_s < 0.1
    assert sum(paid.cost_s for paid in engine.ledger) == 1.0


def test_a_fork_in_the_middle_gives_the_same_tokens() -> None:
    """Tokens held back are part of the state that a fork copies."""
    rules = tuple(parse_rules(RULES, "test"))
    engine = Engine(EngineConfig(launches_ahead=True), rules)
    engine.submit(SimRequest("plug", 2048, 1), 0.0)
    engine.submit(SimRequest("wave", 513, 4), 0.005)
    engine.advance(0.5)
    assert engine.fork().run() == engine.run() != []

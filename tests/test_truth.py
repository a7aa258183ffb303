"""The verdict against the truth: a small set of seeds of `benchmarks/truth.py`, on every run."""

from dataclasses import replace

import pytest

from benchmarks.draws import draw
from benchmarks.gates import scenario
from benchmarks.machine import Machine
from benchmarks.planted import FirstTokenOnly, LedOnly, OnePass, SameOrderTwice
from benchmarks.truth import examine_all, main, report, report_planted
from benchmarks.warming import warm
from sidecar.simulator.rulesfile import parse_rules


def test_no_engine_is_called_warm_that_is_not():
    """In a set of drawn engines no cell is called warm that would still pay more than τ."""
    outcomes = examine_all(range(40))
    assert [o.false_warm for o in outcomes if o.false_warm] == []
    assert sum(bool(o.false_not_yet) for o in outcomes) <= 1
    assert sum(o.proven for o in outcomes) >= 12  # it is not for want of being called warm


@pytest.mark.parametrize(
    ("method", "seeds"),
    [
        (OnePass(), (1, 10, 20, 26)),
        (LedOnly(), (1, 7, 8, 9)),
        (FirstTokenOnly(), (21, 32, 92)),
        (SameOrderTwice(), (32, 33, 109)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_planted_judge_is_caught(method, seeds):
    """A judge that is wrong on purpose is found out, on engines where the real one is right."""
    caught = [o.seed for o in examine_all(seeds, method=method) if o.false_warm]
    assert caught
    assert not any(o.false_warm for o in examine_all(caught))


def test_rules_from_a_file_are_the_only_cold_ones():
    """With rules given, those are cold and nothing else is."""
    never = parse_rules("- {name: never, when: {tokens: {min: 1000000}}, cost_s: 5}", "a test")
    once = parse_rules("- {name: once, cost_s: 5}", "a test")
    assert {run.paid_s for run in warm(draw(4, never)).runs} == {0.0}
    assert [run.paid_s for run in warm(draw(4, once)).runs if run.paid_s] == [5.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- {name: a, key: [nonsense], cost_s: 1}", "no step feature is called 'nonsense'"),
        ("- {name: a, cost_s: -1}", "greater than 0"),
        ("a: [", "not YAML"),
        ("[]", "has no rules"),
        (None, "can't be read"),
    ],
)
def test_a_bad_rules_file_is_one_sentence(tmp_path, capsys, text, says):
    """A rules file that can't be used ends the harness with one sentence and exit code 2."""
    file = tmp_path / "rules.yaml"
    if text is not None:
        file.write_text(text)
    assert main(["--rules", str(file), "--engines", "1"]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert str(file) in told
    assert told.count("\n") == 1


def test_a_broken_bound_is_an_exit_code(capsys):
    """The report says whether the bounds hold, for the real judge and for the planted ones."""
    good = examine_all((1,))
    assert report(good)
    assert not report(examine_all((1, 10, 20, 26), method=OnePass()))
    assert report_planted((1, 10, 20, 26), (), 1, (OnePass(),))
    assert not report_planted((2,), (), 1, (OnePass(),))
    assert "NOT CAUGHT" in capsys.readouterr().out


@pytest.mark.parametrize("seed", [0, 7, 14])
def test_the_gate_is_right_under_restarts_and_faults(seed):
    """Whatever dies, restarts, hangs or is cut off: open only for a process that was warmed."""
    assert scenario(seed) == []


class _Lying(Machine):
    """Its processes all claim to be the first."""

    async def mark(self):
        return replace(await super().mark(), process_start_s=0.0)


def test_a_gate_that_is_deceived_is_caught():
    """The scenarios are hard enough: where each boot passes for the old one, the gate is wrong."""
    assert any("never sent" in wrong for seed in (2, 6) for wrong in scenario(seed, (), _Lying))

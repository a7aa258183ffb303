"""Whether an engine that lives also serves."""

import pytest

from sidecar.core.watch.presence import Presence, of_sleep, sentence
from sidecar.core.wire.metrics import parse

PAGE = """vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {awake}
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="weights_offloaded"}} {one}
vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="discard_all"}} {two}
"""


@pytest.mark.parametrize(
    ("awake", "one", "two", "presence"),
    [
        (1.0, 0.0, 0.0, Presence.SERVING),
        (0.0, 0.0, 0.0, Presence.SLEEP_0),
        (0.0, 1.0, 0.0, Presence.SLEEP_1),
        (0.0, 0.0, 1.0, Presence.SLEEP_2),
    ],
)
def test_the_metric_tells_the_level_of_sleep(awake, one, two, presence):
    """As vLLM 0.33 sets its three gauges."""
    scrape = parse(PAGE.format(awake=awake, one=one, two=two))
    assert of_sleep(scrape.asleep, scrape.sleep_level) is presence


def test_without_the_metric_nothing_is_told():
    """Missing is not awake; a sleep of an unknown level is one all the same."""
    scrape = parse("vllm:num_requests_running 0\n")
    assert of_sleep(scrape.asleep, scrape.sleep_level) is Presence.UNTOLD
    assert of_sleep(True, None) is Presence.ASLEEP


def test_what_keeps_the_kernels_and_what_does_not():
    """Level 2, a rescale and a sleep of an unknown level are never taken for harmless."""
    kept = {each for each in Presence if each.is_away and each.keeps_kernels}
    assert kept == {Presence.SLEEP_0, Presence.SLEEP_1, Presence.PAUSED}


def test_each_absence_has_its_own_reason():
    """An operator can tell them apart in /ready."""
    away = [each for each in Presence if each.is_away]
    assert len({sentence(each) for each in away}) == len(away) == 6
    assert "level 2" in sentence(Presence.SLEEP_2)
    assert "/resume" in sentence(Presence.PAUSED)

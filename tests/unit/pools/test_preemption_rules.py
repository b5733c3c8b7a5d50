"""The settings of preemption."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import PreemptionRules, thresholds


def test_the_defaults() -> None:
    rules = PreemptionRules()
    assert (rules.same_pool, rules.other_pool, rules.label, rules.grace_s) == (1.0, 5.0, 0.5, 30)
    assert rules.enable_cross_pool
    assert rules.enable_labels


@pytest.mark.parametrize("name", ["same_pool", "other_pool"])
@pytest.mark.parametrize("least", [0, -1, float("nan")])
def test_a_difference_of_priority_is_above_zero(name: str, least: float) -> None:
    with pytest.raises(ConfigurationError, match=rf"setting {name} is .*above 0"):
        PreemptionRules(**{name: least})


@pytest.mark.parametrize("name", ["label", "min_runtime_s", "cool_down_s", "grace_s"])
def test_times_and_the_difference_for_labels_may_be_zero(name: str) -> None:
    PreemptionRules(**{name: 0})
    with pytest.raises(ConfigurationError, match=rf"setting {name} is -1.*0 or more"):
        PreemptionRules(**{name: -1})


@pytest.mark.parametrize(("word", "pair"), [("high", (0.1, 0.5)), ("medium", (0.5, 1.0)), ("low", (1.0, 3.0))])
def test_presets(word: str, pair: tuple[float, float]) -> None:
    assert thresholds(word, {}) == pair
    assert thresholds("env:LEVEL", {"LEVEL": word}) == pair


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("urgent", "no preemption preset 'urgent'.*high or medium or low, or env:NAME"),
        ("", "no preemption preset ''"),
        ("env:MISSING", "'env:MISSING'.*'MISSING' is not set.*high or medium or low"),
        ("env:LEVEL", "preset 'env:OTHER', from the environment variable LEVEL.*high or medium or low"),
    ],
)
def test_unknown_presets_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        thresholds(text, {"LEVEL": "env:OTHER", "OTHER": "high"})

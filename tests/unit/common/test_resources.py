"""What users write as amounts."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model.resources import describe, fits, mentions_cpu, parse_resources


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cpu": 2, "num_gpus": 0.5}, {"CPU": 2.0, "GPU": 0.5}),
        ({"memory": "1GiB"}, {"memory": 1024**3}),
        ({"memory": "500 MB"}, {"memory": 500_000_000}),
        ({"CPU": 0, "tpu": 1}, {"tpu": 1.0}),
        ({"CPU": 0.33333}, {"CPU": 0.3333}),
        (None, {}),
    ],
)
def test_amounts(given: dict[str, object] | None, expected: dict[str, float]) -> None:
    assert parse_resources(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"CPU": -1},
        {"CPU": "two"},
        {"CPU": True},
        {"CPU": float("nan")},
        {"CPU": float("inf")},
        {"CPU": 1e308},
        {"CPU": 10**400},
        {"GPU": 1.5},
        {"memory": "a lot"},
        {"cpu": 1, "num_cpus": 1},
        {3: 1},
        ["CPU"],
    ],
)
def test_invalid_amounts_are_rejected(given: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_resources(given)
    assert caught.value.next_step


def test_to_say_that_no_cpu_is_needed_is_to_say_something() -> None:
    for output in ({"CPU": 0}, {"num_cpus": 1}, {"Num_CPUs": 0, "GPU": 1}):
        assert mentions_cpu(output)
    for silent in (None, {}, {"GPU": 1}, {"cpus": 1}):
        assert not mentions_cpu(silent)


def test_rounding_of_ray_does_not_matter() -> None:
    assert fits({"CPU": 0.3}, {"CPU": 0.1 + 0.2 - 1e-9})
    assert not fits({"CPU": 1}, {"CPU": 0.999})


def test_in_words() -> None:
    assert describe({"CPU": 2.0, "memory": 1024.0**3}) == "2 CPU, 1 GiB memory"
    assert describe({}) == "nothing"

"""Options of @remote: Ray's and ours, described in our own words, or refused with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.app.client_api.ray_shape.ray_options import UNLIMITED, task_options
from ray_multicluster_scheduler.common.exception import ConfigurationError


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({}, {}),
        (
            {"num_cpus": 2, "num_gpus": 1, "memory": 1000, "resources": {"special": 1}},
            {"resource_requirements": {"CPU": 2, "GPU": 1, "memory": 1000, "special": 1}},
        ),
        ({"num_cpus": 0}, {"resource_requirements": {"CPU": 0}}),
        ({"num_cpus": None, "resources": {}}, {}),
        ({"resource_requirements": {"CPU": 3}, "resources": {"x": 1}}, {"resource_requirements": {"CPU": 3, "x": 1}}),
        ({"max_retries": 0}, {"crash_retries": 0, "lost_retries": 0}),
        ({"max_retries": -1}, {"crash_retries": UNLIMITED, "lost_retries": UNLIMITED}),
        ({"max_retries": 2, "lost_retries": 7}, {"crash_retries": 2, "lost_retries": 7}),
        ({"retry_exceptions": True}, {"retries": 3}),
        ({"retry_exceptions": True, "max_retries": 5}, {"retries": 5, "crash_retries": 5, "lost_retries": 5}),
        ({"retry_exceptions": [ValueError]}, {"retries": 3, "retry_on": [ValueError]}),
        ({"retry_exceptions": False}, {}),
        ({"retry_exceptions": True, "retries": 1}, {"retries": 1}),
        ({"scheduling_strategy": "DEFAULT", "max_calls": 0, "label_selector": None}, {}),
        (
            {"num_returns": 2, "name": "n", "tags": ["a"], "priority": 5, "runtime_env": {}},
            {"num_returns": 2, "name": "n", "tags": ["a"], "priority": 5, "runtime_env": {}},
        ),
    ],
)
def test_translation_of_ray_options(given: dict[str, Any], ours: dict[str, Any]) -> None:
    assert task_options(given) == ours


@pytest.mark.parametrize(
    ("given", "says", "next_step"),
    [
        ({"num_cpu": 1}, "no option 'num_cpu'", "did you mean num_cpus"),
        ({"max_restarts": 1}, "no option 'max_restarts'", "max_retries"),
        ({"scheduling_strategy": "SPREAD"}, "scheduling_strategy='SPREAD'", "tags"),
        ({"accelerator_type": "A100"}, "accelerator_type='A100'", "require_tags"),
        ({"label_selector": {"a": "b"}}, "label_selector", "require_tags"),
        ({"max_calls": 1}, "max_calls=1", "leave it out"),
        ({"num_returns": "some"}, "num_returns is 'some'", "0 or more"),
        ({"num_returns": -1}, "num_returns is -1", "0 or more"),
        ({"num_returns": 1.5}, "num_returns is 1.5", "0 or more"),
        ({"max_retries": -2}, "max_retries is -2", "-1 for no limit"),
        ({"max_retries": "3"}, "max_retries is '3'", "0 or more"),
        ({"retry_exceptions": ValueError}, "retry_exceptions is", "list of exception classes"),
        ({"resources": [1]}, r"resources is \[1\]", "mapping"),
    ],
)
def test_unsupported_ray_options_are_rejected(given: dict[str, Any], says: str, next_step: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        task_options(given)
    assert next_step in str(caught.value)

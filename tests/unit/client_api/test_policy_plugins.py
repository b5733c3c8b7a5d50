"""A user's policies reach the scheduler of the program."""

from __future__ import annotations

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.common.exception import ConfigurationError, PolicyEvaluationError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.scheduler_core import installed_policies
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.lifecycle.driver import task
from tests.unit.policy.user_policies import Grumpy

HOME = "tests.unit.policy.user_policies"


@pytest.fixture(params=["by name", "in configuration"])
def grumpy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ControlPlane:
    """A scheduler with a filter that always raises."""
    monkeypatch.setattr(installed_policies, "_registered", {})
    if request.param == "in configuration":
        return ControlPlane(policies={"grumpy": f"{HOME}:Grumpy"})
    api.register_policy("grumpy", Grumpy)
    return ControlPlane()


def test_one_that_raises_ends_the_item_and_not_the_scheduler(grumpy: ControlPlane) -> None:
    with grumpy as plane:
        for name in ("t1", "t2"):
            handle = plane.submit(plane.with_payload(task(name)))
            until(handle.done)
            assert handle.state is TaskState.FAILED
            with pytest.raises(PolicyEvaluationError, match="the filter 'grumpy' raised RuntimeError for cluster mac"):
                handle.result(1)


def test_a_scheduler_with_a_policy_that_is_not_there_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match=r"settings\.policies\.mine \(no_such_module:Thing\) cannot be loaded"):
        ControlPlane(policies={"mine": "no_such_module:Thing"})

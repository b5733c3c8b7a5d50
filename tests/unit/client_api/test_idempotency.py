"""The same for a control plane of the program's own: what is compared under one id or key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import JobDescription
from tests.unit.client_api.control_plane import ControlPlane
from tests.unit.lifecycle.driver import job, task


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as plane:
        yield plane


def test_the_same_again_is_the_first_one(plane: ControlPlane) -> None:
    first = plane.submit(job("j"))
    assert plane.submit(replace(job("j"), submitted_at=5.0, priority=3))._item is first._item


def test_another_job_under_one_id_is_refused(plane: ControlPlane) -> None:
    first = plane.job("j")
    other = replace(job("j"), job=JobDescription("something else"))
    with pytest.raises(ConfigurationError, match="The id j was used for another job: its entrypoint"):
        plane.submit(other)
    plane.finish(first)
    with pytest.raises(ConfigurationError, match="The id j was used for another job: its entrypoint"):
        plane.submit(other)


def test_another_task_under_one_key_is_refused_and_other_bytes_are_not(plane: ControlPlane) -> None:
    first = plane.submit(plane.with_payload(task("a", name="n", idempotency_key="k")))
    assert plane.submit(task("b", name="n", idempotency_key="k")).id == first.id
    with pytest.raises(ConfigurationError, match="The key 'k', of a, was used for another task: its name"):
        plane.submit(replace(task("c", idempotency_key="k"), name="other"))

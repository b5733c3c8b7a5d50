"""The models of the API refuse what could not be passed on or shown later, and accept what instances really send."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from ray_multicluster_scheduler import serving
from ray_multicluster_scheduler.serving import models
from ray_multicluster_scheduler.serving.models import (
    BatchTaskItem,
    InstanceSubmitResponse,
    QueueSubmitRequest,
    TaskCompletionNotification,
    TaskStatus,
    TIRegisterRequest,
    TIRemoveRequest,
    address_of,
)


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


def test_all_models_of_requests_and_answers_are_exported() -> None:
    names = {
        name
        for name, one in vars(models).items()
        if isinstance(one, type) and issubclass(one, BaseModel) and one.__module__ == models.__name__
    }
    private = {
        "_Model",
        "InstanceAddress",
        "InstanceSettings",
        "InstanceSubmitResponse",
        "BatchTaskItem",
        "BatchTaskResult",
        "ModelInfo",
        "V1Model",
    }
    assert names - private <= set(serving.__all__)
    assert all(hasattr(serving, name) for name in serving.__all__)


def test_the_states_of_a_task() -> None:
    assert [str(one) for one in TaskStatus] == ["queued", "scheduled", "completed", "failed"]
    assert [one.finished for one in TaskStatus] == [False, False, True, True]


def test_a_submission_needs_a_model_and_an_input() -> None:
    request = QueueSubmitRequest.model_validate_json('{"model_name": "ocr", "task_input": null}')
    assert (request.metadata, request.task_id) == ({}, None)
    for wrong in ("{}", '{"model_name": "ocr"}', '{"model_name": "", "task_input": 1}', '{"model_name": 7}'):
        with pytest.raises(ValidationError):
            QueueSubmitRequest.model_validate_json(wrong)


@pytest.mark.parametrize("wrong", [math.nan, -math.inf, [{"deep": [math.nan]}], "\ud800", {"\ud800": 1}, nested(300)])
def test_an_input_must_be_json(wrong: Any) -> None:
    for values in ({"task_input": wrong}, {"task_input": 1, "metadata": {"x": wrong}}):
        with pytest.raises(ValidationError):
            BatchTaskItem.model_validate(values)


@pytest.mark.parametrize("wrong", ["\ud800", nested(254)])
@pytest.mark.parametrize("model", [InstanceSubmitResponse, TaskCompletionNotification])
def test_a_result_must_be_printable(model: type[BaseModel], wrong: Any) -> None:
    with pytest.raises(ValidationError, match="result"):
        model.model_validate({"task_id": "t", "instance_id": "i", "result": wrong})


@pytest.mark.parametrize("result", [None, math.nan, nested(200), 10**400, {"é": "\u0000"}])
def test_other_results_are_accepted_and_can_be_shown(result: Any) -> None:
    found = TaskCompletionNotification.model_validate({"task_id": "t", "instance_id": "i", "result": result})
    task = {"task_id": "t", "task_status": "completed", "scheduled_ti": "", "submit_time": 0, "model_name": "m"}
    row = models.TaskQueryResponse.model_validate({**task, "result": found.result})
    assert models.AllTasksResponse(total_tasks=1, tasks=[row]).model_dump_json()


@pytest.mark.parametrize("time", [-1, math.nan, math.inf, 1e300, 10**400, "soon"])
def test_an_execution_time_must_be_possible(time: Any) -> None:
    for model in (InstanceSubmitResponse, TaskCompletionNotification):
        with pytest.raises(ValidationError, match="execution_time"):
            model.model_validate({"task_id": "t", "instance_id": "i", "execution_time": time})


def test_an_answer_is_finished_if_it_has_a_result_or_an_error() -> None:
    assert not InstanceSubmitResponse.model_validate({"status": "success"}).finished
    assert InstanceSubmitResponse.model_validate({"result": None}).finished
    assert InstanceSubmitResponse.model_validate({"error": "no"}).finished


@pytest.mark.parametrize(
    "host", ["", "a b", "a/b", "user@host", "host?x", "host#x", "[::1]", "a\\b", "\x00", "x" * 256]
)
def test_a_host_is_only_a_host(host: str) -> None:
    with pytest.raises(ValidationError, match="host"):
        TIRegisterRequest(host=host, port=80)


def test_an_address_has_brackets_around_ipv6() -> None:
    assert address_of("::1", 80) == "[::1]:80"
    assert address_of("host", 80) == "host:80"
    with pytest.raises(ValidationError, match="ti_uuid, or host and port"):
        TIRemoveRequest(host="host")

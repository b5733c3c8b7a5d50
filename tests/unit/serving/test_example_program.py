"""A program as users write it, line for line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.serving_instances import StubInstance

PROGRAM = """\
from ray_multicluster_scheduler.serving import (
    SchedulerRequest, SwarmPilotScheduler, TaskInstance, TaskInstanceClient, load_config,
)
from ray_multicluster_scheduler.serving.strategies import BaseStrategy, ShortestQueueStrategy

scheduler = SwarmPilotScheduler(strategy=ShortestQueueStrategy())
load_config("config.yaml", scheduler)
response = scheduler.schedule(SchedulerRequest(model_type="ocr", input_data={"page": 1}, metadata={"hardware": "a100"}))
response.task_id, response.instance_id
status = scheduler.task_tracker.get_task_info(response.task_id).task_status
result = scheduler.wait(response.task_id, timeout=60)
"""


def test_the_program_runs_as_it_stands(instance: Callable[..., StubInstance], tmp_path: Path, monkeypatch) -> None:
    stub = instance()
    (tmp_path / "config.yaml").write_text(f"instances: [{{host: localhost, port: {stub.port}}}]")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(PROGRAM, names)
    assert names["result"] == {"echo": {"page": 1}, "instance": stub.address}
    assert names["status"] in {"queued", "scheduled", "completed"}
    assert names["scheduler"].task_tracker.get_task_info(names["response"].task_id).task_status == "completed"
    names["scheduler"].close()

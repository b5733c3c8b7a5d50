"""kill -9 of a real `rmcs up` under load: nothing that was accepted is lost. None of this needs Ray."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_service import RunningService
from tests.support.serving_instances import StubInstance

P = "/api/v1/serving"
CLIENTS, ROUNDS, TASKS_PER_ROUND = 4, 3, 150
SECONDS = 300


def ask(service: RunningService, path: str, body: Any = None) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {service.token}"}
    request = urllib.request.Request(f"{service.address}{P}{path}", content, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Client(threading.Thread):
    """Submits tasks, alone and in batches, and reads results, until the service no longer answers."""

    def __init__(self, service: RunningService, name: str) -> None:
        super().__init__(name=name)
        self.service = service
        self.accepted: list[str] = []
        self.results: dict[str, Any] = {}

    def run(self) -> None:
        try:
            number = 0
            while True:
                ids = [f"{self.name}-{number + more}" for more in range(3)]
                number += len(ids)
                tasks = [{"task_input": one, "task_id": one} for one in ids]
                if ask(self.service, "/queue/submit", {"model_name": "ocr", **tasks[0]})[0] == 200:
                    self.accepted.append(ids[0])
                status, answer = ask(self.service, "/queue/submit_batch", {"model_name": "ocr", "tasks": tasks[1:]})
                if status == 200 and answer["status"] == "success":
                    self.accepted += ids[1:]
                first = next((one for one in self.accepted if one not in self.results), ids[0])
                _, task = ask(self.service, f"/task/query?task_id={first}")
                if task["task_status"] == "completed":
                    self.results[first] = task["result"]
        except (OSError, HTTPException, json.JSONDecodeError):
            return


@pytest.fixture
def instances() -> Iterator[list[StubInstance]]:
    made = [StubInstance(seconds=lambda _: 0.002, replicas=4) for _ in range(2)]
    yield made
    for one in made:
        one.stop()


def test_nothing_that_was_accepted_is_lost(tmp_path: Path, instances: list[StubInstance]) -> None:
    fleet = tmp_path / "clusters.yaml"
    fleet.write_text("clusters: [{name: quiet, dashboard: 'http://127.0.0.1:1'}]\n")
    clients: list[Client] = []
    with RunningService(fleet, tmp_path / "state") as service:
        for stub in instances:
            assert ask(service, "/ti/register", {"host": "127.0.0.1", "port": stub.port})[0] == 200
        for round_number in range(ROUNDS):
            some = [Client(service, f"round-{round_number}-client-{number}") for number in range(CLIENTS)]
            clients += some
            for one in some:
                one.start()
            end = time.monotonic() + SECONDS
            while sum(len(one.accepted) for one in some) < TASKS_PER_ROUND:
                assert time.monotonic() < end
                time.sleep(0.01)
            service.kill()
            for one in some:
                one.join()
            service.start()
        accepted = {task_id for one in clients for task_id in one.accepted}
        assert len(accepted) >= ROUNDS * TASKS_PER_ROUND
        found = {}
        end = time.monotonic() + SECONDS
        for task_id in accepted:
            while True:
                status, found[task_id] = ask(service, f"/task/query?task_id={task_id}")
                assert status == 200, f"the task {task_id} was accepted, and is lost"
                if found[task_id]["task_status"] in {"completed", "failed"}:
                    break
                assert time.monotonic() < end, found[task_id]
                time.sleep(0.01)
        assert {task["task_status"] for task in found.values()} == {"completed"}
        assert all(task["result"]["echo"] == task_id for task_id, task in found.items())
        seen = {task_id: result for one in clients for task_id, result in one.results.items()}
        assert {task_id: found[task_id]["result"] for task_id in seen} == seen, "a result that was shown stays"
        assert seen
        _, queues = ask(service, "/queue/info")
        assert [(row["length"], row["waiting_time_expect"]) for row in queues["queues"]] == [(0, 0.0), (0, 0.0)]
        assert service.stop() == 0
    assert "Traceback" not in service.log.read_text()

"""`rmcs serving`: which class is loaded, and a scheduler alone."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

import pytest

from tests.support.serving_instances import StubInstance
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

pytestmark = pytest.mark.usefixtures("home")


def python_file(text: str) -> Path:
    path = Path(f"model_{uuid4().hex}.py")
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("target", ["app", "app:Model", "missing.py:Model", ":"])
def test_malformed_target_is_rejected(service: HttpService, rmcs: Rmcs, target: str) -> None:
    done = rmcs("serving", "deploy", target, "--name", "ocr")
    assert (done.code, done.out) == (2, "")
    assert "write app.py:Model" in done.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("raise ValueError('not today')", "ValueError: not today"),
        ("class Other: ...", "AttributeError"),
        ("class Model: ...", "Model has neither infer nor __call__"),
        ("Model = 5", "is not a class"),
    ],
)
def test_target_that_is_no_class_is_rejected(service: HttpService, rmcs: Rmcs, text: str, problem: str) -> None:
    done = rmcs("serving", "deploy", f"{python_file(text)}:Model", "--name", "ocr")
    assert (done.code, done.out) == (2, "")
    assert problem in done.err
    assert service.get("/api/v1/serving/deployments") == {"deployments": []}


def test_options_reach_the_replicas(service: HttpService, rmcs: Rmcs) -> None:
    file = python_file("class Model:\n    def __call__(self, pages):\n        return pages\n")
    words = [
        "--replicas",
        "2",
        "--cpus",
        "1.5",
        "--max-batch",
        "8",
        "--batch-wait-ms",
        "20",
        "--tag",
        "x",
        "--tags",
        "y,z",
    ]
    done = rmcs("serving", "deploy", f"{file}:Model", "--name", "ocr", *words)
    assert (done.code, done.out) == (0, "ocr\n")
    shown = json.loads(rmcs("serving", "status", "ocr", "-o", "json").out)
    assert (shown["replicas"], shown["max_batch"], shown["batch_wait_ms"]) == (2, 8, 20.0)
    task = service.item(shown["instances"][0]["id"]).task
    assert (task.requirements, task.tags, task.name) == ({"CPU": 1.5}, ("x", "y", "z"), "ocr")
    again = rmcs("serving", "deploy", f"{file}:Model", "--name", "ocr")
    assert (again.code, "There is a deployment 'ocr' already" in again.err) == (2, True)
    assert rmcs("serving", "status", "other").code == 102


def test_status_without_a_name_shows_all_models_and_instances(service: HttpService, rmcs: Rmcs) -> None:
    assert "no instance is registered" in rmcs("serving", "status").out
    stub = StubInstance()
    try:
        service.post("/api/v1/serving/ti/register", {"host": "127.0.0.1", "port": stub.port})
        service.post("/api/v1/serving/queue/submit", {"model_name": "typo", "task_input": 1})
        for _ in range(2):
            task = service.post("/api/v1/serving/queue/submit", {"model_name": "ocr", "task_input": 1})
            path = f"/api/v1/serving/task/query?task_id={task['task_id']}"
            until(lambda path=path: service.get(path)["task_status"] == "completed", 60)
        shown = json.loads(rmcs("serving", "status", "-o", "json").out)
        text = rmcs("serving", "status").out
    finally:
        stub.stop()
    assert [(one["model_name"], one["instances"], one["waiting"]) for one in shown["models"]] == [
        ("ocr", 1, 0),
        ("typo", 0, 1),
    ]
    (row,) = shown["instances"]
    assert (row["address"], row["healthy"], row["length"]) == (stub.address, True, 0)
    assert row["relative_error"] is not None
    assert row["within_p90"] is not None
    for word in (
        "shortest_queue",
        "1 of 1",
        "0 of 0",
        stub.address,
        "0 ± 0 ms",
        "WITHIN P90",
        f"{row['within_p90']:.0%}",
    ):
        assert word in text


def test_up_serves_until_it_is_stopped(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("strategy: round_robin\n")
    command = [sys.executable, "-m", "ray_multicluster_scheduler", "serving", "up", "--config", str(config)]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://127\.0\.0\.1:\d+", line)))
        with urlopen(f"{address}/health") as answer:
            assert json.load(answer)["status"] == "healthy"
        process.send_signal(signal.SIGTERM)
        process.wait()
        timer.cancel()

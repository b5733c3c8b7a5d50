"""Deployments on two real clusters: embedded, and in a service that is killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.cli.service.client import connect
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.serving import SchedulerRequest
from tests.integration.serving.deployed_classes import Embed, Ocr
from tests.support.eventually import until
from tests.support.running_service import RunningService


def running(status: dict[str, object]) -> bool:
    return status["state"] == "RUNNING"


def slow_request(seconds: float) -> SchedulerRequest:
    return SchedulerRequest.model_validate({"model_type": "ocr", "input_data": {"page": 7, "seconds": seconds}})


def test_replicas_on_both_clusters_batches_replacement_scale_and_delete(config_path: Path) -> None:
    with UnifiedScheduler(config_path) as scheduler:
        # More than half of a cluster each, so that they are on both.
        ocr = scheduler.deploy(Ocr, ("sheet",), None, {"CPU": 1.5}, name="ocr", replicas=2)
        embed = scheduler.deploy(
            Embed, name="embed", max_batch=4, batch_wait_ms=200, resource_requirements={"CPU": 0.1}
        )
        assert ocr.request({"page": 1}, {"size": 1}, timeout=60)["text"] == "sheet 1"
        until(lambda: running(ocr.status()), 60)
        assert {one["cluster"] for one in ocr.status()["instances"]} == {"linux", "mac"}
        with pytest.raises(rmcs.InferenceError, match="ValueError: there is no page"):
            ocr.request({}, timeout=60)
        with pytest.raises(rmcs.ConfigurationError, match="There is a deployment 'ocr' already"):
            scheduler.deploy(Ocr, name="ocr")

        answers: list[list[int]] = []
        threads = [
            threading.Thread(target=lambda: answers.append(embed.request("four", timeout=60)), name=f"ask {number}")
            for number in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert answers == [[4, 4]] * 4, "one batch of four"

        # Both replicas die: their requests are repeated, and they are replaced. In turns, so that both have one.
        ocr.scheduler.set_strategy("round_robin", model="ocr")
        tasks = [ocr.scheduler.schedule(slow_request(0.5)) for _ in range(2)]
        pids = [ocr.scheduler.wait(one.task_id, 60)["pid"] for one in tasks]
        assert len(set(pids)) == 2
        before = {one["id"] for one in ocr.status()["instances"]}
        tasks = [ocr.scheduler.schedule(slow_request(1.5)) for _ in range(2)]
        until(lambda: sum(row.running for row in ocr.scheduler.queue_info("ocr")) == 2)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert [ocr.scheduler.wait(one.task_id, 60)["text"] for one in tasks] == ["sheet 7", "sheet 7"]
        until(lambda: running(ocr.status()) and not before & {one["id"] for one in ocr.status()["instances"]}, 60)
        assert ocr.status()["problem"]

        ocr.scale(1)
        until(lambda: len(ocr.status()["instances"]) == 1, 60)
        assert ocr.request({"page": 2}, timeout=60)["text"] == "sheet 2"
        ocr.delete()
        embed.delete()
        with pytest.raises(rmcs.UnknownItemError):
            ocr.request({"page": 3})
        assert {one["state"] for one in scheduler.list_actors()} <= {"CANCELLED", "FAILED"}


APP = """
import deployed_helper

class Model:
    def infer(self, page):
        return deployed_helper.text(page)
"""


def test_a_deployment_of_a_service_survives_its_kill(
    config_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deployed_app.py").write_text(APP)
    (tmp_path / "deployed_helper.py").write_text("def text(page):\n    return f'page {page}'\n")
    with RunningService(config_path, tmp_path / "state") as service:
        monkeypatch.setenv("RMCS_ADDRESS", service.address)
        monkeypatch.setenv("RMCS_TOKEN", service.token)
        api = connect(service.address, token=service.token)

        def status() -> Any:
            return api.get("/api/v1/serving/deployments/ocr")

        def answer(page: int) -> Any:
            body = {"model_name": "ocr", "task_input": page}
            task = api.post("/api/v1/serving/queue/submit", body)["task_id"]
            path = f"/api/v1/serving/task/query?task_id={task}"
            until(lambda: api.get(path)["task_status"] in {"completed", "failed"}, 60)
            return api.get(path)["result"]

        words = ["--replicas", "2", "--cpus", "1"]
        assert main(["serving", "deploy", f"{tmp_path / 'deployed_app.py'}:Model", "--name", "ocr", *words]) == 0
        with UnifiedScheduler() as client:
            embed = client.deploy(Embed, name="embed", max_batch=4, resource_requirements={"CPU": 0.1})
            assert embed.request("four", timeout=60) == [4, 1]
        assert answer(1) == "page 1"
        until(lambda: status()["running"] == 2, 60)
        before = [one["id"] for one in status()["instances"]]

        service.kill()
        service.start()
        assert answer(2) == "page 2"
        until(lambda: status()["running"] == 2, 60)
        assert [one["id"] for one in status()["instances"]] == before
        assert len(api.get("/api/v1/actors")["actors"]) == 3, "no replica was started twice"

        assert main(["serving", "scale", "ocr", "1"]) == 0
        until(lambda: len(status()["instances"]) == 1, 60)
        assert answer(3) == "page 3"
        for name in ("ocr", "embed"):
            assert main(["serving", "delete", name]) == 0
        until(lambda: api.get("/api/v1/serving/deployments") == {"deployments": []}, 60)
        assert {row["state"] for row in api.get("/api/v1/actors")["actors"]} == {"CANCELLED"}
        service.stop()

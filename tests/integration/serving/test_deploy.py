"""Deployments on two real clusters: embedded, and in a service that is killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.serving import SchedulerRequest
from tests.integration.serving.deployed_classes import Embed, Ocr
from tests.support.eventually import until


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

        # Both replicas die: their requests are repeated, and they are replaced.
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

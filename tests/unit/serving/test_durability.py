"""What a serving scheduler with a journal keeps: through SIGKILL, restarts and full disks, on real SQLite files."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import apsw
import pytest
import websockets.sync.client

from ray_multicluster_scheduler.common.exception import InferenceError, SchedulerError, ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.store import SqliteStore
from ray_multicluster_scheduler.serving import SchedulerRequest, SwarmPilotScheduler, TaskTracker
from ray_multicluster_scheduler.serving.errors import TaskIdTakenError
from ray_multicluster_scheduler.serving.journal import TaskJournal
from tests.support.serving_instances import StubInstance
from tests.support.watched_disk import WatchedDisk

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., StubInstance]
PATIENCE_S = 120


@contextmanager
def opened(folder: Path, **options: Any) -> Iterator[SwarmPilotScheduler]:
    """A scheduler that continues with what the folder has; its end loses what is in memory only."""
    store = SqliteStore(folder, vfs=options.pop("vfs", None))
    try:
        with SwarmPilotScheduler(health_interval_s=0.2, journal=TaskJournal(store), **options) as scheduler:
            scheduler.restore()
            yield scheduler
    finally:
        store.close()


def request(page: Any, task_id: str | None = None, **metadata: Any) -> SchedulerRequest:
    return SchedulerRequest(model_type="ocr", input_data=page, task_id=task_id, metadata=metadata)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def rows(folder: Path) -> list[str]:
    connection = apsw.Connection(str(folder / "rmcs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [one for (one,) in connection.execute("SELECT id FROM serving_tasks ORDER BY id")]
    finally:
        connection.close()


class Process:
    """`python -m ray_multicluster_scheduler.serving --state FOLDER` on a free port."""

    def __init__(self, state: Path) -> None:
        command = [sys.executable, "-m", "ray_multicluster_scheduler.serving", "--state", str(state), "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        assert self._process.stderr is not None
        found = None
        for line in self._process.stderr:
            found = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
            if found:
                break
        assert found is not None
        self.url = found[1]
        self._drain = threading.Thread(target=self._process.stderr.read)
        self._drain.start()

    def end(self, number: int = signal.SIGKILL) -> None:
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        self._drain.join()
        assert self._process.stderr is not None
        self._process.stderr.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self.end()

    def call(self, path: str, body: Any = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, content, headers), timeout=60
            ) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def ok(self, path: str, body: Any = None) -> Any:
        status, answer = self.call(path, body)
        assert status == 200, answer
        return answer

    def submit(self, page: Any, task_id: str, **metadata: Any) -> Any:
        body = {"model_name": "ocr", "task_input": page, "task_id": task_id, "metadata": metadata}
        return self.ok("/queue/submit", body)

    def register(self, stub: StubInstance) -> str:
        return str(self.ok("/ti/register", {"host": "127.0.0.1", "port": stub.port})["ti_uuid"])

    def query(self, task_id: str) -> Any:
        return self.ok(f"/task/query?task_id={task_id}")

    def result(self, task_id: str) -> Any:
        until(lambda: self.query(task_id)["task_status"] in {"completed", "failed"})
        return self.query(task_id)


# ---- a process that is killed


def test_nothing_accepted_is_lost_and_no_result_disappears_when_it_is_killed_under_load(
    tmp_path: Path, instance: Start
) -> None:
    stub = instance(seconds=lambda task: 0.002, replicas=4)
    accepted: set[int] = set()
    seen: dict[int, Any] = {}
    uuid = ""
    for round_number in range(3):
        with Process(tmp_path / "state") as process:
            if round_number == 0:
                uuid = process.register(stub)
            else:
                (queue,) = process.ok("/queue/info?model_name=ocr")["queues"] or [{"ti_uuid": uuid}]
                assert queue["ti_uuid"] == uuid

            enough = len(seen) + 100
            seen_enough = threading.Event()

            def submit_and_query(
                first: int,
                process: Process = process,
                enough: int = enough,
                seen_enough: threading.Event = seen_enough,
            ) -> None:
                with suppress(OSError, HTTPException):  # it was killed; so was the answer
                    for page in range(first, 1_000_000, 4):
                        process.submit(page, f"t{page}")
                        accepted.add(page)
                        earlier = page - 8  # two unfinished tasks for each client, however slow the machine is
                        if earlier >= first:
                            seen[earlier] = process.result(f"t{earlier}")["result"]
                            if len(seen) > enough:
                                seen_enough.set()

            with ThreadPoolExecutor(4) as clients:
                running = [clients.submit(submit_and_query, 10_000 * round_number + one) for one in range(4)]
                in_time = seen_enough.wait(PATIENCE_S)
                process.end()
            assert in_time
            for one in running:
                one.result()
    with Process(tmp_path / "state") as process:
        for page, result in seen.items():
            found = process.query(f"t{page}")
            assert (found["task_status"], found["result"]) == ("completed", result)
        for page in accepted:
            found = process.result(f"t{page}")
            assert (found["task_status"], found["result"]["echo"]) == ("completed", page)
            assert found["scheduled_ti"] == uuid
        some = min(accepted)
        assert process.submit(some, f"t{some}")["task_id"] == f"t{some}", "a repeat is the same task"
        assert process.query(f"t{some}")["task_status"] == "completed"
        body = {"model_name": "ocr", "task_input": "another", "task_id": f"t{some}"}
        assert process.call("/queue/submit", body)[0] == 409
        process.end(signal.SIGTERM)


def test_an_acknowledged_task_runs_on_and_its_report_is_accepted(tmp_path: Path, instance: Start) -> None:
    stub = instance()
    stub.hold_tasks()
    with Process(tmp_path / "state") as process:
        stub.callback = process.url
        process.register(stub)
        process.submit(1, "a")
        process.submit(2, "b")
        until(lambda: stub.running == 1)
        until(lambda: b"acknowledged" in _states(tmp_path / "state"))
    with Process(tmp_path / "state") as process:
        stub.callback = process.url
        assert process.query("a")["task_status"] == "scheduled"
        until(lambda: process.ok("/queue/info?model_name=ocr")["queues"])
        (queue,) = process.ok("/queue/info?model_name=ocr")["queues"]
        assert (queue["running"], queue["length"]) == (1, 2)
        stub.release_tasks()
        assert [process.result(one)["result"]["echo"] for one in ("a", "b")] == [1, 2]
        assert [task["task_id"] for task in stub.received] == ["a", "b"], "it ran once"
        report = {"task_id": "a", "instance_id": stub.address, "result": "again"}
        assert process.ok("/result/submit", report)["message"] == "was received before"


def _states(folder: Path) -> bytes:
    connection = apsw.Connection(str(folder / "rmcs.db"), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return " ".join(one for (one,) in connection.execute("SELECT state FROM serving_tasks")).encode()
    finally:
        connection.close()


def test_a_task_that_was_not_acknowledged_is_repeated_only_if_it_may_run_twice(tmp_path: Path, instance: Start) -> None:
    stub = instance(replicas=2)
    stub.hold_tasks()
    with Process(tmp_path / "state") as process:
        process.register(stub)
        process.submit(1, "once", idempotent=False)
        process.submit(2, "again")
        until(lambda: stub.running == 2)
    stub.release_tasks()
    with Process(tmp_path / "state") as process:
        assert "not idempotent" in process.result("once")["error"]
        assert process.result("again")["result"]["echo"] == 2
        assert [task["task_id"] for task in stub.received].count("once") == 1


def test_two_processes_cannot_use_one_folder(tmp_path: Path) -> None:
    with Process(tmp_path / "state"):
        command = [sys.executable, "-m", "ray_multicluster_scheduler.serving", "--state", str(tmp_path / "state")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        second = subprocess.run(
            [*command, "--port", "0"], capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment
        )
    assert second.returncode != 0
    assert "uses the state folder" in second.stderr
    assert "Traceback" not in second.stderr


# ---- a scheduler that is opened again


def test_finished_tasks_and_instances_are_there_after_a_restart(tmp_path: Path, instance: Start) -> None:
    stub = instance()
    with opened(tmp_path) as scheduler:
        added = scheduler.add_instance(stub.address, model_name="ocr", weight=2.0, hardware="t4", concurrency=3)
        first = scheduler.schedule(request({"page": 1}))
        assert first.instance_id == added.uuid
        result = scheduler.wait(first.task_id, PATIENCE_S)
        before = scheduler.task_tracker.get_task_info(first.task_id)
    with opened(tmp_path) as scheduler:
        after = scheduler.task_tracker.get_task_info(first.task_id)
        assert before is not None
        assert after is not None
        assert scheduler.wait(first.task_id, 0) == result
        for name in ("model_name", "ti_uuid", "task_status", "submit_time", "execution_ms", "fingerprint", "owner"):
            assert getattr(after, name) == getattr(before, name)
        assert scheduler.add_instance(stub.address).uuid == added.uuid
        scheduler.remove_instance(added)
        scheduler.run(scheduler.durable())
    with opened(tmp_path) as scheduler:
        assert scheduler.queue_info() == []


def test_tasks_that_waited_are_placed_after_a_restart_in_their_order(tmp_path: Path, instance: Start) -> None:
    with opened(tmp_path) as scheduler:
        for page in range(20):
            assert scheduler.schedule(request(page, f"t{page}", size=page)).instance_id is None
    with opened(tmp_path) as scheduler:
        assert scheduler.task_tracker.waiting == 20
        assert scheduler.schedule(request(3, "t3", size=3)).task_id == "t3"
        with pytest.raises(TaskIdTakenError):
            scheduler.schedule(request(4, "t3", size=3))
        stub = instance()
        scheduler.add_instance(stub.address)
        for page in range(20):
            assert scheduler.wait(f"t{page}", PATIENCE_S)["echo"] == page
        assert [task["task_input"] for task in stub.received] == list(range(20))
        assert stub.received[3]["metadata"] == {"size": 3}
        assert scheduler.queue_info()[0].length == 0


def test_an_acknowledged_task_whose_instance_is_gone_fails_or_is_repeated(tmp_path: Path, instance: Start) -> None:
    stub, other = instance(replicas=2), instance()
    stub.hold_tasks()
    stub.callback = "http://127.0.0.1:1"
    with opened(tmp_path) as scheduler:
        scheduler.add_instance(stub.address)
        scheduler.schedule(request(1, "once"))
        scheduler.schedule(request(2, "again", idempotent=True))
        until(lambda: _states(tmp_path).count(b"acknowledged") == 2)
    stub.stop()
    with opened(tmp_path) as scheduler:
        scheduler.add_instance(other.address)
        assert scheduler.wait("again", PATIENCE_S)["instance"] == other.address
        with pytest.raises(InferenceError, match="not idempotent"):
            scheduler.wait("once", PATIENCE_S)


def test_an_acknowledged_task_times_out_from_when_it_was_forwarded(tmp_path: Path, instance: Start) -> None:
    stub = instance()
    stub.hold_tasks()
    stub.callback = "http://127.0.0.1:1"
    with opened(tmp_path) as scheduler:
        scheduler.add_instance(stub.address)
        scheduler.schedule(request(1, "a"))
        until(lambda: b"acknowledged" in _states(tmp_path))
    with opened(tmp_path, task_timeout_s=0.01) as scheduler, pytest.raises(InferenceError, match="no result"):
        scheduler.wait("a", PATIENCE_S)


def test_a_drained_instance_keeps_its_task_through_a_restart_and_then_goes(tmp_path: Path, instance: Start) -> None:
    stub = instance()
    stub.hold_tasks()
    stub.callback = "http://127.0.0.1:1"
    with opened(tmp_path) as scheduler:
        added = scheduler.add_instance(stub.address)
        scheduler.schedule(request(1, "a"))
        until(lambda: b"acknowledged" in _states(tmp_path))
        scheduler.remove_instance(added)
        scheduler.schedule(request(2, "b"))
    with opened(tmp_path) as scheduler:
        assert scheduler.handle_completion("a", stub.address, 5.0, "done")
        assert scheduler.wait("a", PATIENCE_S) == "done"
        assert scheduler.queue_info() == []
        assert [task["task_id"] for task in stub.received] == ["a"]
    with opened(tmp_path) as scheduler:
        assert scheduler.instance_uuid(added.uuid) is None


def test_pruned_and_cleared_tasks_leave_no_rows(tmp_path: Path, instance: Start) -> None:
    stub = instance()
    with opened(tmp_path, tracker=TaskTracker(max_finished=2)) as scheduler:
        scheduler.add_instance(stub.address)
        for page in range(4):
            scheduler.schedule(request(page, f"t{page}"))
            scheduler.wait(f"t{page}", PATIENCE_S)
        scheduler.run(scheduler.durable())
        assert rows(tmp_path) == ["t2", "t3"]
        assert scheduler.task_tracker.clear() == 2
        scheduler.run(scheduler.durable())
        assert rows(tmp_path) == []
        scheduler.schedule(request("new", "t3"))
        assert scheduler.wait("t3", PATIENCE_S)["echo"] == "new"
        assert rows(tmp_path) == ["t3"]


# ---- durable before it is visible


def test_nothing_runs_or_is_seen_before_it_is_on_disk(tmp_path: Path, instance: Start) -> None:
    disk, stub = WatchedDisk(), instance()
    stub.hold_tasks()
    with opened(tmp_path, vfs=disk.name) as scheduler, ThreadPoolExecutor() as threads:
        scheduler.add_instance(stub.address)
        scheduler.schedule(request(1, "a"))
        until(lambda: stub.running == 1)
        disk.full = True
        refused = threads.submit(scheduler.schedule, request(2, "b"))
        until(lambda: isinstance(_problem_of(scheduler), ServiceUnavailableError))
        stub.release_tasks()
        until(lambda: stub.running == 0)
        assert scheduler.task_tracker.get_task_info("b") is not None
        time.sleep(0.3)
        assert not refused.done()
        assert [task["task_id"] for task in stub.received] == ["a"]
        seen = scheduler.task_tracker.get_task_info("a")
        assert seen is not None
        assert not seen.task_status.finished
        with pytest.raises(TimeoutError):
            scheduler.run(asyncio.wait_for(scheduler.durable(), 0.2))
        disk.full = False
        assert refused.result(PATIENCE_S).instance_id is not None
        assert scheduler.wait("a", PATIENCE_S)["echo"] == 1
        assert scheduler.wait("b", PATIENCE_S)["echo"] == 2


def _problem_of(scheduler: SwarmPilotScheduler) -> SchedulerError | None:
    try:
        scheduler.submit("ocr", [])
    except SchedulerError as error:
        return error
    return None


def test_a_broken_disk_refuses_submissions_and_reports(tmp_path: Path, instance: Start) -> None:
    disk, stub = WatchedDisk(), instance()
    with opened(tmp_path, vfs=disk.name) as scheduler:
        scheduler.add_instance(stub.address)
        scheduler.schedule(request(1, "a"))
        scheduler.wait("a", PATIENCE_S)
        disk.broken = True
        with pytest.raises(SchedulerError):
            scheduler.schedule(request(2, "b"))
        with pytest.raises(SchedulerError):
            scheduler.schedule(request(2, "b"))
        disk.broken = False
        assert [task["task_id"] for task in stub.received] == ["a"]


# ---- what else goes through a process with a journal


def test_v1_requests_are_never_stored(tmp_path: Path, llm: Callable[..., Any]) -> None:
    with Process(tmp_path / "state") as process:
        process.ok("/ti/register", {"host": "127.0.0.1", "port": llm().port, "kind": "openai"})
        body = {"model": "small-llm", "messages": [{"role": "user", "content": "secret word"}]}
        assert process.ok("/v1/chat/completions", body)["choices"]
        assert rows(tmp_path / "state") == []


def test_a_batch_and_its_results_over_a_socket_survive(tmp_path: Path, instance: Start) -> None:
    stub = instance(replicas=3)
    with Process(tmp_path / "state") as process:
        process.register(stub)
        with websockets.sync.client.connect(f"{process.url.replace('http', 'ws')}/ws/result_submit") as connection:
            connection.send(json.dumps({"type": "register", "instance_id": stub.address}))
            connection.recv(PATIENCE_S)
            tasks = [{"task_input": one, "task_id": f"t{one}"} for one in range(3)]
            answer = process.ok("/queue/submit_batch", {"model_name": "ocr", "tasks": tasks})
            assert {row["scheduled_ti"] for row in answer["results"]} == {process.register(stub)}
            got = [json.loads(connection.recv(PATIENCE_S))["task_id"] for _ in range(3)]
            results = [{"task_id": one, "result": {"n": one}} for one in got[:2]]
            connection.send(json.dumps({"type": "batch", "messages": results}))
            assert all(json.loads(connection.recv(PATIENCE_S))["success"] for _ in results)
            process.end()
    with Process(tmp_path / "state") as process:
        assert [process.query(one)["result"] for one in got[:2]] == [{"n": one} for one in got[:2]]
        assert process.result(got[2])["result"]["echo"] == int(got[2][1:])

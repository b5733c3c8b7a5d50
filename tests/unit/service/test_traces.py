"""Traces of items, as a collector gets them over HTTP."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import ROOT
from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.config import Settings
from ray_multicluster_scheduler.control_plane.runtime.service.tracing import trace_sender
from ray_multicluster_scheduler.control_plane.runtime.service.tracing.trace_sender import TraceSender
from ray_multicluster_scheduler.control_plane.store.records import Step
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.support.otlp_collector import OtlpCollector
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import a_job

AT_ONCE = {"base_s": 0.0, "jitter": 0.0}
ROOT_FOLDER = Path(__file__).resolve().parents[3]
OTLP = "ray_multicluster_scheduler.control_plane.runtime.service.tracing.otlp_exporter"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_sender, "_GATHER_S", 0.02)
    monkeypatch.setattr(trace_sender, "_RETRY_S", 0.1)


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as one:
        yield one


def a_service(folder: Path, endpoint: str, **values: object) -> HttpService:
    return HttpService(folder / "state", tracing={"endpoint": endpoint}, retry_backoff=AT_ONCE, **values)


def run(service: HttpService, item_id: str, **values: object) -> None:
    service.submit(item_id, **values)
    wait_for(service, item_id, "RUNNING")


def wait_for(service: HttpService, name: str, state: str) -> None:
    until(lambda: service.get(f"/api/v1/items/{name}")["state"] == state)


def fail(service: HttpService, name: str, attempt: int, message: str = "boom") -> None:
    service.plane.end(
        CallResult(name, attempt, "failed", failure=FailureClass.USER, error_type="ValueError", message=message)
    )


def succeed(service: HttpService, name: str, attempt: int = 1) -> None:
    service.plane.end(CallResult(name, attempt, "succeeded"))


def test_the_setting_tracing_sends_a_trace_of_a_task_that_succeeded(tmp_path: Path, collector: OtlpCollector) -> None:
    with a_service(tmp_path, collector.endpoint) as service:  # the setting is tracing: {endpoint: …}
        run(service, "still-there")
        run(service, "good", name="train", owner="ann")
        time.sleep(0.05)
        succeed(service, "good")
        until(lambda: len(collector.of("good")) == 3)
        explanation = service.get("/api/v1/items/good/explain")
        until(lambda: service.plane.runtime.trace_sender.sent == 1)
        metrics = service.ask("GET", "/metrics")[1].decode()
        control_plane = service.plane.runtime.control_plane
    assert collector.paths == ["/v1/traces"]
    assert {one.trace for one in collector.spans} == {collector.spans[0].trace}, "what still runs has no trace"
    (whole,) = collector.named("task train")
    (wait,) = collector.named("wait")
    (attempt,) = collector.named("attempt 1")
    assert whole.words == {
        "rmcs.id": "good",
        "rmcs.kind": "task",
        "rmcs.name": "train",
        "rmcs.owner": "ann",
        "rmcs.cluster": "mac",
        "rmcs.state": "SUCCEEDED",
        "rmcs.reason": explanation["code"],
        "rmcs.attempts": 1,
    }
    assert (whole.parent, whole.error) == ("", None)
    assert wait.parent == attempt.parent == whole.id
    assert attempt.words["rmcs.cluster"] == "mac"
    assert attempt.words["rmcs.attempt"] == 1
    assert attempt.words["rmcs.fence"] == explanation["attempts"][0]["fence"] > 0
    assert [name for name, _ in attempt.moments] == ["DISPATCHING", "RUNNING"]
    steps = [step["at"] for step in explanation["history"]]
    assert (whole.begun, whole.ended) == pytest.approx((steps[0], steps[-1]), abs=1e-5)
    assert wait.begun == pytest.approx(whole.begun, abs=1e-5)
    assert wait.ended == pytest.approx(attempt.begun, abs=1e-5)
    assert attempt.ended == pytest.approx(whole.ended, abs=1e-5)
    assert attempt.ended - attempt.begun >= 0.05
    assert whole.resource["service.name"] == "ray_multicluster_scheduler"
    assert whole.resource["service.instance.id"] == control_plane
    assert 'rmcs_traces_total{outcome="sent"} 1' in metrics
    assert 'rmcs_traces_total{outcome="dropped"} 0' in metrics


def test_one_that_fails_after_a_retry(tmp_path: Path, collector: OtlpCollector) -> None:
    with a_service(tmp_path, collector.endpoint) as service:
        run(service, "bad", retries=1)
        fail(service, "bad", 1, "the first time, API_KEY=s3cret-abc")
        until(lambda: service.get("/api/v1/items/bad")["attempt"] == 2)
        wait_for(service, "bad", "RUNNING")
        fail(service, "bad", 2, "the second time")
        until(lambda: len(collector.of("bad")) == 5)
        explanation = service.get("/api/v1/items/bad/explain")
    whole, *_ = collector.of("bad")
    first, second = collector.named("attempt 1")[0], collector.named("attempt 2")[0]
    assert (whole.words["rmcs.state"], whole.words["rmcs.attempts"]) == ("FAILED", 2)
    assert whole.error is not None
    assert whole.error.startswith(f"{explanation['code']}: ")
    assert "the second time" in whole.error
    assert first.error is not None
    assert "the first time" in first.error
    assert "s3cret-abc" not in str(collector.spans)
    assert second.error is not None
    assert second.words["rmcs.fence"] > first.words["rmcs.fence"]
    assert [one.words["rmcs.wait"] for one in collector.of("bad") if one.name == "wait"] == [1, 2]
    again = collector.named("wait")[1]
    assert (again.begun, again.ended) == pytest.approx((first.ended, second.begun), abs=1e-5)


def test_one_that_is_cancelled_while_it_waits_and_a_job_with_a_secret(tmp_path: Path, collector: OtlpCollector) -> None:
    with a_service(tmp_path, collector.endpoint) as service:
        service.submit("later", start_after=5e9)
        service.post("/api/v1/items/later/cancel")
        job = a_job("nightly", name="API_KEY=s3cret-abc python x.py", start_after=5e9)
        service.post("/api/v1/items", {"task": job.to_dict()})
        service.post("/api/v1/items/nightly/cancel")
        until(lambda: collector.of("later") and collector.of("nightly"))
    assert sorted(one.name for one in collector.of("later")) == ["task later", "wait"]
    (whole,) = [one for one in collector.of("later") if not one.parent]
    assert (whole.words["rmcs.state"], whole.error, whole.words["rmcs.attempts"]) == ("CANCELLED", None, 0)
    assert "rmcs.cluster" not in whole.words
    assert "s3cret-abc" not in str(collector.spans)


def test_a_restart_goes_on_with_the_same_trace(tmp_path: Path, collector: OtlpCollector) -> None:
    with a_service(tmp_path, collector.endpoint) as service:
        run(service, "before")
        succeed(service, "before")
        run(service, "long")
        service.restart()
        assert len(collector.of("before")) == 3, "it is sent before the end"
        assert not collector.of("long")
        wait_for(service, "long", "RUNNING")
        succeed(service, "long")
        until(lambda: len(collector.of("long")) == 3)
        before = collector.of("long")[0]
        service.plane.runtime.trace_sender.enqueue_finished([Step("long", 9, TaskState.SUCCEEDED, 1, 0.0, "", "")])
        until(lambda: len(collector.of("long")) == 6)
        explanation = service.get("/api/v1/items/long/explain")
    whole = collector.of("long")[0]
    assert whole.begun == pytest.approx(explanation["history"][0]["at"], abs=1e-5), (
        "what came before the restart is in it"
    )
    assert {one.trace for one in collector.of("long")} == {before.trace}
    assert len({one.id for one in collector.of("long")}) == 3, "reported twice, it is the same spans"


def test_an_unreachable_collector_is_reported_once_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unavailable:
        unavailable.bind(("127.0.0.1", 0))
        port = unavailable.getsockname()[1]
    with caplog.at_level(logging.WARNING, ROOT), a_service(tmp_path, f"http://127.0.0.1:{port}") as service:
        for name in ("one", "two"):
            run(service, name)
            succeed(service, name)
            wait_for(service, name, "SUCCEEDED")
        until(lambda: "traces cannot be sent" in caplog.text, 60)
        begun = time.monotonic()
        service.stop()
        assert time.monotonic() - begun < 25
        service.start()
        with OtlpCollector(port) as collector:
            run(service, "three")
            succeed(service, "three")
            until(lambda: len(collector.of("three")) == 3, 60)
            service.stop()
    output = [one.getMessage() for one in caplog.records if "traces" in one.getMessage()]
    assert len([one for one in output if "cannot be sent" in one]) == 1, output
    assert f"http://127.0.0.1:{port}" in output[0]
    assert "refused" in output[0]
    assert "exporting" not in capfd.readouterr().err


def test_a_collector_that_comes_back_gets_what_ended_meanwhile(
    tmp_path: Path, collector: OtlpCollector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 500
    with caplog.at_level(logging.WARNING, ROOT), a_service(tmp_path, collector.endpoint) as service:
        for name in ("one", "two"):
            run(service, name)
            succeed(service, name)
        until(lambda: "traces cannot be sent" in caplog.text)
        collector.status = 200
        until(lambda: collector.of("one") and collector.of("two"))
        until(lambda: "traces are sent to" in caplog.text)
        assert (service.plane.runtime.trace_sender.sent, service.plane.runtime.trace_sender.dropped) == (2, 0)


def test_a_collector_that_does_not_answer_holds_up_neither_work_nor_the_end(
    tmp_path: Path, collector: OtlpCollector
) -> None:
    answer = threading.Event()
    collector.wait = lambda: answer.wait(60)
    try:
        with a_service(tmp_path, collector.endpoint) as service:
            run(service, "one")
            succeed(service, "one")
            until(lambda: collector.requests == 1)
            begun = time.monotonic()
            run(service, "two")
            succeed(service, "two")
            wait_for(service, "two", "SUCCEEDED")
            service.stop()
            assert time.monotonic() - begun < 25
    finally:
        answer.set()


class _Stuck:
    """In the place of a collector: it takes nothing."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def forget(self) -> None: ...

    def add(self, *_: object) -> None: ...

    def send(self) -> str | None:
        return "no"

    def close(self) -> None:
        self.closed.set()


class _Empty:
    def item(self, item_id: str) -> None:
        return None


def test_more_than_may_wait_are_dropped_and_counted() -> None:
    stuck = _Stuck()
    sender = TraceSender("http://x", _Empty(), stuck, most=3)  # type: ignore[arg-type]
    ended = [Step(f"t{at}", 5, TaskState.SUCCEEDED, 1, 0.0, "", "") for at in range(10)]
    going = [Step(f"r{at}", 3, TaskState.RUNNING, 1, 0.0, "", "") for at in range(10)]
    begun = time.monotonic()
    sender.enqueue_finished([*going, *ended])
    assert time.monotonic() - begun < 30
    assert sender.dropped == 7
    sender.close()
    sender.close()
    assert stuck.closed.is_set()
    assert (sender.sent, sender.dropped) == (0, 10)


def test_a_group_that_is_never_taken_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_sender, "_GIVE_UP_S", 0.1)
    monkeypatch.setattr(trace_sender, "_RETRY_S", 0.01)
    sender = TraceSender("http://x", _Empty(), _Stuck())  # type: ignore[arg-type]
    sender.enqueue_finished([Step("t", 5, TaskState.SUCCEEDED, 1, 0.0, "", "")])
    until(lambda: sender.dropped == 1)
    sender.close()


def test_without_the_extra_the_setting_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, OTLP, raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ray_multicluster_scheduler\[otel\]'"):
        a_service(tmp_path, "http://127.0.0.1:4318")


def test_off_nothing_of_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, OTLP, raising=False)
    with HttpService(tmp_path / "state") as service:
        assert service.plane.runtime.trace_sender is None
        assert b"rmcs_traces_total" not in service.ask("GET", "/metrics")[1]
    assert OTLP not in sys.modules


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "http://ann:pass@host:4318", "ftp://host", "http://h/?a=b"])
def test_an_endpoint_is_an_address_without_secrets(endpoint: str) -> None:
    with pytest.raises(ValueError, match="such as http://127.0.0.1:4318") as caught:
        Settings(tracing={"endpoint": endpoint})
    assert "ann:pass@" not in str(caught.value).split("[type")[0]


def test_the_address_of_a_collector_may_have_a_path() -> None:
    tracing = Settings(tracing={"endpoint": "https://traces.example/otlp/"}).tracing
    assert tracing is not None
    assert tracing.endpoint == "https://traces.example/otlp"


def test_a_service_without_the_extra_says_so_and_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['opentelemetry.exporter.otlp'] = None\n")
    config = tmp_path / "clusters.yaml"
    config.write_text(
        "settings: {tracing: {endpoint: 'http://127.0.0.1:4318'}}\n"
        "clusters:\n  - {name: mac, dashboard: 'http://127.0.0.1:9'}\n"
    )
    words = ["up", "--config", str(config), "--port", "0", "--state", str(tmp_path / "state")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT_FOLDER)])}
    command = [sys.executable, "-m", "ray_multicluster_scheduler", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    output = " ".join(done.stderr.split())
    assert "pip install 'ray_multicluster_scheduler[otel]'" in output
    assert "Traceback" not in output
